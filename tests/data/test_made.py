"""Sets made from digits against a loop over examples and pixels."""

import math
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from torchcaps.data import ImageSet, load_data, split_validation
from torchcaps.data.made import NUM_DRAWS, MadeSet, Maker, distort, make_sets, move, overlap, put_beside
from torchcaps.inputs.images import Preprocessing
from torchcaps.models import create_model
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.batches import Batches

SIZES = {"multimnist": (36, 36), "side-by-side": (28, 56), "affnist": (40, 40)}


@pytest.fixture(autouse=True)
def embedded(monkeypatch):
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)


def some_digits(num: int = 60, *, seed: int = 0, num_classes: int = 10) -> ImageSet:
    random = np.random.default_rng(seed)
    images = random.integers(1, 256, (num, 28, 28)).astype(np.uint8)
    labels = random.permutation(np.arange(num) % num_classes)
    return ImageSet(images=images, labels=labels, class_names=tuple("0123456789"))


def uniform(num: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((num, NUM_DRAWS))


def canvas(digit: np.ndarray, row: int, column: int, size: tuple[int, int]) -> np.ndarray:
    """A digit on black, its first pixel at (row, column)."""
    result = np.zeros(size, dtype=np.uint8)
    result[row : row + 28, column : column + 28] = digit
    return result


def test_overlapping_digits_are_the_maximum_of_two_shifted_ones():
    first, second, draws = some_digits(50).images, some_digits(50, seed=1).images, uniform(50)
    made = overlap((first, second), draws)
    for index, (_, *places) in enumerate(draws[:, :5]):
        a, b, c, d = (int(9 * place) for place in places)
        expected = np.maximum(canvas(first[index], a, b, (36, 36)), canvas(second[index], c, d, (36, 36)))
        assert np.array_equal(made[index], expected)
    shifts = (9 * draws[:, 1:5]).astype(int)
    assert set(shifts.ravel()) == set(range(9))  # the loop has met all places


def test_digits_side_by_side_and_digits_moved():
    first, second, draws = some_digits(20).images, some_digits(20, seed=1).images, uniform(20)
    assert np.array_equal(put_beside((first, second), draws)[:, :, :28], first)
    assert np.array_equal(put_beside((first, second), draws)[:, :, 28:], second)
    for image, digit, draw in zip(move((first,), draws), first, draws, strict=True):
        assert np.array_equal(image, canvas(digit, int(13 * draw[1]), int(13 * draw[2]), (40, 40)))


def test_distorted_digits_are_where_the_formula_puts_them():
    draws = uniform(200)
    place = np.array([7.0, -4.0])  # (column, row) of a spot, seen from the centre
    digits = np.zeros((200, 28, 28), dtype=np.uint8)
    spread = np.add.outer((np.arange(28) - 13.5 - place[1]) ** 2, (np.arange(28) - 13.5 - place[0]) ** 2)
    digits[:] = (255 * np.exp(-spread / 8)).astype(np.uint8)
    for image, draw in zip(distort((digits,), draws), draws, strict=True):
        angle, shear = math.radians(20 * (2 * draw[3] - 1)), 0.2 * (2 * draw[4] - 1)
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        stretch = np.diag([0.8 + 0.4 * draw[5], 0.8 + 0.4 * draw[6]])
        shift = np.array([int(13 * draw[2]) - 6, int(13 * draw[1]) - 6])
        expected = turn @ [[1, shear], [0, 1]] @ stretch @ place + shift
        weight = image.astype(float) / image.sum(dtype=float)
        found = [(weight.sum(axis) * (np.arange(40) - 19.5)).sum() for axis in (0, 1)]
        assert np.allclose(found, expected, atol=0.15)


@pytest.mark.parametrize("name", SIZES)
def test_sets_by_name(name):
    data = load_data(name)
    assert isinstance(data.train, MadeSet)
    assert data.train.images.shape == (5000, *SIZES[name])
    assert data.test.images.shape == (1000, *SIZES[name])
    assert data.train.is_multi_label == (name != "affnist")
    if name != "affnist":
        assert set(data.train.labels.sum(1)) == {2}
        assert (data.test.labels.sum(0) > 100).all()
    again = load_data(name)
    assert np.array_equal(again.train.images, data.train.images)
    assert np.array_equal(again.test.images, data.test.images)


def test_made_from_mnist_where_it_is_at_hand(monkeypatch, tmp_path):
    digits, folder = some_digits(30), tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (30, 28, 28))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + digits.images.tobytes())
        header = bytes([0, 0, 8, 1]) + (30).to_bytes(4, "big")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + digits.labels.astype(np.uint8).tobytes())
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    assert len(load_data("multimnist").train) == 30
    assert np.array_equal(load_data("side-by-side").train.images[:, :, :28], digits.images)


def test_first_digit_is_the_own_one_and_the_partner_any_of_another_class():
    digits = some_digits(40, num_classes=4)
    made, _ = make_sets("side-by-side", digits, None)
    partners = {index: set() for index in range(40)}
    for epoch in range(400):
        images, labels = made.read(np.arange(40), epoch)
        assert np.array_equal(images[:, :, :28], digits.images)
        for index in range(40):
            partner = int(np.flatnonzero((digits.images[:, 0] == images[index, 0, 28:]).all(1))[0])
            partners[index].add(partner)
            assert set(np.flatnonzero(labels[index])) == {digits.labels[index], digits.labels[partner]}
    for index, found in partners.items():
        assert found == set(np.flatnonzero(digits.labels != digits.labels[index]))


