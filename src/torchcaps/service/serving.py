"""The API as a service of its own: predictions in batches, health, metrics, and an end that loses no answer."""

import socket
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, perf_counter
from types import FrameType

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchcaps.service.app import create_app
from torchcaps.service.batching import Batching
from torchcaps.service.connections import Configuration
from torchcaps.service.guard import refuse
from torchcaps.service.limits import Limits
from torchcaps.service.metrics import Metrics
from torchcaps.service.refusals import Unavailable
from torchcaps.service.service import Service

ALWAYS_ANSWERED = ("/health", "/metrics")  # also while the service ends: they say that it does


class Serving:
    """A service, what it has done so far, and whether it takes new work.

    Args:
        service: does the work.
        limits: what is taken from clients.
        batching: how predictions are joined; None computes each alone.
    """

    def __init__(self, service: Service, *, limits: Limits | None = None, batching: Batching | None = None) -> None:
        self.limits, self.metrics, self.is_closing = limits or Limits(), Metrics(), False
        if batching is not None:
            batching = replace(batching, on_batch=self.metrics.batches.add)
        self.app = create_app(service, limits=self.limits, batching=batching)
        add_reports(self.app, self)
        paths = {str(route.path) for route in self.app.routes if hasattr(route, "path")}
        self.app.add_middleware(Gate, serving=self, paths=paths)

    def run(self, listener: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT: then new work is refused, and what was begun is finished first.

        A second signal ends at once what is still running.

        Args:
            listener: where requests come in.
            on_start: called when they are answered.
        """
        Server(Configuration(self.app, self.limits), self, on_start).run([listener])


class Gate:
    """Counts every request, and lets no new one in when the service is about to end."""

    def __init__(self, app: ASGIApp, serving: Serving, paths: set[str]) -> None:
        self.app, self.serving, self.paths = app, serving, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics, start, status = self.serving.metrics, perf_counter(), 500

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = scope["path"] if scope["path"] in self.paths else "other"  # clients shall not name metrics
        is_work = path not in ALWAYS_ANSWERED
        metrics.num_under_way += is_work
        try:
            if is_work and self.serving.is_closing:
                await refuse(Unavailable("the service is shutting down; ask another one"), send_and_look)
            else:
                await self.app(scope, receive, send_and_look)
        finally:
            metrics.num_under_way -= is_work
            metrics.add(path, status, perf_counter() - start)


class Server(uvicorn.Server):
    """Listens until nothing is under way any more, so that whoever comes late is told so rather than cut off."""

    def __init__(self, config: uvicorn.Config, serving: Serving, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self.serving, self.on_start, self.deadline = serving, on_start, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, and say so."""
        await super().startup(sockets)
        self.on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal closes the gate, the next ends."""
        if self.serving.is_closing:
            self.should_exit = self.force_exit = True
        self.serving.is_closing = True
        # a body may take this long to arrive, and an answer as long again; longer takes only who does not listen
        self.deadline = monotonic() + 2 * self.serving.limits.seconds

    async def on_tick(self, counter: int) -> bool:
        """Whether it is time to end; asked ten times a second."""
        if self.serving.is_closing and (self.serving.metrics.num_under_way == 0 or monotonic() > self.deadline):
            return True
        return await super().on_tick(counter)


def add_reports(app: FastAPI, serving: Serving) -> None:
    """The endpoints for those who run the service."""

    @app.get("/health", tags=["operation"])
    async def health() -> Response:
        """200 while the service takes work, 503 when it is about to end."""
        if serving.is_closing:
            return JSONResponse({"status": "closing"}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", tags=["operation"])
    async def metrics() -> Response:
        """Counters in the text format of Prometheus."""
        return PlainTextResponse(serving.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
