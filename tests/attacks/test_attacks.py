"""Attacks stay within epsilon and range, go through the preprocessing, and agree with another implementation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchcaps.attacks import METHODS, gradient_statistics, input_gradient, perturb, predictions, sweep, transfer
from torchcaps.inputs.images import Preprocessing
from torchcaps.models import ImageModel, ModelOutput, create_model


class Halves(ImageModel):
    """Knows which half of an image is brighter; how sure it is grows with the difference."""

    name = "halves"
    default_loss = "cross_entropy"
    gives_activations = False

    def __init__(self, *, image_shape=(1, 6, 8), margin=False, multi_label=False):
        super().__init__(image_shape=image_shape, num_classes=2, multi_label=multi_label)
        self.scale = torch.nn.Parameter(torch.tensor(10.0))
        self.is_margin = margin
        if margin:
            self.default_loss, self.gives_activations = "margin", True

    def forward(self, images, classes=None):
        left, right = (half.mean((1, 2, 3)) for half in images.chunk(2, dim=3))
        logits = self.scale * torch.stack((left, right), 1)
        return ModelOutput(logits.softmax(-1) if self.is_margin else logits)


def half_images(num=40, *, seed=0):
    """Noise with one half brighter by a random amount of up to 0.2."""
    generator = np.random.default_rng(seed)
    images = generator.uniform(0.3, 0.7, (num, 6, 8)).astype(np.float32)
    labels = np.arange(num) % 2
    for image, label in zip(images, labels, strict=True):
        image -= image.mean() - 0.5
        gap = generator.uniform(0.02, 0.2)
        halves = image[:, 4:], image[:, :4]
        for half, sign in zip(halves, (1, -1) if label else (-1, 1), strict=True):
            half += sign * gap / 2 + (0.5 - half.mean())
    return images.clip(0, 1), labels


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("targeted", [False, True])
def test_pixels_stay_in_range_and_within_epsilon(method, dtype, targeted):
    images = np.random.default_rng(0).random((5, 20, 20, 2))
    images[0], images[1] = 0, 1
    raw = (255 * images).astype(np.uint8) if dtype == np.uint8 else images.astype(np.float32)
    model = create_model("cnn-small", image_shape=(2, 20, 20), num_classes=3).eval()
    model.preprocessing = Preprocessing(image_size=(20, 20), channels=2, scaling="standardise")
    changed = perturb(
        model, raw, np.array([0, 1, 2, 0, 1]), epsilon=0.07, method=method, targeted=targeted, batch_size=2
    )
    originals = raw / np.float32(255) if dtype == np.uint8 else raw
    assert changed.dtype == np.float32
    assert changed.shape == raw.shape
    assert np.isfinite(changed).all()
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert np.abs(changed - originals).max() <= 0.07 + 1e-6
    assert np.abs(changed[2:] - originals[2:]).mean() > 0.01


def test_no_epsilon_no_change():
    images, labels = half_images()
    for method in METHODS:
        np.testing.assert_array_equal(perturb(Halves(), images, labels, epsilon=0, method=method), images)


@pytest.mark.parametrize(
    "method",
    # from a random start, 40 steps of 1/30 do not reach every corner; 40 of 1/15 do
    [METHODS["fgsm"], METHODS["bim"], replace(METHODS["pgd"], relative_step=1 / 15)],
)
@pytest.mark.parametrize("is_margin", [False, True])
def test_success_grows_with_epsilon_exactly_as_it_must(method, is_margin):
    """Moving every pixel by epsilon changes the difference of the halves by 2 epsilon: who falls is known."""
    images, labels = half_images()
    gaps = np.abs(images[:, :, 4:].mean((1, 2)) - images[:, :, :4].mean((1, 2)))
    epsilons = [0, 0.02, 0.04, 0.06, 0.08, 0.11]
    outcomes = sweep(Halves(margin=is_margin), images, labels, epsilons=epsilons, method=method)
    assert [outcome.epsilon for outcome in outcomes] == epsilons
    expected = [(gaps > 2 * epsilon).mean() for epsilon in epsilons]
    assert [outcome.accuracy for outcome in outcomes] == pytest.approx(expected)
    assert [outcome.success for outcome in outcomes] == pytest.approx([1 - share for share in expected])
    assert expected[0] == 1
    assert expected[-1] == 0
    targeted = sweep(Halves(margin=is_margin), images, labels, epsilons=epsilons, method=method, targeted=True)
    assert [outcome.success for outcome in targeted] == pytest.approx([1 - share for share in expected])


def test_gradient_goes_through_resizing_standardising_and_cropping():
    """Against differences of the loss computed from the raw pixels."""
    torch.manual_seed(0)
    model = create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=3, class_size=4).eval()
    model.preprocessing = Preprocessing(image_size=(24, 24), scaling="standardise", crop=(20, 20))
    pixels = torch.from_numpy(np.random.default_rng(0).uniform(0.1, 0.9, (1, 48, 48)).astype(np.float32))
    gradient = input_gradient(model, pixels, torch.tensor([1]))
    assert gradient.shape == pixels.shape
    assert gradient[0, 0].abs().max() > 0  # outside the crop, but part of mean and variance

    def loss(images):
        with torch.no_grad():
            return -torch.log(model.task.estimate(model(model.preprocessing(images)))[:, 1]).double().item()

    direction = gradient / gradient.norm()
    change = (loss(pixels + 0.02 * direction) - loss(pixels - 0.02 * direction)) / 0.04
    assert change == pytest.approx(gradient.norm().item(), rel=0.03)


def test_a_constant_image_has_a_finite_gradient():
    model = create_model("cnn-small", image_shape=(1, 20, 20), num_classes=3).eval()
    model.preprocessing = Preprocessing(image_size=(20, 20), scaling="standardise")
    images = torch.full((2, 20, 20), 0.5)
    images[1, 3, 3] = 0.9
    gradient = input_gradient(model, images, torch.tensor([0, 1]))
    assert gradient.isfinite().all()
    assert (gradient[0] == 0).all()
    assert (gradient[1] != 0).any()


def test_gradient_statistics_see_a_flat_loss():
    images, labels = half_images()
    confident = Halves(margin=True)
    with torch.no_grad():
        confident.scale.fill_(200)  # activations within the margins: no loss and no gradient
    clear = images[np.abs(images[:, :, 4:].mean((1, 2)) - images[:, :, :4].mean((1, 2))) > 0.05]
    clear_labels = labels[np.abs(images[:, :, 4:].mean((1, 2)) - images[:, :, :4].mean((1, 2))) > 0.05]
    flat = gradient_statistics(confident, clear, clear_labels, loss="own")
    assert (flat.zero_share, flat.zero_image_share, flat.magnitude) == (1, 1, 0)
    assert (perturb(confident, clear, clear_labels, epsilon=0.1, loss="own") == clear).all()
    slope = gradient_statistics(confident, clear, clear_labels)
    assert slope.zero_image_share < 1
    weak, strong = (gradient_statistics(Halves(), images, labels) for _ in range(2))
    assert weak.magnitude == strong.magnitude > 0
    assert weak.zero_share == 0


def test_transfer_shows_the_images_of_one_model_to_others():
    class Mirrored(Halves):
        def forward(self, images, classes=None):
            return ModelOutput(super().forward(images).scores.flip(1))

    images, labels = half_images()
    source, victims = Halves(), {"same": Halves(), "mirrored": Mirrored()}
    found = transfer(source, victims, images, labels, epsilons=(0, 0.11))
    assert [outcome.accuracy for outcome in found["same"]] == [1, 0]
    assert [outcome.accuracy for outcome in found["mirrored"]] == [0, 1]
    np.testing.assert_array_equal(predictions(source, images), labels)


def test_a_model_is_left_as_it_was():
    model = create_model("cnn-small", image_shape=(1, 20, 20), num_classes=3).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = np.random.default_rng(0).integers(0, 255, (4, 20, 20)).astype(np.uint8)
    first, second = (
        perturb(model, images, np.zeros(4, int), epsilon=0.1, method="pgd", batch_size=size) for size in (4, 4)
    )
    np.testing.assert_array_equal(first, second)
    other = perturb(model, images, np.zeros(4, int), epsilon=0.1, method="pgd", seed=1)
    assert (other != first).any()
    assert model.training
    assert all((before[name] == tensor).all() for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_wrong_input_is_refused():
    images, labels = half_images(4)
    with pytest.raises(ValueError, match=r"epsilon must lie in \[0, 1\].*got 8"):
        perturb(Halves(), images, labels, epsilon=8)
    with pytest.raises(ValueError, match="did you mean 'fgsm'"):
        perturb(Halves(), images, labels, epsilon=0.1, method="fgm")
    with pytest.raises(ValueError, match="loss must be one of"):
        perturb(Halves(), images, labels, epsilon=0.1, loss="margin")
    with pytest.raises(ValueError, match="there are 4 images but classes of shape"):
        perturb(Halves(), images, labels[:3], epsilon=0.1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        perturb(Halves(), images * 255, labels, epsilon=0.1)
    with pytest.raises(ValueError, match="this halves does not"):
        perturb(Halves(multi_label=True), images, labels, epsilon=0.1)
    with pytest.raises(ValueError, match="takes texts"):
        perturb(create_model("text-cnn", num_tokens=5, num_classes=2), images, labels, epsilon=0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("targeted", [False, True])
def test_agrees_with_foolbox(method, targeted):
    """The same pixels from an independent implementation, without random starts."""
    foolbox = pytest.importorskip("foolbox", reason="foolbox is not installed; it is no dependency")
    torch.manual_seed(0)
    model = create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=4, class_size=4).eval()
    model.preprocessing = Preprocessing(image_size=(24, 24), scaling="standardise", crop=(20, 20))
    images = np.random.default_rng(0).uniform(0, 1, (6, 24, 24)).astype(np.float32)
    classes = np.array([0, 1, 2, 3, 0, 1])
    steps = replace(METHODS[method], random_start=False)
    ours = perturb(model, images, classes, epsilon=0.1, method=steps, targeted=targeted)

    class Raw(torch.nn.Module):
        def forward(self, images_NCHW):
            return model(model.preprocessing(images_NCHW[:, 0])).scores.log()

    fooled = foolbox.PyTorchModel(Raw().eval(), bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.LinfProjectedGradientDescentAttack(
        rel_stepsize=steps.relative_step, steps=steps.num_steps, random_start=False
    )
    labels = torch.from_numpy(classes)
    criterion = foolbox.criteria.TargetedMisclassification(labels) if targeted else labels
    theirs, _, _ = attack(fooled, torch.from_numpy(images)[:, None], criterion, epsilons=0.1)
    difference = np.abs(theirs[:, 0].numpy() - ours)
    assert (difference < 1e-5).mean() > 0.999  # a gradient near zero may have another sign