def test_digits_of_a_pair_can_be_seen_apart():
    digits = some_digits(40)
    for compose, put_together in ((overlap, np.maximum), (put_beside, np.add)):
        maker = Maker(digits=digits, compose=compose, num_digits=2, seed=3)
        numbers = np.array([5, 31, 2])
        (images, classes), (alone, labels) = maker(numbers, 4), maker.apart(numbers, 4)
        assert np.array_equal(put_together(alone[:, 0], alone[:, 1]), images)
        assert np.array_equal(labels[:, 0], digits.labels[numbers])
        assert all(set(pair) == set(np.flatnonzero(row)) for pair, row in zip(labels, classes, strict=True))


@pytest.mark.parametrize("name", SIZES)
def test_examples_depend_on_seed_epoch_and_number_alone(name):
    made, test = make_sets(name, some_digits(), some_digits())
    other, _ = make_sets(name, some_digits(), None, seed=1)
    whole, labels = made.read(np.arange(60), 3)
    part, part_labels = made.read([41, 7], 3)
    assert np.array_equal(part, whole[[41, 7]])
    assert np.array_equal(part_labels, labels[[41, 7]])
    assert np.array_equal(made.read(np.arange(60), 0)[0], made.images)
    assert not np.array_equal(whole, made.images)
    assert not np.array_equal(other.images, made.images)
    assert not np.array_equal(test.images, made.images)


def test_validation_never_meets_a_digit_of_training():
    train, validation = split_validation(make_sets("side-by-side", some_digits(200), None)[0], 0.2, seed=0)
    assert len(train) + len(validation) == 200
    seen = {part: set() for part in ("train", "validation")}
    for name, part in (("train", train), ("validation", validation)):
        for epoch in range(3):
            images, _ = part.read(np.arange(len(part)), epoch)
            seen[name] |= {half.tobytes() for image in images for half in (image[:, :28], image[:, 28:])}
    assert not seen["train"] & seen["validation"]


def test_training_sees_new_examples_in_every_epoch_and_validation_the_same():
    made, _ = make_sets("multimnist", some_digits(), None)
    batches = Batches(made, Preprocessing(image_size=(36, 36)), batch_size=8)
    indices = torch.arange(8)
    first, _ = batches.read(indices, slice(0, 8), epoch=0)
    second, targets = batches.read(indices, slice(0, 8), epoch=1)
    assert not torch.equal(first, second)
    assert torch.equal(targets, torch.from_numpy(made.read(range(8), 1)[1]))
    assert torch.equal(batches.read(indices, slice(3, 6), epoch=1)[0], second[3:6])
    assert torch.equal(batches.read(indices, slice(0, 8))[0], first)


def test_a_model_learns_two_digits():
    digits = load_data("digits").train
    few = digits.subset(np.flatnonzero(digits.labels < 3)[:300])
    few = ImageSet(images=few.images[:, ::2, ::2], labels=few.labels, class_names=("0", "1", "2"))
    made = MadeSet.of(Maker(digits=few, compose=put_beside, num_digits=2, seed=0))
    torch.manual_seed(0)
    model = create_model("cnn-small", image_shape=(1, 14, 28), num_classes=3, multi_label=True)
    model.preprocessing = Preprocessing(image_size=(14, 28))
    progress = fit(model, *split_validation(made, 0.2, 0), TrainingConfig(epochs=8))
    assert progress.best_figures["accuracy"] > 0.8  # all labels right; one pair of three by chance


def test_what_cannot_be_made_is_refused():
    one_class = ImageSet(images=np.ones((3, 28, 28), np.uint8), labels=np.zeros(3, np.int64), class_names=("0", "1"))
    with pytest.raises(ValueError, match="at least two classes"):
        make_sets("multimnist", one_class, None)
    with pytest.raises(ValueError, match="grey images with one class each"):
        make_sets("affnist", make_sets("multimnist", some_digits(), None)[0], None)
    with pytest.raises(ValueError, match="did you mean 'multimnist'"):
        make_sets("multi-mnist", some_digits(), None)


def test_making_is_a_small_part_of_a_training_step():
    """Below 5 % of a step of CapsNet-Small, in one process and by turns."""
    made = load_data("multimnist").train
    batches = Batches(made, Preprocessing(image_size=(36, 36)), batch_size=64)
    model = create_model("capsnet-small", image_shape=(1, 36, 36), num_classes=10, multi_label=True)
    steps, makings = [], []
    for step in range(6):
        indices = np.arange(64 * step, 64 * (step + 1))
        images, targets = batches.read(torch.from_numpy(indices), slice(0, 64), epoch=1)
        start = time.thread_time()
        for _ in range(5):
            made.read(indices, 1)
        middle = time.thread_time()
        model(images, targets).scores.sum().backward()
        makings.append((middle - start) / 5)
        steps.append(time.thread_time() - middle)
    assert min(makings) < 0.05 * min(steps)


def test_importing_does_not_import_torch():
    code = "import sys, torchcaps.data.made; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
