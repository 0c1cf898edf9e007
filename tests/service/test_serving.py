"""The API as a service: health, metrics, limits, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from torchcaps.cli import main
from torchcaps.service import Batching, Limits, Serving
from torchcaps.service.images import to_base64
from torchcaps.service.metrics import Histogram


@pytest.fixture
def serving(service):
    return Serving(service, batching=Batching(seconds=0.02))


def values(text: str) -> dict[str, float]:
    """What each line of metrics says."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_batched_and_single_answers_agree(service, serving, png):
    question = {"model": "capsules", "image": png}
    with TestClient(serving.app) as batched, TestClient(Serving(service).app) as single:
        with ThreadPoolExecutor(8) as pool:
            found = [
                response.json()
                for response in pool.map(lambda _: batched.post("/api/predict", json=question), range(8))
            ]
        expected = single.post("/api/predict", json=question).json()
        for answer in found:
            assert answer["scores"] == pytest.approx(expected["scores"], abs=1e-5)
        sizes = values(batched.get("/metrics").text)
        assert sizes["torchcaps_batch_size_sum"] == 8
        assert 1 <= sizes["torchcaps_batch_size_count"] < 8
        assert values(single.get("/metrics").text)["torchcaps_batch_size_count"] == 0


def test_health_and_metrics(serving, png):
    with TestClient(serving.app) as client:
        assert client.get("/health").json() == {"status": "ok"}
        client.post("/api/predict", json={"model": "capsules", "image": png})
        client.post("/api/predict", json={"model": "capsules", "image": "no"})
        client.post("/api/explain", json={"model": "english", "text": "a fine film"})
        for number in range(3):
            client.get(f"/nothing/{number}")
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = values(response.text)
        assert found['torchcaps_requests_total{path="/api/predict",status="200"}'] == 1
        assert found['torchcaps_requests_total{path="/api/predict",status="422"}'] == 1
        assert found['torchcaps_requests_total{path="other",status="404"}'] == 3
        assert found['torchcaps_request_seconds_count{path="/api/predict"}'] == 2
        assert found["torchcaps_requests_under_way"] == 0
        assert client.get("/").text == client.get("/api").text  # about the API; there is no other page
        assert {"/health", "/metrics"} <= set(client.get("/openapi.json").json()["paths"])


def test_the_text_of_metrics_is_well_formed(serving):
    line = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.]+')
    with TestClient(serving.app) as client:
        client.get("/health")
        lines = client.get("/metrics").text.splitlines()
    assert all(line.fullmatch(text) or re.match(r"# (HELP|TYPE) torchcaps_\w+ \S", text) for text in lines)


def test_histogram():
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 3):
        histogram.add(value)
    assert histogram.lines("x", 'a="b"') == [
        'x_bucket{a="b",le="1"} 2',
        'x_bucket{a="b",le="2"} 3',
        'x_bucket{a="b",le="+Inf"} 4',
        'x_sum{a="b"} 6.000000',
        'x_count{a="b"} 4',
    ]


def test_limits_are_those_of_the_explorer(service, png):
    limits = Limits(body_bytes=20_000, hosts=("127.0.0.1",))
    serving = Serving(service, limits=limits, batching=Batching())
    with TestClient(serving.app, base_url="http://127.0.0.1") as client:
        assert client.post("/api/predict", content=b"a" * 20_001).status_code == 413
        assert client.get("/metrics", headers={"Host": "evil.example"}).status_code == 400
        assert client.post("/api/predict", json={"model": "nobody", "image": png}).status_code == 404
        assert client.post("/api/predict", json={"model": "capsules", "image": png, "path": "a"}).status_code == 422
        assert client.post("/api/predict", json={"model": "capsules", "image": png}).status_code == 200


def test_a_service_that_ends_takes_no_new_work(serving, png):
    with TestClient(serving.app) as client:
        serving.is_closing = True
        response = client.post("/api/predict", json={"model": "capsules", "image": png})
        assert response.status_code == 503
        assert "shutting down" in response.json()["detail"]
        assert response.headers["connection"] == "close"
        assert (client.get("/health").status_code, client.get("/health").json()) == (503, {"status": "closing"})
        assert client.get("/metrics").status_code == 200


# A real process: it must be asked over a socket and ended by a signal.


