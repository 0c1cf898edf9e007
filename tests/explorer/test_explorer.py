"""Roles of models and examples for them."""

from torchcaps.data import load_data
from torchcaps.explorer import Explorer
from torchcaps.explorer.examples import find_examples
from torchcaps.models import create_model
from torchcaps.predictor import Predictor
from torchcaps.service import shipped_models


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
