"""What stands before the application: bodies are bounded, strangers are sent away, answers say what a page may do."""

import asyncio
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchcaps.service.limits import Limits
from torchcaps.service.refusals import Failure, Refusal, TooLarge, TooSlow, Unavailable, WrongHost

# A page of ours loads from here and nowhere else; no other page may frame it.
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"cache-control", b"no-cache"),
)


class Guard:
    """Reads the body of each request within its limits, before the application sees the request."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.num_under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        is_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        self.num_under_way += 1
        try:
            try:
                body = await self.admit(scope, receive)
            except Refusal as refusal:
                await refuse(refusal, send_with_headers)
                return
            await self.app(scope, replay(body, receive), send_with_headers)
        except Exception:
            if not is_started:
                await refuse(Failure("the service failed at this; its log says why"), send_with_headers)
            raise  # for the log
        finally:
            self.num_under_way -= 1

    async def admit(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body of a request that may come in."""
        if self.num_under_way > self.limits.connections:
            raise Unavailable(f"{self.limits.connections} requests are under way already; try again in a second")
        headers = dict(scope["headers"])
        self.check_host(headers.get(b"host", b"").decode("latin-1"))
        too_large = TooLarge(f"the body of a request must have at most {self.limits.body_bytes} bytes")
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > self.limits.body_bytes:
            raise too_large
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise TooSlow("the client went away")
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self.limits.body_bytes:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError as error:
            raise TooSlow(f"the body did not arrive within {self.limits.seconds:g} seconds") from error

    def check_host(self, host: str) -> None:
        """Raise unless the request is for this host, whatever the port."""
        name = host.rsplit(":", 1)[0] if host.count(":") == 1 or host.startswith("[") else host
        name = name if not host.endswith("]") else host
        if self.limits.hosts is not None and name.lower() not in self.limits.hosts:
            raise WrongHost(f"this service answers to {', '.join(self.limits.hosts)}, not to other names")


def replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then goes on listening."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def refuse(refusal: Refusal, send: Send) -> None:
    """Answer with a reason; a connection whose body was not read to its end is closed."""
    content = json.dumps({"detail": str(refusal)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
