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

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
OPERATIONS = [
    *(("GET", f"/api/{name}") for name in ("models", "roles", "examples", "turn", "health")),
    *(("POST", f"/api/{name}") for name in ("predict", "explain", "trace", "reconstruct", "poses", "attack")),
]
SETTINGS = hypothesis.settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


@pytest.fixture(scope="session")
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
            case.query["model"] = "matrix" if path == "/api/turn" else "capsules"
        if path == "/api/turn":
            case.query["toy"] = case.query["toy"] % 2 * 20  # the second is not there; each is rendered
        if isinstance(case.body, dict):  # what cannot be made up: a model that is there, a picture
            case.body["model"] = "english" if case.body.get("text") else "capsules"
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
