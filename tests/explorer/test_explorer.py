"""Roles of models, examples for them, and toys that turn."""

import numpy as np
import pytest

from torchcaps.data import load_data
from torchcaps.explorer import Explorer, turning
from torchcaps.explorer.examples import find_examples
from torchcaps.models import create_model
from torchcaps.predictor import Predictor
from torchcaps.service import shipped_models
from torchcaps.service.refusals import Refusal


def test_without_models_there_are_no_roles():
    assert set(dict(Explorer({}).roles()).values()) == {None}


def test_the_first_that_can_takes_a_role(explorer):
    predictors = explorer.predictors
    swapped = Explorer({"other": predictors["capsules"], **predictors}).roles()
    assert (swapped.capsules, swapped.rival) == ("other", "cnn")
    model = create_model("cnn-small", image_shape=(1, 28, 28), num_classes=3)
    few = Explorer({"capsules": predictors["capsules"], "few": Predictor(model)}).roles()
    assert few.rival is None  # it has other classes
    assert Explorer({"english": predictors["bilstm"]}).roles().english is None  # it has no reasons


def test_what_ships_has_examples():
    explorer = Explorer(*shipped_models())
    examples = explorer.examples("capsnet-small-mnist")
    answers = [explorer.predict("capsnet-small-mnist", image=example.image).label for example in examples]
    assert sum(answer == example.label for answer, example in zip(answers, examples)) >= 19
    for name in explorer.predictors:
        assert explorer.examples(name), name
        assert {example.label for example in explorer.examples(name)} <= set(explorer.predictors[name].labels)


def test_examples_are_test_data_of_every_class(explorer):
    found = explorer.examples("capsules")
    assert [example.label for example in found] == [str(label) for label in range(10) for _ in range(2)]
    images = load_data("digits").test.images
    assert all((images == example.image[..., 0]).all((1, 2)).any() for example in found)
    toys = explorer.examples("matrix")
    assert len(toys) == 20
    assert toys[0].image.shape == (20, 20, 2)
    assert {example.label for example in toys} == set(explorer.predictors["matrix"].labels)
    texts = {name: explorer.examples(name) for name in ("english", "chinese")}
    assert all(example.text.isascii() for example in texts["english"][:3])
    assert not any(example.text.isascii() for example in texts["chinese"])
    assert {example.label for example in texts["english"]} == {"negative", "positive"}


def test_a_path_in_a_card_is_not_followed(tmp_path):
    model = create_model("cnn-small", image_shape=(1, 28, 28), num_classes=3)
    model.card["dataset"] = str(tmp_path)
    assert find_examples(model) == []


def test_a_toy_turns_and_its_side_is_read(explorer, monkeypatch):
    """With poses that hold sine and cosine the side is read exactly; with noise it is a guess."""
    labels = [example.label for example in explorer.examples("matrix")]
    assert [category for category, _ in turning.TOYS] == labels  # the numbers of toys are those of the examples
    random, seen = np.random.default_rng(0), []

    def poses(model, images, classes):
        seen.extend(classes)
        angles = np.radians(360 / len(images) * np.arange(len(images)))
        return np.column_stack([np.sin(angles), np.cos(angles)]) @ [[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]] + 1

    monkeypatch.setattr(turning, "read_features", poses)
    turned = Explorer(explorer.predictors).turn("matrix", toy=6)
    assert (turned.label, set(seen)) == ("human", {1})
    assert turned.degrees_off == 0
    assert [side.found % 360 for side in turned.sides] == [side.azimuth for side in turned.sides]
    assert len({side.image.tobytes() for side in turned.sides}) == 18
    assert turned.sides[0].image.shape == (20, 20, 2)
    monkeypatch.setattr(turning, "read_features", lambda _, images, *__: random.normal(size=(len(images), 3)))
    assert Explorer(explorer.predictors).turn("matrix", toy=6).degrees_off > 45
    with pytest.raises(Refusal, match="a toy must be between 0 and 19, got 20"):
        explorer.turn("matrix", toy=20)
    with pytest.raises(Refusal, match="cannot tree"):
        explorer.turn("capsules", toy=0)
