"""What every test starts from."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from network import sitecustomize as network

NETWORK_LOG = Path(tempfile.mkstemp(prefix="torchcaps-network-")[1])
os.environ[network.LOG] = str(NETWORK_LOG)
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(network.__file__).parent), os.environ.get("PYTHONPATH")))
)
os.environ["HF_HUB_OFFLINE"] = "1"
settings.register_profile("suite", deadline=None, derandomize=True)  # the same on every machine, however busy it is
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def stays_here():
    """Nothing that a test does, in its process or in one that it starts, may ask another machine."""
    yield
    if attempts := NETWORK_LOG.read_text():
        NETWORK_LOG.write_text("")
        pytest.fail(f"a test must not go out: {attempts}")


def pytest_unconfigure():
    """The log is of no use any more."""
    NETWORK_LOG.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def seeded():
    """The same random numbers for a test, whichever tests run before it."""
    torch.manual_seed(0)
    np.random.seed(0)  # scikit-learn's own checks draw from there


@pytest.fixture
def one_example_chunks(monkeypatch):
    """The chunked backend solves one example at a time."""
    monkeypatch.setattr("torchcaps.routing.solvers.CHUNK_BYTES", 1)


@pytest.fixture
def on_reference():
    """Everything in the test is solved by the reference, unless a call names another backend."""
    from torchcaps.routing import use_backend

    with use_backend("reference"):
        yield
