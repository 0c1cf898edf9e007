"""Preprocessing against plain loops over images and pixels."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.inputs.images import NEIGHBOURHOOD, SCALINGS, Preprocessing


def raw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_bytes_become_fractions_channels_first():
    images = raw(3, 5, 7, 2)
    prepared = Preprocessing(image_size=(5, 7), channels=2)(images)
    assert prepared.dtype == torch.float32
    assert prepared.shape == (3, 2, 5, 7)
    for n, c, h, w in ((0, 0, 0, 0), (1, 1, 4, 2), (2, 0, 3, 6)):
        assert prepared[n, c, h, w].item() == pytest.approx(images[n, h, w, c] / 255, rel=1e-6)


def test_arrays_tensors_bytes_and_fractions_agree():
    images, preprocessing = raw(4, 28, 28), Preprocessing(scaling="standardise")
    expected = preprocessing(images)
    read_only = images.copy()
    read_only.setflags(write=False)
    for same in (torch.from_numpy(images), images[..., None], images / 255, torch.from_numpy(images) / 255, read_only):
        torch.testing.assert_close(preprocessing(same), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(preprocessing(images[::-1]), expected.flip(0))
    assert preprocessing(images[:0]).shape == (0, 1, 28, 28)
    assert Preprocessing(image_size=(20, 9))(images[:0]).shape == (0, 1, 20, 9)


def test_the_input_is_left_alone():
    images = torch.rand(2, 28, 28)
    before = images.clone()
    for scaling in SCALINGS:
        Preprocessing(scaling=scaling)(images)
    assert torch.equal(images, before)


def test_whole_fractions_of_a_size_are_means_of_blocks():
    images = raw(2, 6, 8)
    prepared = Preprocessing(image_size=(3, 2))(images)
    for n in range(2):
        for row in range(3):
            for column in range(2):
                block = images[n, 2 * row : 2 * row + 2, 4 * column : 4 * column + 4]
                assert prepared[n, 0, row, column].item() == pytest.approx(block.mean() / 255, rel=1e-5)


@pytest.mark.parametrize("size", [(17, 23), (64, 50), (40, 30)])
def test_other_sizes_are_interpolated_with_antialiasing(size):
    image = raw(40, 50)
    found = Preprocessing(image_size=size)(image[None])[0, 0].numpy()
    # Pillow's filter, on floating point, is the independent witness.
    picture = Image.fromarray(image.astype(np.float32) / 255).resize(size[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_allclose(found, np.asarray(picture), atol=1e-5)


def test_standardised_images_have_mean_zero_and_variance_one_over_all_channels():
    images = raw(5, 20, 20, 2)
    images[..., 1] //= 4
    prepared = Preprocessing(image_size=(10, 10), channels=2, scaling="standardise")(images)
    small = images.reshape(5, 10, 2, 10, 2, 2).mean((2, 4)) / 255
    for n in range(5):
        expected = (small[n] - small[n].mean()) / small[n].std()
        np.testing.assert_allclose(prepared[n].permute(1, 2, 0).numpy(), expected, atol=1e-4)
    assert prepared[:, 0].mean() > 0.5  # the channels keep their difference


def local_contrast(image: np.ndarray) -> np.ndarray:
    """(h, w, c), pixel after pixel: its difference from the mean around it over the deviation around it."""
    height, width, _ = image.shape

    def around(values: np.ndarray, row: int, column: int) -> np.ndarray:
        rows = np.exp(-(((np.arange(height) - row) / (NEIGHBOURHOOD * height)) ** 2) / 2)
        columns = np.exp(-(((np.arange(width) - column) / (NEIGHBOURHOOD * width)) ** 2) / 2)
        weights = np.outer(rows, columns)
        return (weights[..., None] * values).sum((0, 1)) / weights.sum()

    places = [(row, column) for row in range(height) for column in range(width)]
    means = np.array([around(image, *place) for place in places]).reshape(image.shape)
    squares = (image - means) ** 2
    local = np.array([around(squares, *place) for place in places]).reshape(image.shape)
    return (image - means) / np.sqrt(np.maximum(local, squares.mean()))


def test_local_contrast_is_that_of_a_pixel_with_its_neighbours():
    images = raw(3, 12, 9, 2)
    images[1, :6] //= 8  # half of it has little contrast
    prepared = Preprocessing(image_size=(12, 9), channels=2, scaling="local_contrast")(images)
    for found, image in zip(prepared, images, strict=True):
        np.testing.assert_allclose(found.permute(1, 2, 0).numpy(), local_contrast(image / 255), atol=1e-4)


def test_local_contrast_knows_neither_light_nor_shade():
    images = torch.rand(2, 24, 24, dtype=torch.float64).float()
    preprocessing = Preprocessing(image_size=(24, 24), scaling="local_contrast")
    torch.testing.assert_close(preprocessing(0.2 * images + 0.7), preprocessing(images), atol=1e-3, rtol=0)
    shade = torch.linspace(0.0, 0.5, 24)  # the light falls off from one side to the other
    difference = preprocessing(images / 2 + shade) - preprocessing(images)
    assert difference[..., 4:-4].abs().mean() < 0.05  # away from the borders
    plain = Preprocessing(image_size=(24, 24), scaling="standardise")
    assert (plain(images / 2 + shade) - plain(images))[..., 4:-4].abs().mean() > 0.3


@pytest.mark.parametrize("scaling", ["standardise", "local_contrast"])
def test_flat_places_have_finite_gradients(scaling):
    images = torch.zeros(3, 16, 16)
    images[0, 4:9, 4:9] = 1.0  # flat inside and outside
    images[1, 7, 7] = 1e-4
    images.requires_grad_()
    Preprocessing(image_size=(16, 16), scaling=scaling)(images).square().sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()


@pytest.mark.parametrize("scaling", ["standardise", "local_contrast"])
@pytest.mark.parametrize("size", [(28, 28), (14, 14), (19, 33)])
@pytest.mark.parametrize("level", [0, 1, 77, 255])
def test_a_constant_image_becomes_zero_and_leaves_the_others_alone(scaling, size, level):
    images = raw(3, 28, 28)
    preprocessing = Preprocessing(image_size=size, scaling=scaling)
    before = preprocessing(images)
    images[1] = level
    prepared = preprocessing(images)
    assert torch.equal(prepared[1], torch.zeros(1, *size))
    torch.testing.assert_close(prepared[::2], before[::2])


@pytest.mark.parametrize(("scaling", "least"), [("standardise", 50), ("local_contrast", 5)])
def test_one_level_of_one_pixel_is_not_constant(scaling, least):
    images = np.full((1, 96, 96), 200, dtype=np.uint8)
    images[0, 3, 4] = 201
    prepared = Preprocessing(image_size=(96, 96), scaling=scaling)(images)
    assert prepared[0, 0, 3, 4] > least
    assert prepared[0, 0, 3, 4] == prepared.abs().max()


def test_grey_and_colour():
    colour, grey = raw(2, 8, 8, 3), raw(2, 8, 8)
    luminance = (0.299 * colour[..., 0] + 0.587 * colour[..., 1] + 0.114 * colour[..., 2]) / 255
    found = Preprocessing(image_size=(8, 8))(colour)
    np.testing.assert_allclose(found[:, 0].numpy(), luminance, atol=1e-6)
    repeated = Preprocessing(image_size=(8, 8), channels=3)(grey)
    for channel in range(3):
        np.testing.assert_allclose(repeated[:, channel].numpy(), grey / 255, atol=1e-6)
    with pytest.raises(ValueError, match=r"images must have 3 channels \(the last axis\), got 2"):
        Preprocessing(image_size=(8, 8), channels=3)(raw(2, 8, 8, 2))
    with pytest.raises(ValueError, match="images must have 1 channels .*got 4"):
        Preprocessing(image_size=(8, 8))(raw(2, 8, 8, 4))


def test_the_crop_is_the_centre_after_standardising():
    images = raw(2, 48, 48)
    whole = Preprocessing(image_size=(48, 48), scaling="standardise")
    cropped = Preprocessing(image_size=(48, 48), scaling="standardise", crop=(32, 30))
    assert cropped.output_shape == (1, 32, 30)
    assert whole.output_shape == (1, 48, 48)
    assert torch.equal(cropped(images), whole(images)[:, :, 8:40, 9:39])
    assert torch.equal(cropped.before_crop(images), whole(images))


def test_crops_may_be_standardised_one_by_one():
    images = raw(3, 48, 48, 2)
    options = {"image_size": (48, 48), "channels": 2, "crop": (32, 32)}
    plain, ours = (Preprocessing(scaling=scaling, **options) for scaling in ("unit", "standardise_crop"))
    crops, found = plain(images), ours(images)
    deviation = crops.std((1, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(found, (crops - crops.mean((1, 2, 3), keepdim=True)) / deviation, rtol=1e-4, atol=1e-5)
    several = ours.crops(images, 5)
    torch.testing.assert_close(several.mean((2, 3, 4)), torch.zeros(3, 5), rtol=0, atol=1e-5)
    torch.testing.assert_close(several.std((2, 3, 4), correction=0), torch.ones(3, 5), rtol=1e-4, atol=0)
    assert ours(np.full((1, 48, 48, 2), 7, np.uint8)).eq(0).all()


def test_several_crops():
    images = raw(2, 48, 48)
    preprocessing = Preprocessing(image_size=(48, 48), crop=(32, 32))
    whole = preprocessing.before_crop(images)
    five = preprocessing.crops(images, 5)
    assert five.shape == (2, 5, 1, 32, 32)
    assert torch.equal(five[:, 0], preprocessing(images))
    for number, (row, column) in enumerate([(0, 0), (0, 16), (16, 0), (16, 16)], start=1):
        assert torch.equal(five[:, number], whole[:, :, row : row + 32, column : column + 32])
    nine = preprocessing.crops(images, 9)
    assert torch.equal(nine[:, :5], five)
    places = {
        (row, column)
        for crop in nine[0, :, 0]
        for row in range(17)
        for column in range(17)
        if torch.equal(crop, whole[0, 0, row : row + 32, column : column + 32])
    }
    assert places == {(row, column) for row in (0, 8, 16) for column in (0, 8, 16)}


@pytest.mark.parametrize("crop", [(4, 5), (3, 7), (6, 2)])
def test_all_crops_differ_up_to_the_last(crop):
    preprocessing = Preprocessing(image_size=(6, 7), crop=crop)
    num_places = (6 - crop[0] + 1) * (7 - crop[1] + 1)
    images = raw(1, 6, 7)
    for num in range(1, num_places + 1):
        crops = preprocessing.crops(images, num)[0]
        assert len({tuple(crop.flatten().tolist()) for crop in crops}) == num
    with pytest.raises(ValueError, match=f"have {num_places} different crops"):
        preprocessing.crops(images, num_places + 1)


def test_without_a_crop_there_is_one_place():
    images = raw(2, 28, 28)
    assert torch.equal(Preprocessing().crops(images, 1)[:, 0], Preprocessing()(images))
    with pytest.raises(ValueError, match="have 1 different crops of .*smaller crop"):
        Preprocessing().crops(images, 2)
    with pytest.raises(ValueError, match="num must be at least 1"):
        Preprocessing().crops(images, 0)


@pytest.mark.parametrize(
    "preprocessing",
    [Preprocessing(), Preprocessing(image_size=(48, 40), channels=2, scaling="standardise", crop=(32, 30))],
)
def test_options_survive_json(preprocessing):
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": (28,)}, r"image_size must be \(height, width\), got \(28,\)"),
        ({"image_size": 28}, "image_size must be"),
        ({"image_size": (28, 0)}, r"image_size\[1\] must be at least 1, got 0"),
        ({"image_size": (28.0, 28)}, r"image_size\[0\] must be an integer"),
        ({"channels": 0}, "channels must be at least 1"),
        ({"scaling": "standardize"}, "did you mean 'standardise'"),
        ({"crop": (29, 28)}, r"a crop of \(29, 28\) does not fit into images of \(28, 28\)"),
        ({"sizes": (28, 28)}, "an option of preprocessing must be one of .*got 'sizes'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Preprocessing.from_dict(options)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([[1, 2]], "must be a numpy array or torch.Tensor of uint8 or floating point, got list"),
        (raw(28, 28), r"one image is images\[None\]"),
        (raw(1, 1, 1, 28, 28), "must have shape"),
        (raw(2, 0, 28), "must have shape"),
        (raw(2, 28, 28).astype(np.int64), "uint8 or floating point, got int64"),
        (torch.zeros(2, 28, 28, dtype=torch.int32), "uint8 or floating point, got torch.int32"),
        (np.full((2, 28, 28), "a"), "uint8 or floating point, got <U1"),
        (raw(2, 28, 28).astype(np.float32), "must lie between 0 and 1"),
        (np.full((1, 28, 28), np.nan), "must lie between 0 and 1"),
        (np.full((1, 28, 28), -0.1), "must lie between 0 and 1"),
    ],
)
def test_wrong_images_are_refused(images, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Preprocessing()(images)