@pytest.fixture
def process():
    """`torchcaps serve` and its port."""
    command = [sys.executable, "-m", "torchcaps", "serve", "capsnet-small-mnist", "--port", "0", "--seconds", "60"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        line = running.stdout.readline()
        found = re.search(r"http://127.0.0.1:(\d+)/api/predict", line)
        assert found, (line, running.stderr.read() if running.poll() is not None else "")
        yield running, int(found[1])
        if running.poll() is None:
            running.kill()


def send(port: int, head: str, body: bytes, *, end: bool = True, host: str = "127.0.0.1") -> socket.socket:
    """A connection on which a request was sent, of its body all or all but the last byte."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    try:
        connection.sendall(f"{head} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{length}\r\n".encode())
        connection.sendall(body if end else body[:-1])
    except OSError:  # hung up on before all was said
        connection.close()
        raise
    return connection


def answer(connection: socket.socket) -> tuple[int, str]:
    """Status and body."""
    with connection, connection.makefile("rb") as file:
        head, _, body = file.read().partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def test_sigterm_finishes_what_runs_and_refuses_what_is_new(process):
    running, port = process
    picture = to_base64(np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8))
    body = json.dumps({"model": "capsnet-small-mnist", "image": picture}).encode()
    predict = "POST /api/predict"
    assert answer(send(port, predict, body))[0] == 200
    assert answer(send(port, "GET /health", b"", host="evil.example"))[0] == 400
    begun = [send(port, predict, body, end=False) for _ in range(3)]  # under way: a byte is still to come
    deadline = time.monotonic() + 60
    while "under_way 3" not in answer(send(port, "GET /metrics", b""))[1]:
        assert time.monotonic() < deadline
    running.send_signal(signal.SIGTERM)
    while answer(send(port, "GET /health", b""))[0] != 503:
        assert time.monotonic() < deadline
    status, reason = answer(send(port, predict, body))
    assert (status, json.loads(reason)["detail"]) == (503, "the service is shutting down; ask another one")
    for connection in begun:
        connection.sendall(body[-1:])
    for status, text in map(answer, begun):
        assert status == 200
        assert len(json.loads(text)["scores"]) == 10
    out, error = running.communicate(timeout=60)
    assert running.returncode == 0, error
    assert out == "the service has ended\n"
    assert error == ""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_sigterm_under_load_loses_no_answer(process):
    running, port = process
    body = json.dumps({"model": "capsnet-small-mnist", "image": to_base64(np.zeros((28, 28), np.uint8))}).encode()
    statuses: list[int] = []
    lost: list[Exception] = []
    is_told_to_end = threading.Event()

    def ask() -> None:
        while True:
            try:
                connection = send(port, "POST /api/predict", body)
            except OSError:  # nobody listens any more
                return
            was_in_time = not is_told_to_end.is_set()
            try:
                statuses.append(answer(connection)[0])
            except (OSError, IndexError) as error:
                if was_in_time:  # later ones may have come when the door was just closing
                    lost.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(statuses) < 30:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    is_told_to_end.set()
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    for thread in threads:
        thread.join(60)
    assert set(statuses) <= {200, 503}
    assert not lost
    assert statuses.count(200) >= 30


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["no-such-run"], "no-such-run"),
        (["capsnet-small-mnist", "--batch-size", "0"], "--batch-size must be"),
        (["capsnet-small-mnist", "--batch-milliseconds", "0"], "--batch-milliseconds must be"),
        (["capsnet-small-mnist", "--seconds", "-1"], "seconds must be"),
        (["capsnet-small-mnist", "--port", "99999"], "cannot listen on port 99999"),
    ],
)
def test_wrong_options_are_one_sentence(options, sentence, capsys):
    assert main(["serve", "--port", "0", *options]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_twenty_seconds_of_everything_at_once(tmp_path):
    """What tools/service_endurance.py does for half an hour."""
    tool = Path(__file__).parents[2] / "tools" / "service_endurance.py"
    command = [sys.executable, str(tool), "--minutes", "0.33", "--out", str(tmp_path / "found.json")]
    finished = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["holds"]
    for service in found["services"].values():
        assert service["good_answers"] > 0
        assert service["open_files"]["after"] <= service["open_files"]["before"]
