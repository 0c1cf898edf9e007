"""What the page asks for beyond the service, and the files it is made of."""

from importlib.resources import files

import pytest
from starlette.testclient import TestClient

from torchcaps.explorer import Explorer, create_app
from torchcaps.service.pages import TYPES


def test_roles_and_examples(client):
    roles = client.get("/api/roles").json()
    assert roles == {
        "capsules": "capsules",
        "rival": "cnn",
        "matrix": "matrix",
        "english": "english",
        "chinese": "chinese",
        "recommender": None,
    }
    examples = client.get("/api/examples", params={"model": "capsules"}).json()["examples"]
    assert len(examples) == 20
    answer = client.post("/api/predict", json={"model": "capsules", "image": examples[0]["image"]})
    assert answer.json()["scores"]
    assert client.get("/api/examples").status_code == 422  # of several, one must be named


def test_a_toy_from_all_sides(client):
    turned = client.get("/api/turn", params={"model": "matrix", "toy": 3}).json()
    assert [side["azimuth"] for side in turned["sides"]] == list(range(0, 360, 20))
    turns = {name: client.get("/api/examples", params={"model": name}).json()["turns"] for name in ("matrix", "cnn")}
    assert turns == {"matrix": True, "cnn": False}
    assert all(0 <= side["found"] <= 360 for side in turned["sides"])
    assert client.get("/api/turn", params={"model": "matrix", "toy": -1}).status_code == 422
    assert client.get("/api/turn", params={"model": "cnn", "toy": 0}).status_code == 422


def test_the_only_model_need_not_be_named(explorer):
    with TestClient(create_app(Explorer({"capsules": explorer.predictors["capsules"]}))) as only:
        assert only.get("/api/examples").json()["model"] == "capsules"


def test_the_pages_and_their_files(client):
    page, about = client.get("/"), client.get("/api")
    assert page.headers["content-type"] == TYPES[".html"]
    assert "/static/app.js" in page.text
    assert "/static/api.js" in about.text
    for response in (page, client.get("/static/app.js"), client.get("/static/api.js"), client.get("/api/roles")):
        assert response.status_code == 200
        assert "default-src 'self'" in response.headers["content-security-policy"]


def test_all_static_files_are_small():
    folder = files("torchcaps.explorer") / "static"
    assert sum(len(entry.read_bytes()) for entry in folder.iterdir()) < 300_000


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", ".", "shipped/../x", "a" * 100, "ü\n"])
def test_no_name_of_a_model_leads_to_the_file_system(client, name):
    response = client.get("/api/examples", params={"model": name})
    assert response.status_code == 404
    assert name not in response.json()["detail"] or name in (".", "..")
