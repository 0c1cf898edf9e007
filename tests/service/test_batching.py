"""Questions that are answered together get the answers they get alone."""

import asyncio
import json
from threading import Event

import numpy as np
import pytest

from torchcaps.service import Batching, Limits
from torchcaps.service.batching import Batcher, predict_together
from torchcaps.service.images import to_base64
from torchcaps.service.limits import Workers
from torchcaps.service.refusals import Refusal, TooMany, Unavailable, UnknownModel
from torchcaps.service.requests import PredictRequest

TEXTS = ("fine", "a bad film , badly made", "a fine film", "well , well , well , a film that is badly made", "bad")


def pictures(num: int, height: int = 28, width: int = 28) -> list[np.ndarray]:
    return list(np.random.default_rng(7).integers(0, 256, (num, height, width), dtype=np.uint8))


def questions(model: str, num: int = 5) -> list[PredictRequest]:
    if model in ("english", "bilstm"):
        return [PredictRequest(model=model, text=text) for text in TEXTS[:num]]
    width = 40 if model == "matrix" else 28
    return [PredictRequest(model=model, image=to_base64(picture)) for picture in pictures(num, width=width)]


def one_by_one(service, asked: list[PredictRequest]) -> list[dict]:
    return [json.loads(predict_together(service, question.model, [question])[0]) for question in asked]


def run_batcher(service, work, *, limits: Limits | None = None, **options):
    """What `work(batcher)` returns, and the sizes of the batches."""
    sizes: list[int] = []
    workers = Workers(limits or Limits())

    async def run():
        return await work(Batcher(service, workers, Batching(on_batch=sizes.append, **options)))

    try:
        return asyncio.run(run()), sizes
    finally:
        workers.close()


@pytest.mark.parametrize("model", ["capsules", "cnn", "matrix", "multi", "english", "bilstm"])
def test_together_as_alone(service, model):
    asked = questions(model)
    together = [json.loads(found) for found in predict_together(service, model, asked)]
    for found, expected in zip(together, one_by_one(service, asked), strict=True):
        assert found["scores"] == pytest.approx(expected["scores"], abs=1e-5)
        assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        assert (found["best"], found["label"]) == (expected["best"], expected["label"])
    assert len({tuple(found["scores"]) for found in together}) == len(asked)  # nobody got another's answer


def test_alone_is_what_the_service_says(service):
    question = questions("capsules", 1)[0]
    expected = service.predict("capsules", image=pictures(1)[0])
    found = one_by_one(service, [question])[0]
    assert found["scores"] == pytest.approx(expected.scores.tolist(), abs=1e-6)
    assert found["milliseconds"] > 0


def test_a_wrong_question_is_refused_alone(service):
    good = questions("capsules", 2)
    wrong = PredictRequest(model="capsules", image="R0lGODlh" + "A" * 80)
    first, refusal, second = predict_together(service, "capsules", [good[0], wrong, good[1]])
    assert isinstance(refusal, Refusal)
    assert "must be a PNG file" in str(refusal)
    for found, expected in zip((first, second), one_by_one(service, good)):
        assert json.loads(found)["scores"] == pytest.approx(expected["scores"], abs=1e-5)
    text = PredictRequest(model="capsules", text="a")
    assert "takes an image" in str(predict_together(service, "capsules", [text])[0])


def test_those_who_come_together_share_a_pass(service):
    asked = questions("cnn", 5) + questions("english", 3)

    async def work(batcher):
        return await asyncio.gather(*(batcher.predict(question) for question in asked))

    found, sizes = run_batcher(service, work, seconds=0.05)
    assert sorted(sizes) == [3, 5]
    for answer, expected in zip(found, one_by_one(service, asked), strict=True):
        assert json.loads(answer)["scores"] == pytest.approx(expected["scores"], abs=1e-5)


def test_a_pass_is_not_larger_than_its_size_and_the_next_goes_on(service):
    asked = questions("cnn", 5)

    async def work(batcher):
        first = await asyncio.gather(*(batcher.predict(question) for question in asked))
        second = await batcher.predict(asked[0])  # after the queue was empty
        assert not batcher.tasks
        return first, second

    (first, second), sizes = run_batcher(service, work, size=2)
    assert sizes == [2, 2, 1, 1]
    assert json.loads(second)["scores"] == pytest.approx(json.loads(first[0])["scores"], abs=1e-5)


