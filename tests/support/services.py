"""Small models that nobody trained, for services."""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data.interactions import generate_people
from torchcaps.data.toys.shapes import CATEGORIES
from torchcaps.inputs.texts import TextEncoding
from torchcaps.models import Model, create_model
from torchcaps.predictor import Predictor
from torchcaps.training.optim import fresh_statistics
from torchcaps.training.recommend import new_recommender

TEXTS = ("a fine film , well made", "a bad film , badly made")
CHINESE = ("好看的电影", "难看的电影")
DIGIT = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)


def text_model(name: str, texts: tuple[str, ...], tokeniser: str, **options) -> Model:
    """A model of texts with two classes."""
    encoding = TextEncoding.of(texts, tokeniser=tokeniser, **options)
    model = create_model(name, num_tokens=encoding.num_tokens, num_classes=2, embedding_size=8)
    model.preprocessing, model.labels = encoding, ("negative", "positive")
    return model


def model_on_encoder(folder: Path, **options) -> Model:
    """A model of texts on a tiny encoder, which is written into the folder."""
    from support.encoders import save_encoder

    model = create_model("text-capsules", encoder=save_encoder(folder), num_classes=2, **options)
    model.labels = ("negative", "positive")
    return model


def toy_model() -> Model:
    """A matrix network of pairs of small images."""
    model = create_model("matrix-capsnet-small", image_shape=(2, 20, 20), num_classes=5, types=(2, 3, 3))
    model.labels = CATEGORIES
    return model


def small_predictors() -> dict[str, Predictor]:
    """One of each kind, always the same."""
    torch.manual_seed(0)
    digits = {"image_shape": (1, 28, 28), "num_classes": 10}
    models = {
        "capsules": create_model("capsnet-small", **digits),
        "cnn": create_model("cnn-small", **digits),
        "matrix": toy_model(),
        "english": text_model("text-capsule-a", TEXTS, "words", max_length=20),
        "chinese": text_model("text-capsule-a", CHINESE, "characters", max_length=20),
        "bilstm": text_model("text-bilstm", TEXTS, "words", max_length=20),
        "multi": create_model("capsnet-small", multi_label=True, reconstruct=False, **digits),
    }
    for name in ("capsules", "cnn"):
        models[name].card["dataset"] = "mnist"
    with fresh_statistics(models["matrix"]), torch.no_grad():
        models["matrix"](torch.rand(16, 2, 20, 20))
    return {name: Predictor(model) for name, model in models.items()}


def small_recommender(name: str = "mind") -> Model:
    """A recommender of 40 items with categories, of which the last was used most."""
    people = generate_people(20, num_items=40, num_groups=4)
    model = new_recommender(name, people.interactions, item_size=8, max_length=10)
    model.counts[1:] = torch.arange(40)
    return model
