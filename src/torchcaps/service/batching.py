"""Predictions that are asked for at about the same time come from one forward pass."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from torchcaps.checks import check_count, check_positive
from torchcaps.service.images import from_base64
from torchcaps.service.limits import Workers
from torchcaps.service.questions import QUESTIONS, read_question
from torchcaps.service.recommending import recommend_together
from torchcaps.service.refusals import Refusal, Unavailable
from torchcaps.service.requests import PredictRequest, RecommendRequest
from torchcaps.service.results import Ability, Prediction
from torchcaps.service.service import Service, answers


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How requests are joined.

    Attributes:
        size: most requests of a forward pass.
        seconds: how long a pass waits for as many requests as there were at the end of the one before; who is alone
            does not wait, and those that come while a pass runs make up the next.
        on_batch: told the size of every pass.
    """

    size: int = 32
    seconds: float = 0.002
    on_batch: Callable[[int], None] = lambda size: None

    def __post_init__(self) -> None:
        check_count("size", self.size)
        check_positive("seconds", self.seconds)


@dataclass(frozen=True)
class Waiting:
    """A question and the place of its answer, as JSON."""

    question: PredictRequest | RecommendRequest
    answer: asyncio.Future[str]


class Batcher:
    """Answers questions to each model in batches, one after the other; within the limits of the workers.

    Args:
        service: has the models.
        workers: do the work; a question has a place there until its batch is done.
        batching: how to join.
    """

    def __init__(self, service: Service, workers: Workers, batching: Batching) -> None:
        self.service, self.workers, self.batching = service, workers, batching
        self.queues: dict[str, list[Waiting]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.crowds: dict[str, int] = {}  # how many were answered by the last pass or waited at its end

    async def predict(self, question: PredictRequest) -> str:
        """The prediction as JSON."""
        return await self.ask(question, "predict")

    async def recommend(self, question: RecommendRequest) -> str:
        """The recommendations as JSON."""
        return await self.ask(question, "recommend")

    async def ask(self, question: PredictRequest | RecommendRequest, ability: Ability) -> str:
        """The answer as JSON, when its batch is done; a model has one of both abilities, so that batches are alike."""
        model = self.service.name_of(question.model)
        self.service.find(model, ability)  # no queue for a model that is not there
        self.workers.enter()
        waiting = Waiting(question, asyncio.get_running_loop().create_future())
        self.queues.setdefault(model, []).append(waiting)
        if model not in self.tasks:
            self.tasks[model] = asyncio.create_task(self.drain(model))
        return await self.workers.in_time(waiting.answer)

    async def drain(self, model: str) -> None:
        """Answer batch after batch until nobody waits for this model."""
        queue, size = self.queues[model], self.batching.size
        while queue:
            if len(queue) < min(self.crowds.get(model, size), size):
                await asyncio.sleep(self.batching.seconds)
            batch = queue[:size]
            del queue[:size]
            try:
                await self.work(model, [waiting for waiting in batch if not waiting.answer.done()])
            finally:
                self.crowds[model] = len(batch) + len(queue)
                for _ in batch:
                    self.workers.leave()
        del self.tasks[model]

    async def work(self, model: str, batch: Sequence[Waiting]) -> None:
        """Answer one batch; who does not wait any more is left out."""
        if not batch:
            return
        self.batching.on_batch(len(batch))
        together = TOGETHER[type(batch[0].question)]
        work = partial(together, self.service, model, [waiting.question for waiting in batch])
        found: Sequence[str | Exception]
        try:
            found = await asyncio.wrap_future(self.workers.submit(work))
        except Exception as error:  # of the model itself: it is everybody's
            found = [error] * len(batch)
        except asyncio.CancelledError:  # its workers were sent home before they began
            found = [Unavailable("the service is shutting down")] * len(batch)
        for waiting, answer in zip(batch, found, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)


def predict_together(service: Service, model: str, questions: Sequence[PredictRequest]) -> list[str | Exception]:
    """What `service.predict` says to each question, from one forward pass: JSON, or the refusal of that question."""
    start = perf_counter()
    predictor = service.find(model, "predict")
    found: list[str | Exception] = []
    inputs, places = [], []
    for place, question in enumerate(questions):
        try:
            image = None if question.image is None else from_base64(question.image)
            inputs.append(read_question(predictor, image=image, text=question.text))
            places.append(place)
            found.append("")
        except Refusal as refusal:
            found.append(refusal)
    if inputs:
        output = predictor.answer(QUESTIONS[predictor.kind].join(inputs))
        milliseconds = round(1000 * (perf_counter() - start), 3)
        for place, said in zip(places, answers(predictor, output), strict=True):
            found[place] = Prediction(model=model, milliseconds=milliseconds, **dict(said)).model_dump_json()
    return found


# From the questions of a batch to their answers: JSON, or the refusal of a question.
TOGETHER: dict[type, Callable[..., list[str | Exception]]] = {
    PredictRequest: predict_together,
    RecommendRequest: lambda service, model, questions: recommend_together(
        model, service.recommender(model, "recommend"), questions
    ),
}
