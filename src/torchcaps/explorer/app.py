"""The service over HTTP: a JSON API that describes itself and, if it is wanted, the page."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from torchcaps import __version__
from torchcaps.explorer import requests, results
from torchcaps.explorer.batching import Batcher, Batching
from torchcaps.explorer.guard import Guard
from torchcaps.explorer.images import MAX_PNG_BYTES, MAX_SIDE, from_base64
from torchcaps.explorer.limits import Limits, Workers
from torchcaps.explorer.refusals import Refusal, TooMany
from torchcaps.explorer.service import Service

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
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


def create_app(
    service: Service, *, page: bool = True, limits: Limits | None = None, batching: Batching | None = None
) -> FastAPI:
    """The application: /api/..., /openapi.json, a page about the API at /api, and the explorer's own page at /.

    Args:
        service: does the work.
        page: whether the explorer's page is served as well.
        limits: what is taken from clients.
        batching: how predictions of several requests are joined; None computes each alone.
    """
    limits = limits or Limits()
    workers = Workers(limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()

    app = FastAPI(
        title="torchcaps",
        version=__version__,
        summary="Trained capsule networks: answers, reasons, routing step by step, reconstructions, attacks.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    app.add_middleware(Guard, limits=limits)
    add_problems(app)
    add_questions(app, service, workers, limits, None if batching is None else Batcher(service, workers, batching))
    add_files(app, page=page)
    return app


def add_questions(app: FastAPI, service: Service, workers: Workers, limits: Limits, batcher: Batcher | None) -> None:
    """The endpoints of the API."""

    async def work(function: Callable[[], BaseModel]) -> Response:
        content = await workers.run(lambda: function().model_dump_json())
        return Response(content, media_type="application/json")

    def ask(question: requests.Request, method: Callable[..., BaseModel], **options: Any) -> Any:
        known = {name: getattr(question, name) for name in type(question).model_fields}
        known["model"] = service.name_of(question.model)
        if known.get("image") is not None:
            known["image"] = from_base64(known["image"])
        return method(**known, **options)

    @app.get("/api/models", response_model=results.ModelList, tags=["models"])
    def models() -> Response:
        """All models, what each can do, which does what in the page, routings and limits."""
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

    @app.get("/api/examples", response_model=results.ExampleList, tags=["models"])
    async def examples(model: Annotated[str | None, Query(max_length=100)] = None) -> Response:
        """Examples of test data for a model, always the same."""
        name = service.name_of(model)
        return await work(lambda: results.ExampleList(model=name, examples=service.examples(name)))

    @app.post("/api/predict", response_model=results.Prediction, tags=["questions"])
    async def predict(question: requests.PredictRequest) -> Response:
        """What a model says about an image or a text."""
        if batcher is not None:
            return Response(await batcher.predict(question), media_type="application/json")
        return await work(partial(ask, question, service.predict))

    @app.post("/api/explain", response_model=results.Explanation, tags=["questions"])
    async def explain(question: requests.ExplainRequest) -> Response:
        """Where in the image, or from which words, the votes for a class come."""
        return await work(partial(ask, question, service.explain))

    @app.post("/api/trace", response_model=results.Trace, tags=["questions"])
    async def trace(question: requests.TraceRequest) -> Response:
        """How routing went on, iteration by iteration, with the model's own routing or another of the package."""
        return await work(partial(ask, question, service.trace))

    @app.post("/api/reconstruct", response_model=results.Reconstruction, tags=["questions"])
    async def reconstruct(question: requests.ReconstructRequest) -> Response:
        """What is decoded from the pose of a class."""
        return await work(partial(ask, question, service.reconstruct))

    @app.post("/api/poses", response_model=results.PoseDirections, tags=["questions"])
    async def poses(question: requests.PosesRequest) -> Response:
        """What the directions of a class's poses change, and some things of the class with their poses."""
        return await work(partial(ask, question, service.poses))

    @app.post("/api/attack", response_model=results.Attacked, tags=["questions"])
    async def attack(question: requests.AttackRequest) -> Response:
        """A small change of the pixels that makes the model err."""
        return await work(partial(ask, question, service.attack))

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


def add_files(app: FastAPI, *, page: bool) -> None:
    """The pages and what they load: read once, so that no path of a client ever reaches the file system."""
    folder = files("torchcaps.explorer") / "static"
    found = dict(_read(folder)) if folder.is_dir() else {}
    if not page:
        found = {path: content for path, content in found.items() if path.startswith("api.")}

    def send(path: str) -> Response:
        if path not in found:
            raise HTTPException(404, "there is no such file")
        return Response(found[path], media_type=TYPES[PurePosixPath(path).suffix])

    app.add_api_route("/api", lambda: send("api.html"), include_in_schema=False)
    app.add_api_route("/static/{path:path}", send, include_in_schema=False)
    app.add_api_route("/", lambda: send("index.html" if page else "api.html"), include_in_schema=False)


def _read(folder: Traversable, before: str = "") -> list[tuple[str, bytes]]:
    """The files of a folder that pages may load, by their paths within it."""
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _read(entry, f"{before}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in TYPES:
            found.append((before + entry.name, entry.read_bytes()))
    return found


def _place(location: tuple[int | str, ...]) -> str:
    """Where in a request something is wrong."""
    return ".".join(str(part) for part in location[1:]) or "the body"
