"""Two digits in one picture: what counts as right, and weights that fit pictures of any width."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from support.digit_files import write_digits
from torchcaps.cli import main
from torchcaps.data import load_data
from torchcaps.data.made import TEST, Maker, overlap
from torchcaps.experiments import find_experiment
from torchcaps.experiments.harness import TEST_ERROR
from torchcaps.experiments.multi_digits import (
    BOTH_WRONG,
    DRAWN,
    DRAWN_ERROR,
    MEAN_ERROR,
    NOT_SURE,
    drawing_errors,
    pair_errors,
    resized,
)
from torchcaps.inputs.images import Preprocessing
from torchcaps.models import ModelOutput, create_model
from torchcaps.models.capsnet import CapsNetSmall


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


def percent(drawn: float, mean: float) -> float:
    return 100 * drawn / mean


def test_drawings_are_compared_with_mean_digits():
    """A decoder that knows the truth errs by nothing, one that draws mean digits by 100 %, a black one by more."""
    digits = load_data("digits").test.subset(range(200))
    maker = Maker(digits=digits, compose=overlap, num_digits=2, seed=0, stream=TEST)
    pairs, (alone, labels) = maker(np.arange(200), 0)[0], maker.apart(np.arange(200), 0)
    alone = alone / 255
    means = np.stack([alone[labels == index].mean(0) for index in range(10)])
    images = Preprocessing(image_size=(36, 36))(pairs)

    class Known(CapsNetSmall):
        draw = None

        def forward(self, seen, classes=None):
            numbers = [int((images == image).all((1, 2, 3)).nonzero()[0]) for image in seen]
            drawn = [self.draw(number, int(chosen)) for number, chosen in zip(numbers, classes)]
            return ModelOutput(torch.zeros(len(seen), 10), None, torch.tensor(np.stack(drawn)).float()[:, None])

    model = Known(image_shape=(1, 36, 36), num_classes=10)
    model.preprocessing = Preprocessing(image_size=(36, 36))
    model.draw = lambda number, chosen: alone[number, list(labels[number]).index(chosen)]
    assert percent(*drawing_errors(model, digits)) == pytest.approx(0, abs=1e-3)
    model.draw = lambda number, chosen: means[chosen]
    assert percent(*drawing_errors(model, digits)) == pytest.approx(100, abs=1e-3)
    model.draw = lambda number, chosen: np.zeros((36, 36))
    assert percent(*drawing_errors(model, digits)) > 120


def test_both_digits_must_lead():
    scores = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.4, 0.1], [0.9, 0.2, 0.3]])
    labels = np.array([[True, True, False]] * 3)
    errors = pair_errors(scores, labels, are_activations=True)
    assert errors == pytest.approx({BOTH_WRONG: 100 / 3, NOT_SURE: 200 / 3})
    assert set(pair_errors(scores, labels, are_activations=False)) == {BOTH_WRONG}


@pytest.mark.parametrize(("name", "options"), [("capsnet-shared", {"reconstruct": True}), ("cnn-small", {})])
def test_a_wider_picture_needs_no_other_weights(name, options):
    model = create_model(name, image_shape=(1, 20, 20), num_classes=3, **options).eval()
    wide = resized(model, (20, 40))
    assert wide.image_shape == (1, 20, 40)
    image = torch.rand(1, 1, 20, 20)
    assert wide(torch.cat([image, image], 3)).scores.shape == (1, 3)
    own = dict(model.named_parameters())
    assert all(torch.equal(parameter, own[key]) for key, parameter in wide.named_parameters())
    same = resized(model, (20, 20))
    assert torch.equal(same(image).scores, model(image).scores)


def test_full_weights_do_not_fit_another_size():
    model = create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=3)
    with pytest.raises(RuntimeError, match="size mismatch"):
        resized(model, (20, 40))


def test_baselines_stand_beside_every_routing():
    rows = find_experiment("multi-digits").choose_rows("full")
    for group in {row.group for row in rows}:
        names = " ".join(row.name for row in rows if row.group == group)
        for wanted in ("dynamic", "K-Means", "entropy", "EM", "uniform", "CNN", "no routing"):
            assert wanted in names
    published = {row.name: row.published[BOTH_WRONG] for row in rows if row.published}
    assert published == {
        "side by side: dynamic, r = 3": 9.0,
        "side by side: K-Means, r = 2": 5.0,
        "overlapping: dynamic, r = 3": 5.2,
        "overlapping: CNN, 4.2 M": 8.1,
    }


def test_quick(digits, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    monkeypatch.setattr("torchcaps.experiments.digits.QUICK_SIZE", {"num_train": 60, "num_test": 20})
    command = ["reproduce", "multi-digits", "--quick", "--data", str(digits), "--out", str(tmp_path)]
    assert main([*command, "--only", "side by side: K-Means", "overlapping: dynamic, r = 3"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    beside, over = kept["runs"]
    assert set(beside["measures"]) == {BOTH_WRONG, NOT_SURE, TEST_ERROR}
    assert set(over["measures"]) == {BOTH_WRONG, NOT_SURE, DRAWN, DRAWN_ERROR, MEAN_ERROR}
    assert over["config"]["data"] == "multimnist"
    with Image.open(tmp_path / "overlapping-dynamic-r-3" / "seed-0" / "pairs.png") as picture:
        assert min(picture.size) > 400
