"""Clients of a service over HTTP: good ones, whose answers are checked, and those that are slow, rude or wrong.

Each kind is a coroutine `kind(target, choose)` that plays its part once and says how it ended, in a few words. What
must never happen raises `Broken`.
"""

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 90.0  # seconds: whoever is not answered or sent away by then has found a hang, also on a busy machine
TOLERANCE = 1e-4  # of six decimals, computed with others in a batch and with another number of threads
MEGABYTE = 2**20
LOST = (ConnectionError, asyncio.IncompleteReadError, BrokenPipeError)
REFUSALS = (429, 503)
DOOR, IDLE = "turned away at the door", "a kept connection ended between two questions"
CHUNKED = (
    b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


class Broken(Exception):
    """A promise of the service does not hold."""


@dataclass(frozen=True)
class Question:
    """A request, and what of its answer is known."""

    path: str
    body: bytes
    expected: dict[str, Any]

    def check(self, answer: bytes) -> None:
        """Raise unless the answer is right."""
        found = json.loads(answer)
        for name, value in self.expected.items():
            if not is_close(found[name], value):
                raise Broken(f"{self.path}: {name} is {found[name]!r} where {value!r} is right")


@dataclass
class Target:
    """A service and what can be asked of it."""

    port: int
    questions: list[Question]
    seconds: list[float] = field(default_factory=list)  # that good answers took


def is_close(found: Any, expected: Any) -> bool:
    """Whether two answers are the same up to rounding."""
    if isinstance(expected, float):
        return isinstance(found, int | float) and abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_close, found, expected))
    return found == expected


def head(path: str, length: int, *, method: str = "POST", more: str = "") -> bytes:
    """The head of a request with a body of JSON."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


def whole(question: Question) -> bytes:
    """A good request."""
    return head(question.path, len(question.body)) + question.body


class Line:
    """A connection to a service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, data: bytes) -> None:
        """Send, as fast as it is taken."""
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self) -> tuple[int, bytes, bool]:
        """Status and body of an answer, and whether the connection stays."""
        start = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", start, re.IGNORECASE)
        body = await (self.reader.readexactly(int(length[1])) if length else self.reader.read())
        return int(start.split(b" ", 2)[1]), body, re.search(rb"connection: close", start, re.IGNORECASE) is None

    async def ask(self, pieces: Iterable[bytes], pause: float = 0.0) -> tuple[int, bytes, bool]:
        """The answer to a request, which may come before all of it was sent."""
        answer = asyncio.create_task(self.hear())
        try:
            for piece in pieces:
                try:
                    await self.say(piece)
                except LOST:
                    break
                if answer.done():
                    break
                await asyncio.sleep(pause)
            async with asyncio.timeout(PATIENCE):
                return await answer
        finally:
            answer.cancel()

    async def until_closed(self) -> bytes:
        """Everything that comes until the other side hangs up."""
        found = b""
        with contextlib.suppress(*LOST):
            while more := await self.reader.read(65536):
                found = (found + more)[:65536]
        return found

    def reset(self) -> None:
        """Hang up at once: the other side gets a reset, not an end."""
        connection = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the other side may have been faster
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Call:
    """A connection that is closed in the end, whatever happens: `async with Call(target) as line`."""

    def __init__(self, target: Target, *, receive_buffer: int | None = None) -> None:
        self.target, self.receive_buffer = target, receive_buffer

    async def __aenter__(self) -> Line:
        connection = socket.socket()
        connection.setblocking(False)
        if self.receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.target.port))
            self.line = Line(*await asyncio.open_connection(sock=connection))
        except BaseException:
            connection.close()
            raise
        return self.line

    async def __aexit__(self, *_: object) -> None:
        self.line.writer.transport.abort()


def judge(status: int, body: bytes, allowed: tuple[int, ...]) -> str:
    """The outcome of an answer that must have one of a few statuses; a refusal says why."""
    if status not in allowed:
        raise Broken(f"answered {status} where one of {allowed} was right: {body[:200]!r}")
    if status != 200 and body[:1] == b"{" and not json.loads(body)["detail"]:
        raise Broken(f"answered {status} without a reason")
    return str(status)


