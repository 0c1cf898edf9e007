"""EM routing against its loop-by-loop transcription, and its gradients against finite differences."""

from functools import partial

import pytest
import torch

from support import loops
from support.cases import conv_case, rand, randn, tensor_case
from support.situations import GRADIENTS, SITUATIONS, assert_like_loops, gradcheck, route, with_activations
from torchcaps.routing import em_routing
from torchcaps.votes import as_votes

pytestmark = pytest.mark.usefixtures("on_reference")

LAMBDAS = (0.01 * (1 - 0.95), 0.01 * (1 - 0.95**2), 0.01 * (1 - 0.95**3))


def em_case(make):
    """A case with activations, and a pair of betas (J,) for it."""
    case = with_activations(make())
    num_parents = as_votes(case.votes()).num_parents
    return case, randn(num_parents), randn(num_parents)


def assert_em(make, lambdas=LAMBDAS, **options):
    case, beta_a, beta_u = em_case(make)
    case = case if "competition" in case.options else case.given(competition="global")
    result = route(em_routing, case, beta_a=beta_a, beta_u=beta_u, **options)
    known = {name: options[name] for name in ("eps_var", "cost_scale", "activation", "damping") if name in options}
    temperature = options.get("inverse_temperature", 1.0)
    known["temperatures"] = temperature if isinstance(temperature, list) else [temperature] * len(lambdas)
    assert_like_loops(result, loops.em(case.field(), beta_a.numpy(), beta_u.numpy(), lambdas, **known), case)


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
def test_situations(name, activation):
    # a large eps_var keeps the densities of one or two votes tame, so that nothing drowns in rounding
    assert_em(SITUATIONS[name], activation=activation, eps_var=0.1)


@pytest.mark.parametrize("inverse_temperature", [1 / 16, 2.0, [0.1, 1.0, 3.0]])
@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
@pytest.mark.parametrize("make", [tensor_case, conv_case])
def test_tempered_e_step(make, activation, inverse_temperature):
    assert_em(make, activation=activation, inverse_temperature=inverse_temperature, eps_var=0.01)


@pytest.mark.parametrize("damping", [0.1, 0.9])
@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
@pytest.mark.parametrize(
    "name", ["plain", "logits, mask", "dense full", "conv mask, window mask-global", "conv-position"]
)
def test_damped_means(name, activation, damping):
    assert_em(SITUATIONS[name], activation=activation, damping=damping, eps_var=0.1)


def test_without_iterations_to_come_damping_shrinks_the_mean():
    votes, activations, betas = randn(2, 7, 3, 4), rand(2, 7), {"beta_a": 0.0, "beta_u": 0.0}
    plain, damped = (em_routing(votes, activations, **betas, num_iterations=1, damping=d) for d in (0.0, 0.25))
    torch.testing.assert_close(damped.capsules.poses, 0.75 * plain.capsules.poses)
    assert torch.equal(plain.capsules.poses, em_routing(votes, activations, **betas, num_iterations=1).capsules.poses)


def test_a_damped_mean_comes_home():
    """With one parent couplings stay 1: after T iterations damping^T of the mean is missing."""
    votes, activations = randn(2, 7, 1, 4), rand(2, 7)
    weights = activations[..., None, None]
    mean = (weights * votes).sum(1) / weights.sum(1)
    for num_iterations in (1, 2, 5):
        options = {"beta_a": 0.0, "beta_u": 0.0, "num_iterations": num_iterations, "damping": 0.3}
        poses = em_routing(votes, activations, **options).capsules.poses
        torch.testing.assert_close(poses, (1 - 0.3**num_iterations) * mean)


@pytest.mark.parametrize("activation", ["mdl", "entropy"])
def test_logits_are_those_of_the_activations(activation):
    case, beta_a, beta_u = em_case(tensor_case)
    result = route(em_routing, case, beta_a=beta_a, beta_u=beta_u, activation=activation)
    torch.testing.assert_close(result.logits.sigmoid(), result.capsules.activations)


