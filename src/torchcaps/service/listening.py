"""Running the application on a port of this machine."""

import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from torchcaps.service.connections import Configuration
from torchcaps.service.limits import Limits

PREFERRED_PORT = 8765


def open_socket(host: str, port: int | None) -> socket.socket:
    """A socket that listens on a port; without one on the preferred port, or on a free one if that is taken.

    Args:
        host: address to listen at.
        port: wanted port, 0 for any free one; None for the preferred.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (PREFERRED_PORT, 0) if port is None else (port,):
        # Only where the protocol is named does asyncio send small packets at once; else every answer takes 40 ms more.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted))
            listener.listen()
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            if port is not None:
                raise ValueError(
                    f"cannot listen on port {port} of {host} ({error}); choose another with --port, or leave it out"
                ) from error
    raise ValueError(f"cannot listen on any port of {host}")


def run(app: FastAPI, limits: Limits, listener: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
    """Serve an application until it is interrupted.

    Args:
        app: the application.
        limits: what is taken from clients.
        listener: where requests come in.
        on_start: called when they are answered.
    """

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start()

    Server(Configuration(app, limits)).run([listener])
