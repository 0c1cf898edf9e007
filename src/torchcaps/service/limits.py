"""How much one client, or all of them together, may ask for."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from torchcaps.checks import check_count, check_positive
from torchcaps.service.refusals import TooMany, Unavailable

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the service takes; images and texts have limits of their own.

    Attributes:
        body_bytes: of a request.
        workers: requests that are answered at the same time.
        waiting: requests that may wait for a worker; one more is told to come again (429).
        connections: requests that may be under way, their bodies still arriving included; one more gets 503.
        sockets: connections that may be open, also those that ask for nothing; one more gets 503 and is closed.
        seconds: until a request must be answered, until its body must have arrived, and until a client that is
            connected must have asked for something or taken its answer.
        hosts: names by which the service may be addressed, against pages of others that point a name of theirs at this
            machine; None for any.
    """

    body_bytes: int = 2**20
    workers: int = 2
    waiting: int = 32
    connections: int = 256
    sockets: int = 512
    seconds: float = 10.0
    hosts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("body_bytes", "workers", "connections", "sockets"):
            check_count(name, getattr(self, name))
        check_count("waiting", self.waiting, least=0)
        check_positive("seconds", self.seconds)


class Workers:
    """A few threads that work for all requests, with a short queue before them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.executor = ThreadPoolExecutor(limits.workers, thread_name_prefix="explorer")
        self.places = threading.BoundedSemaphore(limits.workers + limits.waiting)

    async def run(self, work: Callable[[], Kind]) -> Kind:
        """What `work` returns; it keeps its place until it has ended, even if nobody waits for it any more."""
        self.enter()
        try:
            future = self.submit(work)
        except Unavailable:
            self.leave()
            raise
        future.add_done_callback(lambda _: self.leave())
        return await self.in_time(asyncio.wrap_future(future))

    def enter(self) -> None:
        """Take a place among those who work or wait."""
        if not self.places.acquire(blocking=False):
            raise TooMany(f"{self.limits.waiting} requests are waiting already; try again in a second")

    def leave(self) -> None:
        """Give the place back."""
        self.places.release()

    def submit(self, work: Callable[[], Kind]) -> Future[Kind]:
        """Let a thread do it when one is free."""
        try:
            return self.executor.submit(work)
        except RuntimeError as error:  # shut down
            raise Unavailable("the service is shutting down") from error

    async def in_time(self, future: asyncio.Future[Kind]) -> Kind:
        """What comes of it within the time that a request may take."""
        try:
            return await asyncio.wait_for(future, self.limits.seconds)
        except TimeoutError as error:
            raise Unavailable(f"no answer within {self.limits.seconds:g} seconds; try again") from error

    def close(self) -> None:
        """Let those go on that work, and send those away that wait."""
        self.executor.shutdown(wait=False, cancel_futures=True)
