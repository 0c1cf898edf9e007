"""Who asks for nothing, or does not take the answer, keeps no connection; whoever asks is answered all the same."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from torchcaps.service import Limits, create_app
from torchcaps.service.connections import Configuration
from torchcaps.service.listening import open_socket

SECONDS = 1.0
HEALTH = b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def server(service) -> Iterator[uvicorn.Server]:
    """A server with little patience and eight places."""
    with serving(service, SECONDS) as server:
        yield server


@pytest.fixture
def patient_server(service) -> Iterator[uvicorn.Server]:
    """One that waits for those who are kept waiting themselves."""
    with serving(service, 60.0) as server:
        yield server


@contextmanager
def serving(service, seconds: float) -> Iterator[uvicorn.Server]:
    limits = Limits(seconds=seconds, sockets=8)
    listener = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(Configuration(create_app(service, limits=limits), limits))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.port = listener.getsockname()[1]
    yield server
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


def connect(server, *, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    return connection


def ask(connection: socket.socket) -> bytes:
    connection.sendall(HEALTH)
    answer = b""
    while b'{"status":"ok"}' not in answer and (more := connection.recv(65536)):
        answer += more
    return answer


def seconds_until_closed(connection: socket.socket, *, trickle: bytes = b"") -> float:
    """How long the other side keeps it, while one byte after the other is sent."""
    started = time.monotonic()
    connection.settimeout(0.02 if trickle else 60)
    for place in range(100_000):
        try:
            if trickle:
                connection.sendall(trickle[place : place + 1])
            if connection.recv(65536) == b"":
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    return time.monotonic() - started


def wait_until_empty(server) -> None:
    deadline = time.monotonic() + 60
    while server.server_state.connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_client_is_given_up(server):
    with connect(server) as connection:
        assert SECONDS / 2 < seconds_until_closed(connection) < 60
    wait_until_empty(server)


def test_bytes_that_trickle_do_not_wind_the_clock(server):
    with connect(server) as connection:
        assert seconds_until_closed(connection, trickle=b"GET / HTTP/1.1\r\nX-Slow: " + b"x" * 50_000) < 20
    with connect(server) as connection:  # also after a good request
        assert b" 200 " in ask(connection)
        assert seconds_until_closed(connection, trickle=b"GET / HTTP/1.1\r\nX-Slow: " + b"x" * 50_000) < 20
    wait_until_empty(server)


def test_who_does_not_read_is_given_up(server):
    with connect(server, receive_buffer=4096) as connection:
        with pytest.raises((TimeoutError, ConnectionError)):  # answers pile up, then requests are not taken either
            connection.sendall(LARGE * 200_000)
        wait_until_empty(server)
    with connect(server) as connection:
        assert b" 200 " in ask(connection)


def test_one_more_than_there_is_room_for(patient_server):
    server = patient_server
    crowd = [connect(server) for _ in range(8)]
    with connect(server) as late:
        answer = late.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too many connections are open" in answer
        assert seconds_until_closed(late) < 20
    for connection in crowd:  # those who were there first are served
        assert b" 200 " in ask(connection)
        connection.close()
    wait_until_empty(server)
    with connect(server) as connection:
        assert b" 200 " in ask(connection)


def test_who_keeps_asking_keeps_the_connection(server):
    with connect(server) as connection:
        started = time.monotonic()
        while time.monotonic() - started < 1.5 * SECONDS:
            assert b" 200 " in ask(connection)
