"""Two texts as sets of capsules, over HTTP."""

import pytest
from starlette.testclient import TestClient

from support.services import TEXTS, model_on_encoder, text_model
from torchcaps.predictor import Predictor
from torchcaps.service import Limits, Service, create_app
from torchcaps.text import CapsuleSentenceEncoder

TEXT, OTHER = "a good film , it is fun", "this movie was not bad"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {
        "frozen": model_on_encoder(tmp_path_factory.mktemp("frozen")),
        "tuned": model_on_encoder(tmp_path_factory.mktemp("tuned"), fine_tune=True),
        "words": text_model("text-capsule-a", TEXTS, "words"),
    }


@pytest.fixture(scope="module")
def client(models):
    service = Service({name: Predictor(model) for name, model in models.items()})
    with TestClient(create_app(service, limits=Limits(seconds=60))) as client:
        yield client


@pytest.mark.parametrize("name", ["frozen", "tuned"])
def test_parts_of_two_texts_match(client, models, name):
    answer = client.post("/api/match", json={"model": name, "text": TEXT, "other": OTHER}).json()
    encoder = CapsuleSentenceEncoder(models[name])
    assert answer["similarity"] == pytest.approx(encoder.compare(*encoder.encode([TEXT, OTHER])), abs=1e-5)
    told = sorted(word for part in answer["first"] for word in part["words"])
    assert told == sorted(TEXT.split())
    assert sum(part["share"] for part in answer["second"]) == pytest.approx(1, abs=1e-4)
    best = encoder.explain(TEXT, OTHER)[0]
    match = answer["matches"][0]
    assert tuple(answer["first"][match["first"]]["words"]) == best.first.words
    assert match["share"] == pytest.approx(best.share, abs=1e-5)
    if name == "frozen":  # the encoder itself, whose vectors are not standardised here
        assert CapsuleSentenceEncoder(models[name].encoder.name).similarity(TEXT, OTHER) == pytest.approx(
            answer["similarity"], abs=1e-5
        )


def test_models_without_an_encoder_refuse(client):
    answer = client.post("/api/match", json={"model": "words", "text": TEXT, "other": OTHER})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "words cannot match; models that can: frozen, tuned"
    assert client.post("/api/match", json={"model": "frozen", "text": TEXT}).status_code == 422
