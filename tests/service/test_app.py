"""The API: every endpoint, and everything it refuses."""

import base64
import json
import struct

import numpy as np
import pytest
from starlette.testclient import TestClient

from torchcaps.service import Batching, Limits, Service, create_app
from torchcaps.service.images import from_base64, from_png, to_base64
from torchcaps.service.pages import TYPES

JSON = {"Content-Type": "application/json"}


def post(client, path, status=200, **question):
    response = client.post(f"/api/{path}", json=question)
    assert response.status_code == status, response.text
    return response.json()


def test_predict(client, service, digit, png):
    found = post(client, "predict", model="capsules", image=png)
    expected = service.predict("capsules", image=digit)
    assert found["scores"] == pytest.approx(expected.scores.tolist(), abs=1e-6)
    assert (found["best"], found["label"]) == (expected.best, expected.label)
    assert found["milliseconds"] > 0
    assert post(client, "predict", model="english", text="a fine film")["label"] in ("negative", "positive")


@pytest.mark.parametrize("batching", [None, Batching()], ids=["alone", "in batches"])
def test_the_only_model_need_not_be_named(service, client, png, batching):
    one = Service({"capsules": service.predictors["capsules"]})
    with TestClient(create_app(one, limits=Limits(seconds=60), batching=batching)) as only:
        for path, more in (("predict", {}), ("explain", {}), ("reconstruct", {}), ("trace", {})):
            found = post(only, path, image=png, **more)
            assert found["model"] == "capsules"
            named = post(only, path, model="capsules", image=png, **more)
            assert {**found, "milliseconds": 0} == {**named, "milliseconds": 0}
        assert post(only, "predict", 404, model="other", image=png)["detail"].startswith(
            "there is no model of that name"
        )
    several = post(client, "predict", 422, image=png)["detail"]
    assert several.startswith("say which model is asked; there are: capsules, cnn, ")


def test_a_large_drawing_is_the_small_one(client, digit, png):
    large = to_base64(np.kron(digit, np.ones((10, 10), np.uint8)))
    small = post(client, "predict", model="capsules", image=png)
    assert post(client, "predict", model="capsules", image=large)["scores"] == pytest.approx(small["scores"], abs=1e-4)


def test_explain(client, png, pair):
    found = post(client, "explain", model="capsules", image=png, class_index=4)
    assert np.sum(found["places"]["shares"]) == pytest.approx(100, abs=0.01)
    assert (found["label"], found["words"], found["tree"]) == ("4", None, None)
    tree = post(client, "explain", model="matrix", image=pair)["tree"]
    assert tree["layers"] == ["primary", "conv1", "conv2", "class_capsules"]
    assert len(tree["edges"]) == len(tree["nodes"]) - 1
    words = post(client, "explain", model="chinese", text="好看的电影")["words"]
    assert [word["word"] for word in words] == list("好看的电影")


def test_trace(client, png, pair):
    routing = {"algorithm": "kmeans", "num_iterations": 4}
    found = post(client, "trace", model="capsules", image=png, routing=routing, classes=[3, 5], num_points=7)
    assert found["routing"] == routing
    assert len(found["steps"]) == 5
    step = found["steps"][-1]
    shapes = {name: np.shape(step[name]) for name in step if name != "objective"}
    assert shapes == {
        "activations": (10,),
        "poses": (10, 16),
        "by_place": (3, 3, 10),
        "by_type": (16, 10),
        "point_couplings": (7, 2),
        "centres": (2, 2),
    }
    assert np.shape(found["plane"]["points"]) == (7, 2, 2)
    assert np.shape(found["plane"]["places"]) == (7, 3)
    assert found["plane"]["classes"] == [3, 5]
    assert len(post(client, "trace", model="matrix", image=pair)["steps"]) == 3


def test_poses(client):
    found = post(client, "poses", model="capsules", class_index=3)
    assert (len(found["principal"]), len(found["entries"]), len(found["members"])) == (8, 16, 8)
    assert sorted(entry["number"] for entry in found["entries"]) == list(range(16))
    changes = [direction["change"] for direction in found["principal"]]
    assert changes == sorted(changes, reverse=True)
    assert all(direction["low"] < direction["high"] for direction in found["principal"])
    member = found["members"][0]
    again = post(client, "reconstruct", model="capsules", image=member["image"], class_index=3)
    assert again["pose"] == pytest.approx(member["pose"], abs=2e-6)


def test_reconstruct(client, png):
    found = post(client, "reconstruct", model="capsules", image=png)
    assert from_png(from_base64(found["reconstruction"])).shape == (28, 28)
    moved = post(client, "reconstruct", model="capsules", pose=found["pose"], class_index=found["class_index"])
    assert moved["reconstruction"] == found["reconstruction"]
    assert moved["pose"] == pytest.approx(found["pose"], abs=1e-6)


