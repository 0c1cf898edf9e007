"""Variational routing against its transcription, scikit-learn, its own bound and finite differences."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.mixture import BayesianGaussianMixture

from support import more_loops
from support.cases import rand, randn, tensor_case
from support.situations import GRADIENTS, SITUATIONS, assert_like_loops, gradcheck, route, with_activations
from torchcaps.routing import vb_routing
from torchcaps.votes import as_votes

pytestmark = pytest.mark.usefixtures("on_reference")


def vb_case(make):
    """A case with activations, and a pair of betas (J,) for it."""
    case = with_activations(make())
    num_parents = as_votes(case.votes()).num_parents
    return case, randn(num_parents), randn(num_parents)


def assert_vb(make, **options):
    case, beta_a, beta_u = vb_case(make)
    result = route(vb_routing, case, beta_a=beta_a, beta_u=beta_u, **options)
    final, steps = more_loops.vb(case.field(), beta_a.numpy(), beta_u.numpy(), **options)
    told = [step._replace(objective=np.asarray(ours.objective)) for step, ours in zip(steps, result.trace)]
    assert_like_loops(result, (final, told), case)


@pytest.mark.parametrize("name", SITUATIONS)
def test_situations(name):
    assert_vb(SITUATIONS[name])


@pytest.mark.parametrize("num_iterations", [1, 2, 5])
def test_options(num_iterations):
    assert_vb(tensor_case, num_iterations=num_iterations, alpha0=0.5, kappa0=2.0, psi0=0.3, nu0=7.5)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    case, beta_a, beta_u = vb_case(GRADIENTS[name])
    assert gradcheck(vb_routing, case, beta_a=beta_a, beta_u=beta_u)


def test_steps_are_those_of_scikit_learn():
    num_points, num_components, size = 40, 4, 3
    data, logits = 2 * randn(num_points, size), randn(1, num_points, num_components)
    mixture = BayesianGaussianMixture(
        n_components=num_components, covariance_type="diag", reg_covar=0.0, mean_prior=np.zeros(size),
        weight_concentration_prior_type="dirichlet_distribution", weight_concentration_prior=1.0,
        mean_precision_prior=1.0, degrees_of_freedom_prior=size + 1, covariance_prior=np.ones(size),
    )  # fmt: skip
    mixture._check_parameters(data.numpy())
    mixture._initialize(data.numpy(), logits[0].softmax(-1).numpy())
    votes = data[None, :, None].expand(-1, -1, num_components, -1)
    ones = torch.ones(1, num_points, dtype=torch.float64)
    trace = vb_routing(
        votes, ones, beta_a=0.0, beta_u=0.0, num_iterations=5, initial_logits=logits, return_trace=True
    ).trace
    for step, following in pairwise(trace):
        np.testing.assert_allclose(step.poses[0], mixture.means_, rtol=1e-12, atol=1e-13)
        _, log_responsibilities = mixture._e_step(data.numpy())
        np.testing.assert_allclose(following.coupling[0], np.exp(log_responsibilities), rtol=1e-10, atol=1e-13)
        mixture._m_step(data.numpy(), log_responsibilities)


@pytest.mark.parametrize("name", [name for name in SITUATIONS if "global" not in name and "-position" not in name])
def test_the_bound_never_falls_where_windows_compete(name):
    case, beta_a, beta_u = vb_case(SITUATIONS[name])
    trace = route(vb_routing, case, beta_a=beta_a, beta_u=beta_u, num_iterations=8).trace
    objective = torch.stack([step.objective for step in trace])
    assert (objective.diff(dim=0) <= 1e-9 * objective.abs().max()).all()
    assert objective.diff(dim=0).min() < -1e-6 or name in ("one of everything", "one child", "one parent")


def test_an_absurd_prior_is_refused():
    with pytest.raises(ValueError, match=r"nu0 must be more than D - 1 = 3 for votes of 4 entries, got 2.0"):
        vb_routing(randn(2, 7, 3, 4), rand(2, 7), beta_a=0.0, beta_u=0.0, nu0=2.0)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e6])
def test_nothing_is_ever_infinite(scale):
    votes = (scale * torch.randn(2, 7, 3, 16)).requires_grad_()
    for activations in (torch.zeros(2, 7), torch.ones(2, 7)):
        result = vb_routing(votes, activations, beta_a=0.0, beta_u=0.0)
        assert all(value.isfinite().all() for value in (*result.capsules, result.coupling))
        result.capsules.poses.sum().backward()
        assert votes.grad.isfinite().all()
