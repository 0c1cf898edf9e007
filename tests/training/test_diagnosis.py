"""Training that leaves the finite numbers ends with the name of the layer, and keeps nothing that is broken."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchcaps.cli import main
from torchcaps.training import Diverged
from torchcaps.training.checkpoint import load_latest
from torchcaps.training.diagnosis import tensors_of, worst_gradient
from torchcaps.training.engine import Trainer
from training.test_engine import CONFIG, new_model, stripes, train

NAN = float("nan")


def test_a_broken_gradient_is_named():
    model = new_model("cnn-small")
    model.network[0][0].weight.register_hook(lambda gradient: gradient * NAN)
    with pytest.raises(Diverged, match=r"the gradient of network\.0\.0\.weight is not finite at step 0"):
        train(model)


@pytest.mark.parametrize("layer", ["features.0", "primary.conv", "conv2.routing", "class_capsules.routing"])
def test_the_first_layer_that_gives_no_number_is_named(layer):
    model = new_model()

    def spoil(module, inputs, output):
        for tensor in tensors_of(output):
            tensor.data[(0,) * tensor.dim()] = NAN

    model.get_submodule(layer).register_forward_hook(spoil)
    with pytest.raises(Diverged, match=f"what {layer} gives is not finite at step 0"):
        train(model)


def test_a_gradient_too_large_to_be_squared_is_named():
    model = new_model("cnn-small")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.network[0][3].weight.grad[0] = 1e30
    assert worst_gradient(model) == "the gradient of network.0.3.weight is too large (1.0e+30)"


@pytest.mark.parametrize("ema", [None, 0.9])
def test_weights_that_break_in_the_last_step_are_neither_kept_nor_evaluated(ema, tmp_path, monkeypatch):
    train_step = Trainer.train_step

    def break_weights(self, indices, step):
        train_step(self, indices, step)
        if self.progress.step == self.progress.total_steps:
            self.state.evaluated_model.get_parameter("network.0.3.weight").data[0] = NAN

    monkeypatch.setattr(Trainer, "train_step", break_weights)
    with pytest.raises(Diverged, match=r"network\.0\.3\.weight is not finite after step 12"):
        train(new_model("cnn-small"), replace(CONFIG, ema=ema), folder=tmp_path)
    assert load_latest(tmp_path).values["progress"]["step"] == 6


def test_validation_that_gives_no_number_is_named(monkeypatch):
    model = new_model("cnn-small")

    def spoil(module, inputs, output):
        return output if module.training else output * NAN

    model.network[1].register_forward_hook(spoil)
    with pytest.raises(Diverged, match=r"what network\.1 gives for the validation data is not finite after step 6"):
        train(model, replace(CONFIG, ema=None))


def test_divergence_is_one_sentence_at_the_command_line(tmp_path, capsys):
    images = stripes()
    np.savez(tmp_path / "stripes.npz", x_train=images.images, y_train=images.labels)
    options = ["--model", "cnn-baseline", "--optimizer", "sgd", "--learning-rate", "1e20", "--clip-norm", "None"]
    options += ["--epochs", "2", "--batch-size", "16", "--out", str(tmp_path / "run")]
    assert main(["train", "--data", str(tmp_path / "stripes.npz"), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("torchcaps: what network.")
    assert " gives is not finite at step 1; lower the learning rate" in error
    assert len(error.splitlines()) == 1
