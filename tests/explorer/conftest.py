"""A service with small models that nobody trained, and a client of its API."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from torchcaps.data.toys.shapes import CATEGORIES
from torchcaps.explorer import Limits, Service, create_app
from torchcaps.explorer.images import to_base64
from torchcaps.inputs.texts import TextEncoding
from torchcaps.models import Model, create_model
from torchcaps.predictor import Predictor
from torchcaps.training.optim import fresh_statistics

TEXTS = ("a fine film , well made", "a bad film , badly made")


def text_model(name: str, texts: tuple[str, ...], tokeniser: str) -> Model:
    encoding = TextEncoding.of(texts, tokeniser=tokeniser, max_length=20)
    model = create_model(name, num_tokens=encoding.num_tokens, num_classes=2, embedding_size=8)
    model.preprocessing, model.labels = encoding, ("negative", "positive")
    return model


@pytest.fixture(scope="session")
def service() -> Service:
    torch.manual_seed(0)
    digits = {"image_shape": (1, 28, 28), "num_classes": 10}
    models = {
        "capsules": create_model("capsnet-small", **digits),
        "cnn": create_model("cnn-small", **digits),
        "matrix": create_model("matrix-capsnet-small", image_shape=(2, 20, 20), num_classes=5, types=(2, 3, 3)),
        "english": text_model("text-capsule-a", TEXTS, "words"),
        "chinese": text_model("text-capsule-a", ("好看的电影", "难看的电影"), "characters"),
        "bilstm": text_model("text-bilstm", TEXTS, "words"),
        "multi": create_model("capsnet-small", multi_label=True, reconstruct=False, **digits),
    }
    for name in ("capsules", "cnn"):
        models[name].card["dataset"] = "mnist"
    models["matrix"].labels = CATEGORIES
    with fresh_statistics(models["matrix"]), torch.no_grad():
        models["matrix"](torch.rand(16, 2, 20, 20))
    service = Service({name: Predictor(model) for name, model in models.items()}, {"broken": "it is broken"})
    service.warm_up()
    return service


@pytest.fixture(scope="session")
def client(service) -> Iterator[TestClient]:
    with TestClient(create_app(service, limits=Limits(seconds=60))) as client:  # machines may be busy
        yield client


@pytest.fixture(scope="session")
def digit() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)


@pytest.fixture(scope="session")
def png(digit) -> str:
    return to_base64(digit)


@pytest.fixture(scope="session")
def pair() -> str:
    """Two cameras side by side."""
    return to_base64(np.random.default_rng(1).integers(0, 256, (20, 40), dtype=np.uint8))
