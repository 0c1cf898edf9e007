"""No call waits for its device: on tensors without memory nothing can be read back, and all launches are made."""

from collections import Counter

import pytest
import torch
from torch.utils._pytree import tree_leaves

from torchcaps.capsules import Capsules
from torchcaps.gpu import em, layer, softmax, vote_gradients
from torchcaps.routing.competition import KINDS
from torchcaps.routing.ops.em import EM, EmInputs, EmKernelOptions, EmMapping
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxAlgorithm, SoftmaxInputs, SoftmaxOptions
from torchcaps.routing.ops.votes import lower
from torchcaps.votes import ConvVotes


@pytest.fixture
def launches(monkeypatch):
    """What is started, and never runs. A graph can replay it: numbers that follow from sizes and options alone, and
    memory of the device that torch gave."""
    started = Counter()

    def start(kernel, grid, *arguments, **options):
        assert all(isinstance(size, int) for size in grid)
        assert all(map(can_be_replayed, tree_leaves(arguments)))
        started.update([kernel.__name__])

    for module in (softmax, em, layer, vote_gradients):
        monkeypatch.setattr(module, "launch", start)
    return started


def can_be_replayed(value):
    return value is None or isinstance(value, int | float) or (type(value) is torch.Tensor and value.is_meta)


def votes_of(kind):
    """Two windows of three slots, on the device "meta"."""
    poses, activations = torch.zeros(2, 6, 1, 3), torch.zeros(2, 6, 1)
    masks = {"mask": torch.ones(2, 6, 1, dtype=torch.bool), "window_mask": torch.ones(2, 2, dtype=torch.bool)}
    weight, bias = torch.zeros(3, 1, 2, 3, 4), torch.zeros(3, 1, 2, 4)
    votes = ConvVotes(Capsules(poses, activations), weight, kernel_size=3, stride=2, bias=bias, **masks)
    return lower(votes, windows_compete=kind != 0)


def check(operator, body, inputs, launches):
    state = body.room(inputs, True)
    outputs = [torch.zeros(shape(inputs)) for shape in operator.outputs.values()]
    body.forward(inputs, tuple(outputs), state)
    assert launches["moments"] == launches["partition"] + launches["extremes"] == 3
    given = inputs.votes._asdict() | inputs._asdict()
    gradients = {name: torch.empty_like(given[name]) for name in operator.places if given[name] is not None}
    assert {"poses", "weight", "bias", "activations", "initial_logits"} <= gradients.keys()
    body.backward(inputs, state, tuple(torch.zeros_like(output) for output in outputs), gradients)
    assert launches["gradients"] == launches["weight_gradients"] == launches["responses"] == 3
    body.couplings(inputs, state, 2, tuple(torch.zeros(shape(inputs)) for shape in operator.told.values()))
    assert launches["couplings"] == 1


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
@pytest.mark.parametrize("algorithm", SoftmaxAlgorithm)
def test_softmax(algorithm, kind, launches):
    with torch.device("meta"):
        options = SoftmaxOptions(algorithm, 3, alphas=(0.3, 0.2, 0.1), competition=kind, leaky=True)
        inputs = SoftmaxInputs(votes_of(kind), torch.ones(2, dtype=torch.bool), torch.zeros(2, 2, 3, 2), options)
        check(SOFTMAX, softmax.TritonSoftmax(), inputs, launches)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
@pytest.mark.parametrize("mapping", EmMapping)
def test_em(mapping, kind, launches):
    with torch.device("meta"):
        prior = (1.0, 1.0, 1.0, 5.0)
        options = EmKernelOptions(mapping, kind, (0.1,) * 3, (1.0,) * 3, damping=0.1, scale_by_mass=True, prior=prior)
        betas = dict.fromkeys(("beta_a", "beta_u"), torch.zeros(2)) | {"worth": torch.zeros(3, 2)}
        given = {"threshold": torch.zeros(2, 2, 2), "initial_logits": torch.zeros(2, 2, 3, 2), "options": options}
        inputs = EmInputs(votes_of(kind), **betas, **given)
        check(EM, em.TritonEm(), inputs, launches)
