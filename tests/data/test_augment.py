"""Augmentations against a loop over images and pixels."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from torchcaps.data import Augmentation
from torchcaps.data.augment import warp

ALL = Augmentation(shift=2, rotation=20.0, scale=0.2, shear=0.1, brightness=0.2, contrast=0.5, crop=(8, 9))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixel(image, row, column):
    """The value of a (H, W) image at a whole place; 0 outside."""
    height, width = image.shape
    return image[row, column].item() if 0 <= row < height and 0 <= column < width else 0.0


def loop(augmentation: Augmentation, images: torch.Tensor, seed: int) -> torch.Tensor:
    """The docstring of Augmentation, one pixel at a time, in double precision."""
    source, results = generator(seed), []
    for image in images.double():
        is_mirrored = augmentation.mirror is not None
        down, right, rotation, scale, shear, crop_row, crop_column, contrast, brightness, *mirror = torch.rand(
            9 + is_mirrored, generator=source
        ).tolist()
        if mirror and mirror[0] < 0.5:
            image = torch.stack([torch.stack([row.flip(0) for row in plane]) for plane in image])
            image = torch.stack(list(image)[::-1]) if augmentation.mirror == "stereo" else image
        num_shifts = 2 * augmentation.shift + 1
        down, right = int(down * num_shifts) - augmentation.shift, int(right * num_shifts) - augmentation.shift
        angle = math.radians((2 * rotation - 1) * augmentation.rotation)
        size = (1 + augmentation.scale) ** (2 * scale - 1)
        slant = (2 * shear - 1) * augmentation.shear
        turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
        forward = size * turn @ torch.tensor([[1.0, slant], [0.0, 1.0]]).double()
        height, width = image.shape[1:]
        moved = torch.zeros_like(image)
        for row in range(height):
            for column in range(width):
                there = torch.tensor([column - (width - 1) / 2 - right, row - (height - 1) / 2 - down]).double()
                x, y = torch.linalg.solve(forward, there).tolist()
                x, y = x + (width - 1) / 2, y + (height - 1) / 2
                left, top = math.floor(x), math.floor(y)
                for channel, plane in enumerate(image):
                    moved[channel, row, column] = sum(
                        (1 - abs(x - c)) * (1 - abs(y - r)) * pixel(plane, r, c)
                        for r in (top, top + 1)
                        for c in (left, left + 1)
                    )
        if augmentation.crop is not None:
            crop_height, crop_width = augmentation.crop
            first_row = int(crop_row * (height - crop_height + 1))
            first_column = int(crop_column * (width - crop_width + 1))
            moved = moved[:, first_row : first_row + crop_height, first_column : first_column + crop_width]
        mean = moved.mean((1, 2), keepdim=True)
        moved = mean + (1 + (2 * contrast - 1) * augmentation.contrast) * (moved - mean)
        results.append(moved + (2 * brightness - 1) * augmentation.brightness)
    return torch.stack(results)


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(shift=3),
        Augmentation(rotation=90.0),
        Augmentation(scale=0.5),
        Augmentation(shear=0.4),
        Augmentation(crop=(5, 12)),
        Augmentation(contrast=0.8),
        Augmentation(brightness=0.3),
        ALL,
        replace(ALL, mirror="plain"),
        replace(ALL, mirror="stereo"),
    ],
    ids=["shift", "rotation", "scale", "shear", "crop", "contrast", "brightness", "all", "plain", "stereo"],
)
def test_a_batch_is_the_loop_over_its_images(augmentation):
    images = torch.rand(5, 2, 11, 13)
    found = augmentation(images.double(), generator(3))
    torch.testing.assert_close(found, loop(augmentation, images, 3), rtol=0, atol=2e-5)
    assert found.shape != images.shape or all(not torch.allclose(a, b) for a, b in zip(found, images.double()))


def test_batches_of_any_size_draw_the_same_numbers():
    images = torch.rand(40, 1, 12, 12)
    whole = ALL(images, generator())
    source = generator()
    parts = torch.cat([ALL(part, source) for part in images.split((1, 16, 3, 20))])
    assert torch.equal(whole, parts)


def test_the_state_of_the_generator_decides():
    images, source = torch.rand(6, 1, 12, 12), generator()
    state = source.get_state()
    first, second = ALL(images, source), ALL(images, source)
    assert not torch.equal(first, second)
    source.set_state(state)
    torch.manual_seed(99)  # the global generator has no say
    assert torch.equal(ALL(images, source), first)


def test_images_of_a_batch_differ_and_the_input_is_left_alone():
    images = torch.rand(1, 1, 12, 12).repeat(4, 1, 1, 1)
    before = images.clone()
    found = ALL(images, generator())
    assert all(not torch.equal(found[0], found[n]) for n in range(1, 4))
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_strength_is_the_identity(dtype):
    images = torch.randn(3, 2, 9, 10, dtype=dtype)
    assert torch.equal(Augmentation()(images, generator()), images)
    assert torch.equal(Augmentation(crop=(9, 10))(images, generator()), images)
    assert ALL(images, generator()).dtype == dtype


def test_one_option_does_not_disturb_another():
    images = torch.rand(8, 1, 12, 12)
    shifted = Augmentation(shift=2)(images, generator())
    brighter = Augmentation(shift=2, brightness=0.5)(images, generator())
    amount = (brighter - shifted).flatten(1)
    torch.testing.assert_close(amount, amount[:, :1].expand_as(amount), rtol=0, atol=1e-6)
    assert amount[:, 0].abs().max() > 0.1


@pytest.mark.parametrize(("mirror", "first", "second"), [("plain", 2, 12), ("stereo", 12, 2)])
def test_half_of_the_images_are_mirrored(mirror, first, second):
    """A mirrored pair of cameras changes places, so that what is near stays near."""
    images = torch.tensor([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]).view(1, 2, 1, 3).expand(4000, -1, -1, -1)
    found = Augmentation(mirror=mirror)(images, generator())
    values, counts = found[:, :, 0, 0].unique(dim=0, return_counts=True)
    assert sorted(values.tolist()) == sorted([[0, 10], [first, second]])
    assert counts.min() > 1850  # 2000 expected, deviation 31.6


def test_shifts_move_whole_pixels_evenly_within_their_range():
    images = torch.zeros(4000, 1, 9, 9)
    images[:, 0, 4, 4] = 0.7
    found = Augmentation(shift=2)(images, generator())
    places = (found[:, 0] == 0.7).nonzero()
    assert len(places) == 4000
    counts = torch.zeros(9, 9)
    counts.index_put_((places[:, 1], places[:, 2]), torch.ones(4000), accumulate=True)
    assert counts[2:7, 2:7].sum() == 4000
    assert counts[2:7, 2:7].min() > 100  # 160 expected, deviation 12.4
    assert counts[2:7, 2:7].max() < 220


def test_crops_reach_every_place():
    images = torch.arange(20.0).view(1, 1, 4, 5).expand(2000, -1, -1, -1)
    first = Augmentation(crop=(3, 3))(images, generator())[:, 0, 0, 0]
    values, counts = first.unique(return_counts=True)
    assert values.tolist() == [0, 1, 2, 5, 6, 7]
    assert counts.min() > 260  # 333 expected, deviation 16.7


def test_a_shift_beyond_the_image_leaves_nothing():
    found = Augmentation(shift=50)(torch.ones(50, 1, 3, 3), generator())
    assert (found.flatten(1).sum(1) == 0).any()


def test_a_quarter_turn_with_positive_angle_turns_columns_into_rows():
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, 2, 4] = 1  # right of the centre
    inverse = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])  # R(-90 degrees)
    found = warp(image, inverse, torch.tensor([0]), torch.tensor([0]))
    assert found[0, 0, 4, 2].item() == pytest.approx(1, abs=1e-6)  # below it: rows grow downwards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shift": -1}, "shift must be at least 0"),
        ({"shift": 1.5}, "shift must be an integer"),
        ({"rotation": -3.0}, "rotation must be a finite number of at least 0, got -3.0"),
        ({"scale": math.inf}, "scale must be a finite number"),
        ({"shear": math.nan}, "shear must be a finite number"),
        ({"brightness": "much"}, "brightness must be a finite number"),
        ({"contrast": 1.5}, "contrast must be at most 1"),
        ({"crop": (0, 5)}, "crop height must be at least 1"),
        ({"mirror": "upside down"}, "mirror must be one of"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Augmentation(**options)


def test_wrong_images_are_refused():
    with pytest.raises(ValueError, match=r"floating point of shape \(B, C, H, W\), got torch.uint8"):
        ALL(torch.zeros(1, 1, 12, 12, dtype=torch.uint8), generator())
    with pytest.raises(ValueError, match="got torch.float32 of"):
        ALL(torch.zeros(1, 12, 12), generator())
    with pytest.raises(ValueError, match=r"a crop of \(8, 9\) does not fit into images of \(8, 8\)"):
        ALL(torch.zeros(1, 1, 8, 8), generator())


def test_importing_data_does_not_import_torch():
    code = "import sys, torchcaps.data; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_pictures_cost_little_beside_a_training_step():
    """smallNORB's preparation and augmentation of a batch against a step of the small matrix model: below 5 %."""
    from time import perf_counter

    from torchcaps.data import ImageSet
    from torchcaps.inputs.images import Preprocessing
    from torchcaps.losses import spread_loss
    from torchcaps.models import create_model
    from torchcaps.training.batches import Batches

    def seconds(function, num):
        times = []
        for _ in range(num):
            start = perf_counter()
            function()
            times.append(perf_counter() - start)
        return sorted(times)[num // 2]

    raw = torch.randint(0, 256, (256, 2, 96, 96), dtype=torch.uint8).permute(0, 2, 3, 1).numpy()
    labels = (torch.arange(256) % 5).numpy()
    data = ImageSet(images=raw, labels=labels, class_names=tuple("abcde"))
    preprocessing = Preprocessing(image_size=(48, 48), channels=2, scaling="standardise", crop=(32, 32))
    augmentation = Augmentation(crop=(32, 32), brightness=0.2, contrast=0.5)
    batches = Batches(data, preprocessing, augmentation=augmentation, batch_size=64)
    order = batches.order(0)
    model = create_model("matrix-capsnet-small", image_shape=(2, 32, 32), num_classes=5)
    images, targets = batches.read(batches.indices(order, 0), slice(0, 64), epoch=0)
    assert images.shape == (64, 2, 32, 32)

    def step():
        spread_loss(model(images).scores, targets, margin=0.5).mean().backward()

    reading = seconds(lambda: batches.read(batches.indices(order, 1), slice(0, 64), epoch=0, step=1), 15)
    assert reading < 0.05 * seconds(step, 5)
