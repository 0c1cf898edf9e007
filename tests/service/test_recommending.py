"""Recommenders behind the service: alone and in batches they say the same, and refuse in a sentence."""

import asyncio
import json

import pytest
import torch
from starlette.testclient import TestClient

from support.services import small_recommender, text_model
from torchcaps.predictor import Predictor
from torchcaps.service import Batching, Limits, Service, Serving, create_app
from torchcaps.service.batching import Batcher
from torchcaps.service.limits import Workers
from torchcaps.service.requests import RecommendRequest

LIMITS = Limits(seconds=60)


@pytest.fixture(scope="module")
def service():
    torch.manual_seed(0)
    models = {"people": small_recommender(), "mean": small_recommender("youtube-dnn")}
    texts = {"english": text_model("text-capsule-a", ("a fine film", "a bad film"), "words")}
    service = Service({name: Predictor(model) for name, model in (models | texts).items()})
    service.warm_up()
    return service


@pytest.fixture(scope="module")
def client(service):
    with TestClient(create_app(service, limits=LIMITS)) as client:
        yield client


def test_cards_say_what_can_be_asked(client):
    cards = {card["id"]: card for card in client.get("/api/models").json()["models"]}
    assert cards["people"]["abilities"] == ["recommend", "interests"]
    assert cards["mean"]["abilities"] == ["recommend"]
    assert cards["people"]["kind"] == "user"
    assert cards["people"]["labels"] == []  # there may be very many


def test_recommendations_leave_out_what_was_used(client, service):
    answer = client.post("/api/recommend", json={"model": "people", "items": ["item-1", "item-2"], "k": 4}).json()
    found = [each["item"] for each in answer["recommended"]]
    assert len(found) == 4
    assert not {"item-1", "item-2"} & set(found)
    same = service.recommend("people", items=["item-1", "item-2"], k=4)
    assert [each.item for each in same.recommended] == found


def test_interests_form_step_by_step(client, service):
    items = ["item-1", "item-2", "item-7", "item-9"]
    answer = client.post("/api/interests", json={"model": "people", "items": items, "k": 3}).json()
    assert answer["used"] == items
    assert len(answer["steps"]) == 3
    assert [len(row) for row in answer["steps"][-1]["couplings"]] == [2, 2, 2, 2]  # of 4 items 2 interests
    assert all(abs(sum(row) - 1) < 1e-4 for row in answer["steps"][-1]["couplings"])
    assert answer["steps"][0]["couplings"] != answer["steps"][-1]["couplings"]
    for interest in answer["interests"]:
        assert len(interest["recommended"]) == 3
        assert not set(items) & {each["item"] for each in interest["recommended"]}


def test_items_are_found_by_their_letters(client):
    listed = client.get("/api/items?model=people").json()["items"]
    assert len(listed) == 40
    assert listed[0]["item"] == "item-39"  # the most used first
    found = client.get("/api/items?model=people&search=M-1").json()["items"]
    assert {each["item"] for each in found} == {"item-1", *(f"item-{number}" for number in range(10, 20))}


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("recommend", {"model": "people", "items": ["nothing"]}, 422, "does not know the item 'nothing'"),
        ("recommend", {"model": "people", "items": []}, 422, "items"),
        ("recommend", {"model": "people", "items": ["item-1"], "k": 0}, 422, "k"),
        ("recommend", {"model": "people", "items": ["item-1"], "diversity": -1}, 422, "diversity"),
        (
            "recommend",
            {"model": "english", "items": ["item-1"]},
            422,
            "english cannot recommend; models that can: people",
        ),
        ("interests", {"model": "mean", "items": ["item-1"]}, 422, "mean cannot interests; models that can: people"),
        ("predict", {"model": "people", "text": "a film"}, 422, "people cannot predict"),
        ("recommend", {"model": "nobody", "items": ["item-1"]}, 404, "no model of that name"),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence(client, path, body, status, sentence):
    response = client.post(f"/api/{path}", json=body)
    assert response.status_code == status
    assert sentence in response.json()["detail"]


def test_a_batch_says_what_each_would_hear_alone(service):
    sizes = []
    questions = [RecommendRequest(model="people", items=[f"item-{n}", "item-3"], k=4 + n % 2) for n in range(4, 12)]
    questions.append(RecommendRequest(model="people", items=["nothing"]))

    async def ask():
        batcher = Batcher(service, Workers(LIMITS), Batching(size=16, seconds=0.2, on_batch=sizes.append))
        return await asyncio.gather(*(batcher.recommend(each) for each in questions), return_exceptions=True)

    *found, refused = asyncio.run(ask())
    assert max(sizes) > 1
    for question, answer in zip(questions, found):
        alone = service.recommend("people", items=question.items, k=question.k)
        assert [each["item"] for each in json.loads(answer)["recommended"]] == [e.item for e in alone.recommended]
    assert "does not know the item 'nothing'" in str(refused)


def test_a_service_of_its_own_recommends(service):
    serving = Serving(Service({"people": service.predictors["people"]}), limits=LIMITS, batching=Batching())
    with TestClient(serving.app) as client:
        answer = client.post("/api/recommend", json={"items": ["item-1"]})
        assert answer.status_code == 200
        assert len(answer.json()["recommended"]) == 20
        assert 'path="/api/recommend"' in client.get("/metrics").text
