"""Connections that nobody can hold without asking, nor without taking the answer: both are given up after a while."""

import asyncio

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from torchcaps.service.limits import Limits

CROWDED = b'{"detail": "too many connections are open; try again in a second"}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%b"
) % (len(CROWDED), CROWDED)


class Connection(H11Protocol):
    """The server's connection with a clock of its own.

    The server itself waits for ever for the rest of a request's head, and for a client that does not take its answer.
    Here the clock runs whenever it is the client's turn: until the head of a request is there, and while an answer
    cannot be written. The Guard has the time of bodies, the Workers that of answers.
    """

    config: "Configuration"  # pyrefly: ignore[bad-override-mutable-attribute]
    clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, if there is room."""
        super().connection_made(transport)
        self.look_at_clock()
        if len(self.connections) > self.config.limits.sockets:
            transport.write(REFUSAL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the head of a request is there."""
        super().data_received(data)
        self.look_at_clock()

    def on_response_complete(self) -> None:
        """Begin to wait for the answer to be taken, and for the next request."""
        super().on_response_complete()
        self.stop_clock()
        self.look_at_clock()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self.look_at_clock()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self.look_at_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        super().connection_lost(exc)
        self.stop_clock()

    def look_at_clock(self) -> None:
        """Let it run if it is the client's turn, from when it became so; else stop it."""
        is_asking = self.cycle is not None and not self.cycle.response_complete
        if is_asking and not self.flow.write_paused:
            self.stop_clock()
        elif self.clock is None:
            self.clock = self.loop.call_later(self.config.limits.seconds, self.transport.abort)

    def stop_clock(self) -> None:
        """The client has done its part."""
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None


class Configuration(uvicorn.Config):
    """How an application is served.

    Args:
        app: the application.
        limits: what is taken from clients.
    """

    def __init__(self, app: FastAPI, limits: Limits) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            log_level="warning",
            server_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
            backlog=128,  # so many are let in at once, before those that are too many are sent away
        )
        self.limits = limits
