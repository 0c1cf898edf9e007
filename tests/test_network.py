"""The package asks nobody: importing it, its help and the models that ship need no network, nor does any test."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from network.sitecustomize import LOG

ANOTHER_MACHINE = ("192.0.2.1", 80)  # reserved for documentation: there is nobody
WATCH = """
import sys
sockets = []
sys.addaudithook(lambda event, arguments: sockets.append(event) if event.startswith("socket.") else None)
"""


def noted() -> str:
    """What was noted, which is forgotten."""
    path = Path(os.environ[LOG])
    log = path.read_text()
    path.write_text("")
    return log


@pytest.mark.parametrize(
    "code",
    [
        "import torchcaps",
        "from torchcaps.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from torchcaps.cli import main\nmain(['models'])",
        "from torchcaps.cli import main\nmain(['data', 'list'])",
        "import torchcaps\nfor path in __import__('torchcaps.models.saving').models.saving.SHIPPED.iterdir():\n"
        "    torchcaps.load(path.name)",
    ],
    ids=["import", "help", "models", "data list", "shipped models"],
)
def test_no_socket_is_touched(code):
    ending = "\nassert not sockets, sockets"
    finished = subprocess.run([sys.executable, "-c", WATCH + code + ending], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_a_test_that_goes_out_is_caught():
    with socket.socket() as outside, pytest.raises(OSError, match="tests do not go out"):
        outside.connect(ANOTHER_MACHINE)
    assert noted().startswith("socket.connect 192.0.2.1 ")
    with pytest.raises(OSError, match="tests do not go out"):
        socket.getaddrinfo("example.com", 80)
    assert noted().startswith("socket.getaddrinfo example.com ")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside, pytest.raises(OSError, match="do not go out"):
        outside.sendto(b"hello", ANOTHER_MACHINE)
    assert noted().startswith("socket.sendto 192.0.2.1 ")


def test_a_process_of_a_test_that_goes_out_is_caught():
    code = (
        "import socket\n"
        f"try: socket.create_connection({ANOTHER_MACHINE})\n"
        "except OSError: pass  # swallowed, and found all the same"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert " 192.0.2.1 " in noted()


def test_this_machine_may_be_asked():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
    left, right = socket.socketpair()
    left.close(), right.close()
    assert socket.getaddrinfo("localhost", 80)
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("nowhere.invalid", 80)
    assert noted() == ""