async def good(target: Target, choose: random.Random) -> str:
    """Ask ten times on one connection, and check each answer; one that is told to come again waits.

    A connection that is kept may end before the next question, as the standard allows, and a busy machine is late.
    """
    async with Call(target) as line:
        for number in range(10):
            question, start = choose.choice(target.questions), time.perf_counter()
            try:
                status, body, stays = await line.ask([whole(question)])
            except LOST:
                return IDLE if number else DOOR
            outcome = judge(status, body, (200, *REFUSALS))
            if status == 200:
                question.check(body)
                target.seconds.append(time.perf_counter() - start)
            else:
                await asyncio.sleep(choose.uniform(0.2, 1.0))
            if not stays:
                return f"closed after {outcome}"
    return "ten answers"


async def unhurried(target: Target, choose: random.Random) -> str:
    """Send a good request in eight parts, over two seconds, and take the answer in small pieces."""
    question = choose.choice(target.questions)
    request = whole(question)
    step = -(-len(request) // 8)
    pieces = [request[place : place + step] for place in range(0, len(request), step)]
    async with Call(target, receive_buffer=4096) as line:
        try:
            status, body, _ = await line.ask(pieces, pause=0.25)
        except LOST:
            return DOOR
        outcome = judge(status, body, (200, 408, *REFUSALS))  # 408 where a busy machine made the client slow
        if status == 200:
            question.check(body)
        return outcome


async def silent(target: Target, choose: random.Random) -> str:
    """Say nothing; the service hangs up."""
    async with Call(target) as line:
        await line.until_closed()
    return "closed"


async def slow_head(target: Target, choose: random.Random) -> str:
    """Send the head of a request byte by byte, without an end; the service hangs up."""
    async with Call(target) as line:
        closed = asyncio.create_task(line.until_closed())
        await line.say(b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        await trickle(line, closed, choose)
        return "closed"


async def slow_body(target: Target, choose: random.Random) -> str:
    """Send a body byte by byte; the service says 408 and hangs up."""
    async with Call(target) as line:
        closed = asyncio.create_task(line.until_closed())
        await line.say(head("/api/predict", 100_000))
        await trickle(line, closed, choose)
        answer = closed.result()
        return judge(int(answer.split()[1]), b"", (408, 503)) if answer else "closed"


async def trickle(line: Line, closed: asyncio.Task[bytes], choose: random.Random) -> None:
    """A byte now and then, until the other side hangs up."""
    while not closed.done():
        with contextlib.suppress(*LOST):
            await line.say(b"x")
        await asyncio.wait([closed], timeout=choose.uniform(0.1, 0.5))


async def deaf(target: Target, choose: random.Random) -> str:
    """Ask for many large answers at once and take none; that the service lets go is seen by its open files."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with Call(target, receive_buffer=4096) as line:
        line.writer.write(request * 300)
        await asyncio.sleep(choose.uniform(5, 15))
        line.reset()
    return "never listened"


async def dropped_in_request(target: Target, choose: random.Random) -> str:
    """Hang up with a reset in the middle of a request."""
    request = whole(choose.choice(target.questions))
    async with Call(target) as line:
        await line.say(request[: choose.randrange(1, len(request))])
        await asyncio.sleep(choose.uniform(0, 0.05))
        line.reset()
    return "dropped"


async def dropped_in_answer(target: Target, choose: random.Random) -> str:
    """Hang up with a reset while the service works, or in the middle of the answer."""
    async with Call(target, receive_buffer=4096) as line:
        await line.say(whole(choose.choice(target.questions)))
        if choose.random() < 0.5:
            await asyncio.sleep(choose.uniform(0, 0.1))
        else:
            with contextlib.suppress(*LOST):
                await line.reader.read(20)
        line.reset()
    return "dropped"


async def oversized(target: Target, choose: random.Random) -> str:
    """A body that is too large: declared, in pieces without a declared end, or in one field."""
    field_body = json.dumps({"model": "m" * 900_000, "text": "t"}).encode()
    pieces: Iterable[bytes] = choose.choice(
        (
            [head("/api/predict", 8 * MEGABYTE), *([bytes(MEGABYTE)] * 8)],
            [CHUNKED, *([b"10000\r\n" + bytes(65536) + b"\r\n"] * 256)],
            [head("/api/predict", len(field_body)) + field_body],
        )
    )
    async with Call(target) as line:
        try:
            status, body, _ = await line.ask(pieces)
        except LOST:
            return "closed"
        return judge(status, body, (408, 413, 422, 503))


def malformed_requests(good_body: bytes) -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Wrong requests by name, and what may be answered."""
    question = json.loads(good_body)

    def post(body: bytes, path: str = "/api/predict", **options: Any) -> bytes:
        return head(path, len(body), **options) + body

    return {
        "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", (400,)),
        "no host": (b"GET / HTTP/1.1\r\n\r\n", (400,)),
        "other host": (b"GET /api/health HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", (400,)),
        "large head": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Large: " + b"x" * MEGABYTE, (400, 431)),
        "negative length": (b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n", (400,)),
        "two lengths": (
            b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
            (400,),
        ),
        "wrong chunk": (CHUNKED + b"ZZ\r\nabc\r\n", (400,)),
        "no JSON": (post(b"{nothing}"), (400, 422)),
        "no text": (post(b"\xff\xfe\x00\xd8" * 10), (400, 422)),
        "deep JSON": (post(b"[" * 200_000), (400, 422)),
        "long number": (post(b'{"model": ' + b"9" * 10_000 + b"}"), (400, 422)),
        "not a number": (post(b'{"model": NaN}'), (400, 422)),
        "a list": (post(b"[1, 2, 3]"), (400, 422)),
        "empty": (post(b""), (400, 422)),
        "unknown field": (post(json.dumps(question | {"surprise": 1}).encode()), (422,)),
        "unknown model": (post(json.dumps(question | {"model": "nobody"}).encode()), (404,)),
        "no picture": (post(json.dumps({"model": question["model"], "image": "AAAA"}).encode()), (422,)),
        "text and image": (post(json.dumps({"model": question["model"], "image": "A", "text": "a"}).encode()), (422,)),
        "unknown path": (post(good_body, "/api/nothing"), (404, 405)),
        "climbing path": (b"GET /static/../../../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", (404,)),
        "wrong method": (post(good_body, method="DELETE"), (405,)),
        "upgrade": (
            b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            (404,),
        ),
    }


async def malformed(target: Target, choose: random.Random) -> str:
    """One of many wrong requests."""
    image = next(question for question in target.questions if b'"image"' in question.body)
    name, (request, allowed) = choose.choice(list(malformed_requests(image.body).items()))
    async with Call(target) as line:
        try:
            status, body, _ = await line.ask([request])
        except LOST:
            return "closed"
        try:
            return judge(status, body, (*allowed, *REFUSALS))
        except Broken as broken:
            raise Broken(f"{name}: {broken}") from broken


async def crowd(target: Target, choose: random.Random) -> str:
    """Three hundred connections at once, each with a good question."""
    outcomes = await asyncio.gather(*(one_of_crowd(target, choose) for _ in range(300)))
    return "some answered, some turned away" if len(set(outcomes)) > 1 else f"all {outcomes[0]}"


async def one_of_crowd(target: Target, choose: random.Random) -> str:
    """A good question, whose answer may be a refusal."""
    question = choose.choice(target.questions)
    async with Call(target) as line:
        try:
            status, body, _ = await line.ask([whole(question)])
        except LOST:
            return DOOR
        outcome = judge(status, body, (200, *REFUSALS))
        if status == 200:
            question.check(body)
        return outcome


async def stampede(target: Target, choose: random.Random) -> str:
    """More connections than are taken, all of them silent, dropped after two seconds."""

    async def one() -> bool:
        async with Call(target) as line:
            with contextlib.suppress(TimeoutError, *LOST):
                async with asyncio.timeout(2):
                    return b" 503 " in await line.reader.read(30)
            line.reset()
            return False

    refused = await asyncio.gather(*(one() for _ in range(700)))
    return "some turned away" if any(refused) else "all let in"


Kind = Callable[[Target, random.Random], Awaitable[str]]

# How many play each part at the same time, and the pause of each between two plays, in seconds.
PARTS: dict[Kind, tuple[int, float]] = {
    good: (40, 0.0),
    unhurried: (3, 0.2),
    silent: (10, 0.5),
    slow_head: (10, 0.5),
    slow_body: (10, 0.5),
    deaf: (3, 0.5),
    dropped_in_request: (3, 0.1),
    dropped_in_answer: (3, 0.1),
    oversized: (2, 0.5),
    malformed: (3, 0.1),
    crowd: (1, 10.0),
    stampede: (1, 45.0),
}
