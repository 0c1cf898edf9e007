"""What the loop minimises and how it steps, each part alone."""

from dataclasses import replace

import pytest
import torch

from torchcaps.losses import spread_loss
from torchcaps.models import create_model
from torchcaps.models.capsnet import CapsNet, CapsNetSmall
from torchcaps.training.config import TrainingConfig
from torchcaps.training.engine import Trainer
from torchcaps.training.metrics import Tally
from torchcaps.training.objective import make_objective
from torchcaps.training.optim import make_optimizer, update_average
from training.test_engine import CONFIG, new_model, stripes


def test_reconstruction_is_a_sum_over_pixels():
    model = create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=3)
    images, targets = torch.rand(2, 1, 28, 28), torch.tensor([0, 2])
    output = model(images, targets)
    without = make_objective(model, replace(CONFIG, reconstruction_weight=0.0))(output, images, targets, 0.0)
    errors = (output.reconstruction - images).square().flatten(1).sum(1)
    for weight in (None, 0.3):  # the model's own, and another
        config = replace(CONFIG, reconstruction_weight=weight)
        found = make_objective(model, config)(output, images, targets, 0.0) - without
        expected = (model.reconstruction_weight if weight is None else weight) * errors
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (CapsNetSmall.reconstruction_weight, CapsNet.reconstruction_weight) == (0.005, 0.0005)


def test_the_margin_grows_from_first_to_last_step():
    model, images, targets = new_model(), torch.rand(3, 1, 19, 19), torch.tensor([0, 1, 1])
    output, objective = model(images), make_objective(model, replace(CONFIG, loss="spread", spread_margin=(0.2, 0.9)))
    for progress, margin in ((0.0, 0.2), (1.0, 0.9)):
        expected = spread_loss(output.scores, targets, margin, reduction="none")
        torch.testing.assert_close(objective(output, images, targets, progress), expected)


def test_a_class_that_is_hardly_there_still_learns():
    model = new_model()
    logits = torch.tensor([[-17.0, 2.0]], requires_grad=True)
    output = model(torch.rand(1, 1, 19, 19))._replace(scores=logits.sigmoid())
    loss = make_objective(model, replace(CONFIG, loss="cross_entropy"))(output, torch.zeros(1), torch.tensor([0]), 0.0)
    loss.sum().backward()
    assert logits.grad[0, 0] < -0.1


def test_losses_that_do_not_fit_are_refused():
    several = create_model("matrix-capsnet-small", image_shape=(1, 19, 19), num_classes=3, multi_label=True)
    for loss in ("spread", "softmax_cross_entropy"):
        with pytest.raises(ValueError, match="one true class per example; train multi-label models with loss='margin'"):
            make_objective(several, replace(CONFIG, loss=loss))
    make_objective(several, CONFIG)  # its own loss fits
    with pytest.raises(ValueError, match="gives logits and trains with cross_entropy, not with margin"):
        make_objective(new_model("cnn-small"), replace(CONFIG, loss="margin"))


def test_weights_decay_and_biases_do_not():
    model = new_model("cnn-small")
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
    decay = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if parameter.dim() < 2 else 0.5), name


def test_the_average_follows_slowly():
    average, model = (torch.nn.Linear(1, 1).requires_grad_(False) for _ in range(2))
    torch.nn.init.zeros_(average.weight)
    torch.nn.init.ones_(model.weight)
    update_average(average, model, 0.9, step=10_000)
    assert float(average.weight) == pytest.approx(0.1)
    update_average(average, model, 0.9, step=0)  # a young one forgets its start
    assert float(average.weight) == pytest.approx(0.1 + 0.9 * 0.9)


def test_a_plateau_halves_the_rate():
    trainer = Trainer(new_model(), stripes(), None, replace(CONFIG, schedule="plateau"))
    tally = Tally(torch.tensor([10.0, 5.0, 7.0, 0.0, 0.0], dtype=torch.float64), ("accuracy",))
    for epochs, factor in ((1, 1.0), (3, 0.5), (3, 0.25)):  # the first is the best
        for _ in range(epochs):
            trainer.state.judge(tally)
        assert trainer.progress.plateau_factor == factor
