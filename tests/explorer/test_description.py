"""What /openapi.json promises holds for requests that a machine makes up from it, right ones and wrong ones."""

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from support.services import model_on_encoder, small_predictors, small_recommender
from torchcaps.explorer import Explorer, create_app
from torchcaps.predictor import Predictor
from torchcaps.service import Limits

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
OPERATIONS = [
    *(("GET", f"/api/{name}") for name in ("models", "roles", "examples", "turn", "items", "health")),
    *(("POST", f"/api/{name}") for name in ("predict", "explain", "trace", "reconstruct", "poses", "attack")),
    *(("POST", f"/api/{name}") for name in ("recommend", "interests", "match")),
]
MODELS = {"/api/turn": "matrix", **dict.fromkeys(("/api/items", "/api/recommend", "/api/interests"), "people")}
MODELS["/api/match"] = "sentences"
SETTINGS = hypothesis.settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    sentences = model_on_encoder(tmp_path_factory.mktemp("encoder"))
    more = {"people": Predictor(small_recommender()), "sentences": Predictor(sentences)}
    explorer = Explorer(small_predictors() | more)
    with TestClient(create_app(explorer, limits=Limits(seconds=60))) as client:  # machines may be busy
        yield client


@pytest.fixture(scope="module")
def description(client):
    async def application(scope, receive, send):
        """The one of the client, which lives on: schemathesis would start and end it with every request."""
        if scope["type"] == "http":
            await client.app(scope, receive, send)
            return
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})

    config = schemathesis.Config.from_dict(
        {"checks": {"negative_data_rejection": {"expected-statuses": [400, 404, 413, 422]}}}
    )
    return schemathesis.openapi.from_asgi("/openapi.json", application, config=config)


def test_every_operation_is_tried(description):
    assert sorted((found.ok().method.upper(), found.ok().path) for found in description.get_all_operations()) == sorted(
        OPERATIONS
    )


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids="".join)
def test_right_requests_made_up_from_the_description(description, client, method, path, png):
    statuses = set()

    @SETTINGS
    @hypothesis.given(case=description[path][method].as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    def holds(case):
        if case.query:
            case.query["model"] = MODELS.get(path, "capsules")
        if path == "/api/turn":
            case.query["toy"] = case.query["toy"] % 2 * 20  # the second is not there; each is rendered
        if isinstance(case.body, dict):  # what cannot be made up: a model that is there, items of it, a picture
            case.body["model"] = MODELS.get(path, "english" if case.body.get("text") else "capsules")
            case.body |= (
                {"items": [f"item-{len(item)}" for item in case.body["items"]]} if case.body.get("items") else {}
            )
            case.body |= {"image": png} if case.body.get("image") else {}
            if path == "/api/poses":
                case.body["class_index"] %= 20  # half of them are classes
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    if path == "/api/turn":
        client.get(
            path, params={"model": "matrix", "toy": 0}
        )  # rendered once, which takes longer than is waited for here
    holds()
    assert 200 in statuses


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "POST"])
def test_wrong_requests_made_up_from_the_description(description, path):
    @SETTINGS
    @hypothesis.given(case=description[path]["POST"].as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def holds(case):
        case.call_and_validate(checks=CHECKS)

    holds()