def test_who_is_alone_does_not_wait(service, monkeypatch):
    question, waits, sleep = questions("cnn", 1)[0], [], asyncio.sleep

    async def wait(seconds):
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr("torchcaps.service.batching.asyncio.sleep", wait)

    async def work(batcher):
        for _ in range(4):
            await batcher.predict(question)

    _, sizes = run_batcher(service, work)
    assert sizes == [1, 1, 1, 1]
    assert len(waits) == 1  # before anything was known of the others


def test_two_that_take_turns_come_together(service, monkeypatch):
    begun = Event()
    going_on = hold(service, monkeypatch, begun)
    asked = questions("cnn", 2)

    async def work(batcher):
        async def client(question):
            for _ in range(5):
                await batcher.predict(question)

        first = asyncio.create_task(client(asked[0]))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(client(asked[1]))
        await asyncio.sleep(0)  # it has asked while the pass of the first runs
        going_on.set()
        await asyncio.gather(first, second)

    _, sizes = run_batcher(service, work, seconds=0.5)
    assert sizes[0] == 1
    assert sizes[1:5] == [2, 2, 2, 2]


def hold(service, monkeypatch, begun: Event | None = None) -> Event:
    """Let every prediction of the CNN wait until the event is set; `begun` is set when one does."""
    going_on, answer = Event(), service.predictors["cnn"].answer

    def wait_and_answer(inputs):
        if begun is not None:
            begun.set()
        assert going_on.wait(20)
        return answer(inputs)

    monkeypatch.setattr(service.predictors["cnn"], "answer", wait_and_answer)
    return going_on


def test_limits_hold_for_batches(service, monkeypatch):
    going_on = hold(service, monkeypatch)
    asked = questions("cnn", 4)

    async def work(batcher):
        tasks = [asyncio.create_task(batcher.predict(question)) for question in asked[:3]]
        await asyncio.sleep(0.05)
        with pytest.raises(TooMany, match="2 requests are waiting already"):
            await batcher.predict(asked[3])
        with pytest.raises(UnknownModel):
            await batcher.predict(PredictRequest(model="nobody", text="a"))
        assert set(batcher.queues) == {"cnn"}
        going_on.set()
        await asyncio.gather(*tasks)
        return await batcher.predict(asked[3])  # there is room again

    found, _ = run_batcher(service, work, limits=Limits(workers=1, waiting=2))
    assert json.loads(found)["label"]


def test_who_waits_too_long_is_sent_away_and_not_computed(service, monkeypatch):
    going_on = hold(service, monkeypatch)
    asked = questions("cnn", 3)

    async def work(batcher):
        tasks = [asyncio.create_task(batcher.predict(question)) for question in asked[:2]]
        for task in tasks:
            with pytest.raises(Unavailable, match="no answer within 0.3 seconds"):
                await task
        batcher.workers.limits = Limits(workers=1, waiting=2, seconds=20)
        going_on.set()
        await batcher.predict(asked[2])
        assert batcher.workers.places._value == 3

    _, sizes = run_batcher(service, work, size=1, limits=Limits(workers=1, waiting=2, seconds=0.3))
    assert sizes == [1, 1]  # the second was never begun


def test_a_failure_of_the_model_is_told_to_everybody(service, monkeypatch):
    def fail(inputs):
        raise RuntimeError("broken")

    monkeypatch.setattr(service.predictors["cnn"], "answer", fail)

    async def work(batcher):
        return await asyncio.gather(*map(batcher.predict, questions("cnn", 2)), return_exceptions=True)

    found, _ = run_batcher(service, work)
    assert [str(error) for error in found] == ["broken", "broken"]


@pytest.mark.parametrize("options", [{"size": 0}, {"seconds": 0.0}, {"size": 1.5}])
def test_batching_that_cannot_be(options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        Batching(**options)
