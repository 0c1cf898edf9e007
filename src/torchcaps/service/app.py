"""The service over HTTP: a JSON API that describes itself."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from torchcaps import __version__
from torchcaps.service import requests, results
from torchcaps.service.batching import Batcher, Batching
from torchcaps.service.guard import Guard
from torchcaps.service.images import MAX_PNG_BYTES, MAX_SIDE, from_base64
from torchcaps.service.limits import Limits, Workers
from torchcaps.service.pages import add_pages
from torchcaps.service.refusals import Refusal, TooMany
from torchcaps.service.service import Service

REASONS = {
    400: "a body that is no JSON, or another host",
    404: "no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    422: "wrong input",
    429: "too many at once",
    503: "it took too long, or the service is at its limit",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": results.Problem, "description": reason} for status, reason in REASONS.items()
}


class Api(FastAPI):
    """The application, and the workers that compute its answers.

    Args:
        limits: what is taken from clients.
        options: of FastAPI.
    """

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self.limits, self.workers = limits, Workers(limits)

    async def work(self, function: Callable[[], BaseModel]) -> Response:
        """The response with what a function answers, computed by the workers."""
        content = await self.workers.run(lambda: function().model_dump_json())
        return Response(content, media_type="application/json")


def create_app(service: Service, *, limits: Limits | None = None, batching: Batching | None = None) -> Api:
    """The application for programs: /api/..., /openapi.json, and a page about the API at /api.

    Args:
        service: does the work.
        limits: what is taken from clients.
        batching: how predictions of several requests are joined; None computes each alone.
    """
    app = new_app(service, limits=limits, batching=batching)
    add_pages(app)
    return app


def new_app(service: Service, *, limits: Limits | None = None, batching: Batching | None = None) -> Api:
    """`create_app` without any page, for those who add their own."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()

    app = Api(
        limits or Limits(),
        title="torchcaps",
        version=__version__,
        summary="Trained capsule networks: answers, reasons, routing step by step, reconstructions, attacks.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    workers = app.workers
    app.add_middleware(Guard, limits=app.limits)
    add_problems(app)
    add_questions(app, service, None if batching is None else Batcher(service, workers, batching))
    return app


def add_questions(app: Api, service: Service, batcher: Batcher | None) -> None:
    """The endpoints of the API."""
    limits = app.limits

    def ask(question: requests.Request, method: Callable[..., BaseModel], **options: Any) -> Any:
        known = {name: getattr(question, name) for name in type(question).model_fields}
        known["model"] = service.name_of(question.model)
        if known.get("image") is not None:
            known["image"] = from_base64(known["image"])
        return method(**known, **options)

    @app.get("/api/models", response_model=results.ModelList, tags=["models"])
    def models() -> Response:
        """All models, what each can do, routings and limits."""
        found = service.models()
        found.limits = results.LimitValues(
            body_bytes=limits.body_bytes,
            png_bytes=MAX_PNG_BYTES,
            image_side=MAX_SIDE,
            text_characters=requests.MAX_TEXT,
            seconds=limits.seconds,
            waiting=limits.waiting,
        )
        return Response(found.model_dump_json(), media_type="application/json")

    @app.post("/api/predict", response_model=results.Prediction, tags=["questions"])
    async def predict(question: requests.PredictRequest) -> Response:
        """What a model says about an image or a text."""
        if batcher is not None:
            return Response(await batcher.predict(question), media_type="application/json")
        return await app.work(partial(ask, question, service.predict))

    @app.post("/api/explain", response_model=results.Explanation, tags=["questions"])
    async def explain(question: requests.ExplainRequest) -> Response:
        """Where in the image, or from which words, the votes for a class come."""
        return await app.work(partial(ask, question, service.explain))

    @app.post("/api/trace", response_model=results.Trace, tags=["questions"])
    async def trace(question: requests.TraceRequest) -> Response:
        """How routing went on, iteration by iteration, with the model's own routing or another of the package."""
        return await app.work(partial(ask, question, service.trace))

    @app.post("/api/reconstruct", response_model=results.Reconstruction, tags=["questions"])
    async def reconstruct(question: requests.ReconstructRequest) -> Response:
        """What is decoded from the pose of a class."""
        return await app.work(partial(ask, question, service.reconstruct))

    @app.post("/api/poses", response_model=results.PoseDirections, tags=["questions"])
    async def poses(question: requests.PosesRequest) -> Response:
        """What the directions of a class's poses change, and some things of the class with their poses."""
        return await app.work(partial(ask, question, service.poses))

    @app.post("/api/attack", response_model=results.Attacked, tags=["questions"])
    async def attack(question: requests.AttackRequest) -> Response:
        """A small change of the pixels that makes the model err."""
        return await app.work(partial(ask, question, service.attack))

    @app.post("/api/match", response_model=results.Matched, tags=["questions"])
    async def match(question: requests.MatchRequest) -> Response:
        """How alike two texts are to the encoder of a model, and which of their parts match."""
        return await app.work(partial(ask, question, service.match))

    @app.post("/api/recommend", response_model=results.Recommendations, tags=["questions"])
    async def recommend(question: requests.RecommendRequest) -> Response:
        """Items that fit a person, without those that were used."""
        if batcher is not None:
            return Response(await batcher.recommend(question), media_type="application/json")
        return await app.work(partial(ask, question, service.recommend))

    @app.post("/api/interests", response_model=results.Recommending, tags=["questions"])
    async def interests(question: requests.InterestsRequest) -> Response:
        """How the interests of a person formed, and what each recommends by itself."""
        return await app.work(partial(ask, question, service.interests))

    @app.get("/api/items", response_model=results.ItemList, tags=["models"])
    async def items(
        model: Annotated[str | None, Query(max_length=100)] = None,
        search: Annotated[str, Query(max_length=requests.MAX_ITEM)] = "",
    ) -> Response:
        """Items of a recommender whose name or title has these letters, the most used first, at most 50."""
        name = service.name_of(model)
        return await app.work(lambda: service.items(name, search=search))

    @app.get("/api/health", response_model=results.Health, tags=["models"])
    async def health() -> results.Health:
        """Whether the service works."""
        return results.Health()


def add_problems(app: FastAPI) -> None:
    """Every refusal is a status and one sentence."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> JSONResponse:
        headers = {"Retry-After": "1"} if isinstance(refusal, TooMany) else None
        return JSONResponse({"detail": str(refusal)}, refusal.status, headers)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> JSONResponse:
        sentences = [f"{_place(problem['loc'])}: {problem['msg']}" for problem in error.errors()[:5]]
        return JSONResponse({"detail": "; ".join(sentences)}, 422)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": str(error.detail)}, error.status_code, error.headers)


def _place(location: tuple[int | str, ...]) -> str:
    """Where in a request something is wrong."""
    return ".".join(str(part) for part in location[1:]) or "the body"
