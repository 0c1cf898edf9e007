"""Sockets that services listen on."""

import socket

import pytest

from torchcaps.service.listening import open_socket


def test_without_a_wish_another_port_is_found(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr("torchcaps.service.listening.PREFERRED_PORT", other.getsockname()[1])
        with open_socket("127.0.0.1", None) as listener:
            assert listener.getsockname()[1] not in (0, other.getsockname()[1])


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("no.such.host.invalid", 0)])
def test_places_that_do_not_exist(host, port):
    with pytest.raises(ValueError, match="cannot listen on port"):
        open_socket(host, port)


def test_small_answers_are_sent_at_once():
    with open_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:  # what asyncio looks at before it sets TCP_NODELAY
            assert (accepted.proto, client.type) == (socket.IPPROTO_TCP, socket.SOCK_STREAM)