def test_logits_outlive_activations_that_round_to_one():
    case, _, beta_u = em_case(tensor_case)
    result = route(em_routing, case, beta_a=torch.tensor(1e6, dtype=torch.float64), beta_u=beta_u)
    assert result.capsules.activations.eq(1).all()
    assert result.logits.gt(50).all()
    assert result.logits.isfinite().all()


@pytest.mark.parametrize("cost_scale", ["mass", "paper"])
@pytest.mark.parametrize("make", [tensor_case, conv_case, lambda: conv_case(mask=True, window_mask=True)])
def test_cost_scales(make, cost_scale):
    assert_em(make, cost_scale=cost_scale)


def test_mass_scale_is_the_default():
    case, beta_a, beta_u = em_case(tensor_case)
    poses = [
        route(em_routing, case, beta_a=beta_a, beta_u=beta_u, **options).capsules.activations
        for options in ({}, {"cost_scale": "mass"}, {"cost_scale": "paper"})
    ]
    assert torch.equal(poses[0], poses[1])
    assert not torch.allclose(poses[0], poses[2])


@pytest.mark.parametrize(
    ("schedule", "lambdas"),
    [
        (0.3, (0.3,) * 4),
        ([0.1, 0.2, 0.3, 0.5], (0.1, 0.2, 0.3, 0.5)),
        (lambda iteration: 0.1 * (iteration + 1), (0.1, 0.2, 0.3, 0.4)),
    ],
    ids=["number", "sequence", "function"],
)
def test_lambda_schedules(schedule, lambdas):
    # 0.1 * 3 is not 0.3 to the last bit, which is far below the tolerance
    assert_em(tensor_case, lambdas, lambda_schedule=schedule, num_iterations=4)


@pytest.mark.parametrize("num_iterations", [1, 2, 5])
def test_iterations(num_iterations):
    lambdas = tuple(0.01 * (1 - 0.95 ** (t + 1)) for t in range(num_iterations))
    assert_em(tensor_case, lambdas, num_iterations=num_iterations)


@pytest.mark.parametrize("eps_var", [1e-6, 1e-2, 1.0])
def test_eps_var(eps_var):
    assert_em(tensor_case, eps_var=eps_var)


def test_betas_may_be_numbers():
    votes, activations = randn(2, 7, 3, 4), rand(2, 7)
    one = em_routing(votes, activations, beta_a=0.5, beta_u=-0.25)
    other = em_routing(votes, activations, beta_a=torch.full((3,), 0.5).double(), beta_u=torch.tensor(-0.25).double())
    assert torch.equal(one.capsules.activations, other.capsules.activations)


def test_a_child_of_activation_zero_has_no_vote():
    votes, activations = randn(2, 7, 3, 4), rand(2, 7)
    activations[:, 3] = 0
    options = {"beta_a": 0.0, "beta_u": 0.0, "cost_scale": "paper"}
    kept = [0, 1, 2, 4, 5, 6]
    one = em_routing(votes, activations, **options).capsules
    other = em_routing(votes[:, kept], activations[:, kept], **options).capsules
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
def test_gradients(name, activation):
    case, beta_a, beta_u = em_case(GRADIENTS[name])
    routing = partial(em_routing, activation=activation, eps_var=0.1, lambda_schedule=0.02)
    assert gradcheck(routing, case, beta_a=beta_a, beta_u=beta_u)


@pytest.mark.parametrize("name", ["plain", "mask", "conv global", "conv position"])
def test_gradients_of_damped_means(name):
    case, beta_a, beta_u = em_case(GRADIENTS[name])
    routing = partial(em_routing, damping=0.3, eps_var=0.1, lambda_schedule=0.02)
    assert gradcheck(routing, case, beta_a=beta_a, beta_u=beta_u)


