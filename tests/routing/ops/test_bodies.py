"""A second device is new files and one registration: a body written here, in eager torch, does the work of a family."""

import pytest
import torch

from support.cases import dense_case
from torchcaps.capsules import squash
from torchcaps.routing import dynamic_routing, em_routing, plan, uniform_routing, why_not
from torchcaps.routing.ops import bodies
from torchcaps.routing.ops.bodies import register_body
from torchcaps.routing.ops.operator import flatten
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxInputs, SoftmaxOptions
from torchcaps.routing.ops.votes import lower


class OneSum:
    """Softmax routings of one weighted sum of dense votes; it keeps the sums, in a shape of its own."""

    def __init__(self):
        self.calls = []

    def why_not(self, problem, options):
        return None if options.num_sums == 1 else f"it sums once, not {options.num_sums} times"

    def room(self, inputs, keep_state):
        votes = inputs.votes
        return votes.poses.new_empty(votes.num_parents, votes.poses.shape[0], votes.vote_size * keep_state)

    def forward(self, inputs, outputs, state):
        self.calls.append("forward")
        votes = inputs.votes
        sums_BJD = (torch.einsum("bik,ijkd->bjd", votes.poses, votes.weight) + votes.bias.sum(0)) / votes.num_parents
        outputs[0].copy_(squash(sums_BJD).unsqueeze(1))
        if state.numel():
            state.copy_(sums_BJD.transpose(0, 1))

    def backward(self, inputs, state, arriving, gradients):
        """Of v = s |s| / (1 + |s|^2)."""
        self.calls.append(f"backward {' '.join(gradients)}")
        sums_BJD, given_BJD = state.transpose(0, 1), arriving[0].squeeze(1)
        norm = sums_BJD.norm(dim=-1, keepdim=True)
        along = (given_BJD * sums_BJD).sum(-1, keepdim=True) / norm
        found_BJD = given_BJD * norm / (1 + norm**2) + sums_BJD * along * (1 - norm**2) / (1 + norm**2) ** 2
        found_BJD = found_BJD / inputs.votes.num_parents
        if "poses" in gradients:
            gradients["poses"].copy_(torch.einsum("bjd,ijkd->bik", found_BJD, inputs.votes.weight))
        if "weight" in gradients:
            gradients["weight"].copy_(torch.einsum("bjd,bik->ijkd", found_BJD, inputs.votes.poses))
        if "bias" in gradients:
            gradients["bias"].copy_(found_BJD.sum(0))

    def couplings(self, inputs, state, iteration, outputs):
        self.calls.append(f"couplings {iteration}")
        assert state.numel()
        outputs[0].fill_(1 / inputs.votes.num_parents)


@pytest.fixture
def toy(monkeypatch):
    """The only body there is."""
    monkeypatch.setattr(bodies, "_bodies", {})
    toy = OneSum()
    register_body("softmax", "cpu", toy)
    return toy


def test_values_gradients_and_couplings_are_those_of_the_body(toy):
    case = dense_case()
    leaves = {name: leaf.requires_grad_() for name, leaf in case.leaves.items() if name != "activations"}
    found, expected = (
        uniform_routing(case.describe(**leaves, activations=None), backend=backend)
        for backend in ("fused", "reference")
    )
    torch.testing.assert_close(found.capsules, expected.capsules)
    gradients = [torch.autograd.grad(x.capsules.poses.sin().sum(), list(leaves.values())) for x in (found, expected)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(found.coupling, expected.coupling)
    assert toy.calls == ["forward", "backward poses weight bias", "couplings 0"]


def test_a_state_that_was_not_kept_is_made_when_it_is_asked_for(toy):
    with torch.no_grad():
        result = uniform_routing(dense_case().votes(), backend="fused")
    assert toy.calls == ["forward"]
    assert result.coupling.unique().item() == pytest.approx(1 / 3)
    assert toy.calls == ["forward", "forward", "couplings 0"]


def test_nothing_is_differentiated_without_a_state(toy):
    case = dense_case()
    votes = lower(case.votes(poses=case.leaves["poses"].requires_grad_()))
    poses, state = SOFTMAX.forward(*flatten(SoftmaxInputs(votes, None, None, SoftmaxOptions(0, 1))), False)
    assert state.numel() == 0
    with pytest.raises(RuntimeError, match="keep_state=False"):
        poses.sum().backward()


def test_the_body_refuses_in_its_own_words(toy):
    votes = dense_case().votes()
    assert plan(uniform_routing, votes).chosen == "fused"
    assert why_not("fused", dynamic_routing, votes) == "it sums once, not 3 times"
    reason = why_not("fused", em_routing, votes, beta_a=0.0, beta_u=0.0)
    assert reason == "it has kernels for votes on no device, these are on cpu"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_its_operators_are_sound(toy):
    votes = lower(dense_case().votes())._replace(activations=None)
    leaves = {name: getattr(votes, name).detach().clone().requires_grad_() for name in ("poses", "weight", "bias")}
    votes = votes._replace(**leaves)
    torch.library.opcheck(SOFTMAX.forward, (*flatten(SoftmaxInputs(votes, None, None, SoftmaxOptions(0, 1))), True))


def test_another_device_asks_its_own_body_for_room(monkeypatch):
    """The device "meta" computes shapes alone: its operators run, on tables that lie there too."""
    monkeypatch.setattr(bodies, "_bodies", bodies._bodies.copy())
    case = dense_case()
    votes = case.describe(**{name: leaf.to("meta") for name, leaf in case.leaves.items()})
    assert "kernels for votes on cpu, these are on meta" in why_not("fused", uniform_routing, votes)
    register_body("softmax", "meta", OneSum())
    assert plan(uniform_routing, votes).chosen == "fused"
    result = uniform_routing(votes, backend="fused")
    assert result.capsules.poses.device.type == "meta"
    assert result.capsules.poses.shape == uniform_routing(case.votes()).capsules.poses.shape
    inputs = SoftmaxInputs(lower(votes), None, None, SoftmaxOptions(0, 1))
    assert SOFTMAX.forward(*flatten(inputs), True)[-1].shape == (3, *case.leaves["poses"].shape[:1], 4)


def test_a_body_is_registered_once(toy):
    with pytest.raises(ValueError, match="the softmax kernels of 'cpu' are registered already"):
        register_body("softmax", "cpu", OneSum())