def test_attack_can_be_asked_about(client, digit, png):
    found = post(client, "attack", model="cnn", image=png, attack="fgsm", epsilon=0.1)
    changed = from_png(from_base64(found["perturbed"])).astype(int)
    assert 0 < abs(changed - digit).max() <= 25
    again = post(client, "predict", model="cnn", image=found["perturbed"])
    assert again["scores"] == found["after"]["scores"]
    assert from_png(from_base64(found["difference"])).shape == (28, 28)


def test_two_cameras_come_back_side_by_side(client, pair):
    found = post(client, "attack", model="matrix", image=pair, attack="bim", epsilon=0, num_steps=1)
    assert np.array_equal(from_png(from_base64(found["perturbed"])), from_png(from_base64(pair)))


def test_models_and_health(client):
    found = client.get("/api/models").json()
    assert [card["id"] for card in found["models"]][:3] == ["capsules", "cnn", "matrix"]
    assert found["limits"]["png_bytes"] == 2**19
    assert found["unavailable"] == [{"id": "broken", "reason": "it is broken"}]
    assert client.get("/api/health").json() == {"status": "ok"}


def test_the_pages_and_their_files(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == TYPES[".html"]
    about = client.get("/api")
    assert "/static/api.js" in about.text
    script = client.get("/static/api.js")
    assert script.headers["content-type"].startswith("text/javascript")
    for text in (about.text, script.text, client.get("/static/api.css").text):
        assert "//" not in text.replace("// ", "")  # nothing from outside
    for response in (page, about, script, client.get("/nowhere"), client.get("/api/models")):
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
    description = client.get("/openapi.json").json()
    assert {"/api/predict", "/api/explain", "/api/trace", "/api/reconstruct", "/api/attack"} <= set(
        description["paths"]
    )
    assert client.get("/docs").status_code == 404


def test_no_page_but_the_one_about_the_api(service):
    with TestClient(create_app(service)) as client:
        assert "/openapi.json" in client.get("/").text
        assert client.get("/static/api.js").status_code == 200
        assert client.get("/static/index.html").status_code == 404
        assert client.get("/api/health").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/..\\app.py",
        "/static/",
        "/static/api.js%00",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_no_path_leads_to_the_file_system(client, path):
    response = client.get(path)
    assert response.status_code == 404
    assert response.json()["detail"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", ".", "shipped/../x", "a" * 100, "ü\n"])
def test_no_name_of_a_model_leads_to_the_file_system(client, name):
    assert "no model of that name" in post(client, "predict", 404, model=name, text="a")["detail"]


def hollow_png(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + bytes(30)).decode()


PNG = to_base64(np.zeros((28, 28), np.uint8))
WRONG = {
    "unknown field": ("predict", {"model": "capsules", "image": PNG, "path": "/etc/passwd"}, "path: Extra inputs"),
    "no input": ("predict", {"model": "capsules"}, "exactly one of image and text"),
    "two inputs": ("predict", {"model": "capsules", "image": PNG, "text": "a"}, "exactly one of image and text"),
    "wrong input": ("predict", {"model": "capsules", "text": "a"}, "takes an image"),
    "number as name": ("predict", {"model": 3, "text": "a"}, "model: Input should be a valid string"),
    "long name": ("predict", {"model": "a" * 101, "text": "a"}, "model: String should have at most 100"),
    "no png": ("predict", {"model": "capsules", "image": "R0lGODlh" + "A" * 80}, "must be a PNG file"),
    "no base64": ("predict", {"model": "capsules", "image": "data:image/png;base64," + PNG}, "in base64"),
    "huge png": ("predict", {"model": "capsules", "image": hollow_png(60_000, 60_000)}, "60000 x 60000"),
    "hollow png": ("predict", {"model": "capsules", "image": hollow_png(900, 900)}, "damaged"),
    "odd pair": ("predict", {"model": "matrix", "image": to_base64(np.zeros((4, 5), np.uint8))}, "even width"),
    "pixels": ("predict", {"model": "capsules", "image": [[0, 1], [2, 3]]}, "image: Input should be a valid string"),
    "empty text": ("predict", {"model": "english", "text": ""}, "text: String should have at least 1"),
    "blank text": ("predict", {"model": "english", "text": "\t \n"}, "no words"),
    "long text": ("predict", {"model": "english", "text": "a" * 2001}, "text: String should have at most 2000"),
    "half a sign": ("predict", {"model": "english", "text": "\ud800"}, "text: Input should be a valid string"),
    "cnn explains": ("explain", {"model": "cnn", "image": PNG}, "cnn cannot explain"),
    "class as text": ("explain", {"model": "capsules", "image": PNG, "class_index": "1"}, "valid integer"),
    "class as float": ("explain", {"model": "capsules", "image": PNG, "class_index": 1.0}, "valid integer"),
    "class as truth": ("explain", {"model": "capsules", "image": PNG, "class_index": True}, "valid integer"),
    "no such class": ("explain", {"model": "capsules", "image": PNG, "class_index": 10}, "between 0 and 9"),
    "negative class": ("explain", {"model": "capsules", "image": PNG, "class_index": -1}, "greater than or equal"),
    "algorithm": ("trace", {"model": "capsules", "image": PNG, "routing": {"algorithm": "os:system"}}, "'dynamic'"),
    "iterations": (
        "trace",
        {"model": "capsules", "image": PNG, "routing": {"algorithm": "em", "num_iterations": 10**9}},
        "less than or equal to 10",
    ),
    "points": ("trace", {"model": "capsules", "image": PNG, "num_points": 10**6}, "less than or equal to 300"),
    "classes": ("trace", {"model": "capsules", "image": PNG, "classes": list(range(6))}, "at most 5 items"),
    "twice": ("trace", {"model": "capsules", "image": PNG, "classes": [1, 1]}, "different ones"),
    "directions of no class": ("poses", {"model": "capsules", "class_index": 10}, "between 0 and 9, got 10"),
    "directions without a decoder": ("poses", {"model": "cnn", "class_index": 1}, "cnn cannot reconstruct"),
    "short pose": ("reconstruct", {"model": "capsules", "pose": [0.1], "class_index": 0}, "16 entries, got 1"),
    "long pose": ("reconstruct", {"model": "capsules", "pose": [0.1] * 1025, "class_index": 0}, "at most 1024 items"),
    "far pose": ("reconstruct", {"model": "capsules", "pose": [9.0] * 16, "class_index": 0}, "less than or equal to 2"),
    "pose of nobody": ("reconstruct", {"model": "capsules", "pose": [0.1] * 16}, "needs the class_index"),
    "attack": ("attack", {"model": "cnn", "image": PNG, "attack": "pgd", "epsilon": 0.1}, "'fgsm' or 'bim'"),
    "epsilon": ("attack", {"model": "cnn", "image": PNG, "attack": "fgsm", "epsilon": 1.5}, "less than or equal to 1"),
    "steps": (
        "attack",
        {"model": "cnn", "image": PNG, "attack": "bim", "epsilon": 0.1, "num_steps": 21},
        "equal to 20",
    ),
    "text attacked": ("attack", {"model": "english", "image": PNG, "attack": "fgsm", "epsilon": 0.1}, "cannot attack"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_with_a_reason(client, name):
    path, question, reason = WRONG[name]
    response = client.post(f"/api/{path}", content=json.dumps(question), headers=JSON)
    assert response.status_code == 422
    assert reason in response.json()["detail"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_must_be_finite(client, value):
    body = f'{{"model": "cnn", "image": "{PNG}", "attack": "fgsm", "epsilon": {value}}}'
    response = client.post("/api/attack", content=body, headers=JSON)
    assert response.status_code == 422
    assert "epsilon: Input should be" in response.json()["detail"]
    body = f'{{"model": "capsules", "class_index": 1, "pose": [{", ".join([value] * 16)}]}}'
    assert client.post("/api/reconstruct", content=body, headers=JSON).status_code == 422


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b"[" * 100_000, b"9" * 10_000, b'{"model": "cnn", "model": 1}'],
    ids=["empty", "half", "list", "null", "text", "bytes", "deep", "long number", "twice"],
)
def test_bodies_that_are_no_question(client, body):
    response = client.post("/api/predict", content=body, headers=JSON)
    assert response.status_code in (400, 422)
    assert isinstance(response.json()["detail"], str)


def test_forms_of_other_sites_are_no_json(client, png):
    body = json.dumps({"model": "capsules", "image": png})
    assert client.post("/api/predict", content=body, headers={"Content-Type": "text/plain"}).status_code == 422
    response = client.options(
        "/api/predict", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert response.status_code == 405
    assert "access-control-allow-origin" not in response.headers


def test_an_unforeseen_failure_says_nothing_of_itself(service, png, monkeypatch):
    def fail(**options):
        raise RuntimeError("secret")

    monkeypatch.setattr(service, "predict", fail)
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        response = client.post("/api/predict", json={"model": "capsules", "image": png})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "content-security-policy" in response.headers


def test_large_bodies_are_not_read(service):
    with TestClient(create_app(service, limits=Limits(body_bytes=1000))) as client:
        for body in (b"a" * 1001, iter([b"a" * 600, b"a" * 600])):  # with and without its length before it
            response = client.post("/api/predict", content=body, headers=JSON)
            assert response.status_code == 413
            assert response.json()["detail"] == "the body of a request must have at most 1000 bytes"
        assert client.post("/api/predict", json={"model": "english", "text": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8765", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8765", 200),
        ("[::1]", 200),
        ("evil.example", 400),
        ("127.0.0.1.evil.example:8765", 400),
        ("", 400),
    ],
)
def test_pages_that_point_their_name_here_are_sent_away(service, host, status):
    limits = Limits(hosts=("127.0.0.1", "localhost", "[::1]"))
    with TestClient(create_app(service, limits=limits)) as client:
        assert client.get("/api/health", headers={"Host": host}).status_code == status
