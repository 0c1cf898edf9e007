"""The trained models that come with the package: small, described, and as good as their card says."""

import numpy as np
import pytest

import torchcaps
from torchcaps.data import load_data
from torchcaps.data.load import EMBEDDED
from torchcaps.models.saving import SHIPPED, read_config

NAMES = sorted(folder.name for folder in SHIPPED.iterdir()) if SHIPPED.is_dir() else []


@pytest.mark.parametrize("name", NAMES)
def test_shipped_models_are_small_and_say_what_they_are(name):
    folder = SHIPPED / name
    assert (folder / "model.safetensors").stat().st_size <= 2_000_000
    card = read_config(folder)["card"]
    assert card["title"] == name
    assert {"dataset", "data", "terms of the data", "accuracy", "seed"} <= card.keys()
    assert {"validation_accuracy", "choice"} & card.keys()


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-mnist")])
def test_shipped_models_read_the_embedded_digits(name):
    digits = load_data("digits").test  # a part of the test images of MNIST
    accuracy = (torchcaps.load(name).predict(digits.images) == digits.labels).mean()
    claimed = read_config(SHIPPED / name)["card"]["accuracy"]
    assert accuracy > claimed - 0.006  # three standard deviations of 1,000 digits


def test_there_is_a_model_for_digits():
    assert "capsnet-small-mnist" in NAMES


def test_the_model_of_toys_knows_toys_that_it_never_saw():
    with np.load(EMBEDDED / "toys.npz", allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    accuracy = (torchcaps.load("matrix-capsnet-small-toys").predict(images) == labels).mean()
    claimed = read_config(SHIPPED / "matrix-capsnet-small-toys")["card"]["accuracy"]
    assert claimed > 0.85
    assert accuracy > claimed - 3 * (claimed * (1 - claimed) / len(labels)) ** 0.5


def test_the_model_of_smallnorb_takes_raw_pairs_of_pictures():
    predictor = torchcaps.load("matrix-capsnet-small-smallnorb")
    images = np.random.default_rng(0).integers(0, 256, (3, 96, 96, 2), dtype=np.uint8)
    assert predictor.predict_proba(images).shape == (3, 5)
    assert predictor.labels == ("animal", "human", "aeroplane", "truck", "car")
    card = read_config(SHIPPED / "matrix-capsnet-small-smallnorb")["card"]
    assert card["terms of the data"] == "research only, not to be redistributed"


SENTENCES = {
    "capsule-a-movie-snippets": ("a warm, funny and moving film", "dull, lifeless and far too long"),
    "capsule-a-chinese-reviews": ("房间很干净 服务很好 下次还会住", "质量太差 很失望 不推荐"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_shipped_models_of_texts(name):
    predictor = torchcaps.load(name)
    good, bad = SENTENCES[name]
    assert [predictor.labels[index] for index in predictor.predict([good, bad])] == ["positive", "negative"]
    for reasons in predictor.explain([good, bad]):
        assert max(reason.value for reason in reasons) > -2 * min(reason.value for reason in reasons)


@pytest.mark.parametrize("name", SENTENCES)
def test_shipped_models_of_texts_are_as_good_as_their_card_says(name):
    test = load_data(read_config(SHIPPED / name)["card"]["dataset"]).test
    accuracy = (torchcaps.load(name).predict(test.texts) == test.labels).mean()
    assert accuracy == pytest.approx(read_config(SHIPPED / name)["card"]["accuracy"], abs=0.004)
