"""Many requests at once, slow ones, and clients that go away: all get an answer, and the service works on."""

import asyncio
import threading
import time

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from torchcaps.service import Limits, create_app
from torchcaps.service.guard import Guard
from torchcaps.service.limits import Workers
from torchcaps.service.refusals import TooMany, Unavailable

NUM_REQUESTS = 200


def resident_megabytes() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def test_two_hundred_at_once(service, png, pair):
    """Every kind of question, mixed with wrong ones."""
    questions = [
        ("predict", {"model": "capsules", "image": png}),
        ("trace", {"model": "capsules", "image": png}),
        ("attack", {"model": "cnn", "image": png, "attack": "fgsm", "epsilon": 0.1}),
        ("explain", {"model": "matrix", "image": pair}),
        ("predict", {"model": "english", "text": "a fine film"}),
        ("reconstruct", {"model": "capsules", "image": png}),
        ("predict", {"model": "capsules", "image": "nonsense"}),
    ]
    app = create_app(service, limits=Limits(waiting=16, seconds=60))

    async def hammer() -> list[tuple[str, httpx2.Response]]:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver", timeout=120) as client:

            async def ask(number: int) -> tuple[str, httpx2.Response]:
                path, question = questions[number % len(questions)]
                return path, await client.post(f"/api/{path}", json=question)

            first = await asyncio.gather(*(ask(number) for number in range(NUM_REQUESTS)))
            again = await ask(0)  # and it still works
            return [*first, again]

    before = service.predict("capsules", image=np.zeros((28, 28), np.uint8))
    memory = resident_megabytes()
    *answers, (_, again) = asyncio.run(hammer())
    assert resident_megabytes() - memory < 200
    statuses = [response.status_code for _, response in answers]
    assert set(statuses) <= {200, 422, 429, 503}
    assert sum(status in (200, 422) for status in statuses) >= 18  # those that work and wait
    assert 429 in statuses
    for path, response in answers:
        content = response.json()
        if response.status_code == 200:
            assert content["model"]
            assert path != "predict" or sum(content["probabilities"]) == pytest.approx(1, abs=1e-4)
        else:
            assert isinstance(content["detail"], str)
        if response.status_code == 429:
            assert response.headers["retry-after"] == "1"
    assert again.status_code == 200
    assert again.json()["scores"] == pytest.approx(answers[0][1].json()["scores"], abs=1e-6)
    after = service.predict("capsules", image=np.zeros((28, 28), np.uint8))
    assert np.array_equal(before.scores, after.scores)


def test_what_takes_too_long_is_given_up_and_keeps_its_place_until_it_ends():
    workers = Workers(Limits(workers=1, waiting=1, seconds=0.2))
    may_end = threading.Event()

    async def story() -> None:
        slow = asyncio.create_task(workers.run(may_end.wait))
        waits = asyncio.create_task(workers.run(lambda: "never begun"))
        await asyncio.sleep(0.05)
        with pytest.raises(TooMany, match="1 requests are waiting already"):
            await workers.run(lambda: None)
        for task in (slow, waits):
            with pytest.raises(Unavailable, match=r"no answer within 0\.2 seconds"):
                await task
        # the one that waited has gone; the one that works is still there
        assert workers.places._value == 1
        may_end.set()
        deadline = time.monotonic() + 30
        while workers.places._value < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert await workers.run(lambda: "works again") == "works again"

    asyncio.run(story())
    workers.close()
    with pytest.raises(Unavailable, match="shutting down"):
        asyncio.run(workers.run(lambda: None))


def test_a_slow_model_gets_503(service, monkeypatch):
    may_end = threading.Event()
    monkeypatch.setattr(service, "predict", lambda **options: may_end.wait(30))
    with TestClient(create_app(service, limits=Limits(seconds=0.1))) as client:
        response = client.post("/api/predict", json={"model": "english", "text": "a"})
        may_end.set()
    assert response.status_code == 503
    assert "no answer within 0.1 seconds" in response.json()["detail"]


def through_guard(limits, messages, *, headers=(), num_under_way=0, wait=0.0):
    """The status that a request gets, and the body that the application saw."""
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message):
        sent.append(message)

    async def story():
        guard = Guard(app, limits)
        guard.num_under_way = num_under_way
        queue = iter(messages)

        async def receive():
            await asyncio.sleep(wait)
            return next(queue)

        await guard({"type": "http", "headers": list(headers)}, receive, send)
        assert guard.num_under_way == num_under_way

    asyncio.run(story())
    return sent[0]["status"], seen


PART = {"type": "http.request", "body": b"12345", "more_body": True}
LAST = {"type": "http.request", "body": b"67", "more_body": False}


def test_a_body_arrives_in_parts():
    assert through_guard(Limits(), [PART, PART, LAST]) == (200, [b"123451234567"])
    assert through_guard(Limits(body_bytes=11), [PART, PART, LAST]) == (413, [])
    assert through_guard(Limits(body_bytes=12), [PART, PART, LAST])[0] == 200


@pytest.mark.parametrize("length", [b"13", b"9" * 5000, b"-1", b"+1", b"ten", b""])
def test_a_declared_length_is_believed_only_if_it_is_small(length):
    assert through_guard(Limits(body_bytes=12), [LAST], headers=[(b"content-length", length)]) == (413, [])


def test_slow_bodies_lost_clients_and_crowds():
    assert through_guard(Limits(seconds=0.05), [PART] * 100, wait=0.01) == (408, [])
    assert through_guard(Limits(), [PART, {"type": "http.disconnect"}]) == (408, [])
    assert through_guard(Limits(connections=5), [LAST], num_under_way=5) == (503, [])
    assert through_guard(Limits(connections=5), [LAST], num_under_way=4)[0] == 200


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"waiting": -1}, {"seconds": 0.0}, {"body_bytes": 1.5}])
def test_limits_must_make_sense(wrong):
    with pytest.raises((ValueError, TypeError)):
        Limits(**wrong)
