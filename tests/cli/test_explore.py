"""`torchcaps explore` as a user runs it."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from torchcaps.cli import main
from torchcaps.cli.explore import LOCAL, Explore, address_of, allowed_hosts


def test_serves_until_interrupted():
    command = [sys.executable, "-m", "torchcaps", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert address, line
        with urllib.request.urlopen(address[0] + "api/models") as response:
            names = [card["id"] for card in json.load(response)["models"]]
        assert "capsnet-small-mnist" in names
        with urllib.request.urlopen(address[0]) as response:
            assert response.headers["content-security-policy"].startswith("default-src 'self'")
        process.send_signal(signal.SIGINT)
        assert process.wait(300) in (0, 130)  # 0 where the shell that started the tests ignores the signal


def test_what_it_runs_with(monkeypatch, tmp_path):
    from torchcaps.models import create_model

    create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=3).save_pretrained(tmp_path / "mine")
    monkeypatch.setattr("torchcaps.service.catalogue.SHIPPED", tmp_path / "nothing ships")
    opened, seen = [], []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def run(app, limits, listener, on_start):
        on_start()
        assert limits.hosts == LOCAL  # no page of another site may speak to it
        seen.append(listener.getsockname()[:2])

    monkeypatch.setattr("torchcaps.service.listening.run", run)
    Explore(run_folder=str(tmp_path / "mine"), port=0).run()
    ((host, port),) = seen
    assert host == "127.0.0.1"
    assert opened == [f"http://127.0.0.1:{port}/"]
    Explore(run_folder=str(tmp_path / "mine"), port=0, no_browser=True).run()
    assert len(opened) == 1


def test_a_port_that_is_taken(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["explore", "--no-browser", "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert f"cannot listen on port {port} of 127.0.0.1" in told
    assert "choose another with --port" in told


def test_the_extra_is_missing(monkeypatch, capsys):
    monkeypatch.setattr("torchcaps.cli.explore.find_spec", lambda name: None)
    assert main(["explore", "--no-browser"]) == 2
    assert "needs fastapi and uvicorn: pip install 'torchcaps[explorer]'" in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys):
    assert main(["explore", "nowhere/at/all", "--no-browser", "--port", "0"]) == 2
    assert "no model at 'nowhere/at/all'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "is_local", "address"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:80"),
        ("localhost", True, "http://localhost:80"),
        ("::1", True, "http://[::1]:80"),
        ("0.0.0.0", False, "http://127.0.0.1:80"),
        ("::", False, "http://[::1]:80"),
        ("192.168.0.7", False, "http://192.168.0.7:80"),
    ],
)
def test_who_may_ask_and_where(host, is_local, address):
    assert allowed_hosts(host) == (LOCAL if is_local else None)
    assert address_of(host, 80) == address