def test_detached_couplings_are_constants():
    """The gradient is that of one M-step with the couplings that were found."""
    votes, activations = torch.randn(2, 6, 3, 4, dtype=torch.float64), torch.rand(2, 6, dtype=torch.float64)
    votes.requires_grad_()
    betas = {"beta_a": 0.3, "beta_u": -0.2, "cost_scale": "paper"}  # which does not depend on the first couplings
    free, detached = (
        em_routing(votes, activations, **betas, detach_couplings=detach_couplings) for detach_couplings in (False, True)
    )
    assert all(torch.equal(*parts) for parts in zip(free.capsules, detached.capsules, strict=True))
    last = em_routing(
        votes, activations, **betas, num_iterations=1, lambda_schedule=LAMBDAS[-1], initial_logits=free.coupling.log()
    )
    by_result = [
        torch.autograd.grad(result.capsules.poses.sum() + result.capsules.activations.square().sum(), votes)[0]
        for result in (free, detached, last)
    ]
    torch.testing.assert_close(by_result[1], by_result[2])
    assert (by_result[0] - by_result[1]).abs().max() > 1e-3


def test_detached_old_means_are_constants():
    """Only the last M-step carries gradients, and of its damped mean only the new share."""
    votes, activations = randn(2, 6, 3, 4).requires_grad_(), rand(2, 6)
    betas = {"beta_a": 0.3, "beta_u": -0.2}
    damped = em_routing(votes, activations, **betas, detach_couplings=True, damping=0.25)
    shares = damped.coupling * activations.unsqueeze(-1)
    shares = shares / shares.sum(1, keepdim=True)
    seed = randn(2, 3, 4)
    (gradient,) = torch.autograd.grad(damped.capsules.poses, votes, seed)
    torch.testing.assert_close(gradient, 0.75 * shares.unsqueeze(-1) * seed.unsqueeze(1))


def test_gradients_at_the_scale_of_the_paper():
    case, beta_a, beta_u = em_case(lambda: tensor_case((1, 5, 3, 2)))
    assert gradcheck(partial(em_routing, cost_scale="paper", eps_var=0.1), case, beta_a=beta_a, beta_u=beta_u)


@pytest.mark.parametrize("option", ["leaky", "amend", "partial", "squash_k", "alpha", "hard"])
def test_options_of_other_routings_are_refused(option):
    with pytest.raises(TypeError, match=option):
        em_routing(randn(1, 3, 2, 4), rand(1, 3), beta_a=0.0, beta_u=0.0, **{option: 1.0})


def test_messages():
    votes, activations = randn(1, 3, 2, 4), rand(1, 3)
    betas = {"beta_a": 0.0, "beta_u": 0.0}
    with pytest.raises(ValueError, match=r"give activations \(B, I\), ones if unknown"):
        em_routing(votes, **betas)
    with pytest.raises(
        ValueError, match=r"beta_u must be a number or one per parent type, \(J,\) = \(2,\), got \(3,\)"
    ):
        em_routing(votes, activations, beta_a=0.0, beta_u=randn(3))
    with pytest.raises(TypeError, match="beta_a has dtype torch.float32 but votes has torch.float64; convert"):
        em_routing(votes, activations, beta_a=torch.zeros(2), beta_u=0.0)
    with pytest.raises(ValueError, match="lambda_schedule needs one number for each of the 3 iterations, got 2"):
        em_routing(votes, activations, **betas, lambda_schedule=[0.1, 0.2])
    with pytest.raises(ValueError, match="eps_var must be a positive finite number, got 0"):
        em_routing(votes, activations, **betas, eps_var=0)
    with pytest.raises(
        ValueError, match="activation must be one of 'mdl', 'mixing', 'entropy', got 'mix'; did you mean"
    ):
        em_routing(votes, activations, **betas, activation="mix")
    for damping in (1, -0.1, float("nan"), True, "0.1"):
        with pytest.raises(
            ValueError, match=r"damping must be a number in \[0, 1\), the share of the old mean, 0 for none, "
        ):
            em_routing(votes, activations, **betas, damping=damping)
    with pytest.raises(ValueError, match="cost_scale must be one of 'mass', 'paper', got 'size'"):
        em_routing(votes, activations, **betas, cost_scale="size")
