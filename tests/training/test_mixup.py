"""Mixup: what is mixed, who pays for it, and that it does not matter who reads which part."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchcaps.data import Augmentation, ImageSet
from torchcaps.models import ModelOutput, create_model
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.batches import Batches
from torchcaps.training.mixup import Mixture, read_mixture

CONFIG = TrainingConfig(epochs=1, batch_size=5, mixup=0.3, ema=None)


def images(num=12):
    draws = np.random.default_rng(0)
    pictures = draws.integers(0, 256, (num, 28, 28), np.uint8)
    return ImageSet(images=pictures, labels=np.arange(num) % 3, class_names=("a", "b", "c"))


def model(**options):
    torch.manual_seed(0)
    return create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=3, **({"reconstruct": False} | options))


@pytest.fixture
def batches():
    network = model()
    return Batches(images(), network.preprocessing, batch_size=6, augmentation=Augmentation(shift=2), seed=4)


def read(batches, part=slice(0, 6), mixup: float | None = 0.5, step=1):
    return read_mixture(batches, batches.indices(batches.order(2), step), part, epoch=2, step=step, mixup=mixup)


def test_each_example_is_mixed_with_its_mirror_image(batches):
    plain, mixed = read(batches, mixup=None), read(batches)
    assert plain.others is None
    assert plain.share == 1
    assert 0.5 <= mixed.share < 1
    assert mixed.targets.equal(plain.targets)
    assert mixed.others.equal(plain.targets.flip(0))
    assert not mixed.inputs.equal(plain.inputs)
    others, _ = batches.read(batches.indices(batches.order(2), 1).flip(0), slice(0, 6), epoch=2, step=1)
    torch.testing.assert_close(mixed.inputs, mixed.share * plain.inputs + (1 - mixed.share) * others)


def test_parts_of_a_batch_are_mixed_as_the_whole(batches):
    whole, parts = read(batches), [read(batches, part) for part in (slice(0, 2), slice(2, 6))]
    assert {part.share for part in parts} == {whole.share}
    assert torch.cat([part.inputs for part in parts]).equal(whole.inputs)
    assert torch.cat([part.others for part in parts]).equal(whole.others)
    assert read(batches, step=0).share != whole.share


def test_both_pay_by_their_shares():
    mixture = Mixture(torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([2, 2]), 0.75)
    output = ModelOutput(torch.tensor([[0.1, 0.2, 0.4], [0.5, 0.6, 0.8]]))
    losses = mixture.losses(lambda output, _, targets, __: output.scores[torch.arange(2), targets], output, 0.0)
    torch.testing.assert_close(losses, torch.tensor([0.75 * 0.1 + 0.25 * 0.4, 0.75 * 0.6 + 0.25 * 0.8]))


def test_training_takes_it_and_repeats():
    weights = []
    for config in (CONFIG, CONFIG, replace(CONFIG, mixup=None)):
        network = model()
        fit(network, images(), config=config)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def test_refusals():
    with pytest.raises(ValueError, match="mixup must be a positive finite number"):
        TrainingConfig(mixup=0.0)
    with pytest.raises(ValueError, match="mixup shows two pictures in one, and a decoder draws one"):
        fit(model(reconstruct=True), images(), config=CONFIG)
    texts = Batches.__new__(Batches)
    texts.read = lambda *_, **__: (torch.ones(2, 3, dtype=torch.long), torch.zeros(2))
    with pytest.raises(ValueError, match="numbers of words cannot be added"):
        read_mixture(texts, torch.arange(2), slice(0, 2), epoch=0, step=0, mixup=0.2)
