"""What every test starts from."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """The same random numbers for a test, whichever tests run before it."""
    torch.manual_seed(0)


@pytest.fixture
def one_example_chunks(monkeypatch):
    """The chunked backend solves one example at a time."""
    monkeypatch.setattr("torchcaps.routing.backend.CHUNK_BYTES", 1)


@pytest.fixture
def on_reference():
    """Everything in the test is solved by the reference, unless a call names another backend."""
    from torchcaps.routing import use_backend

    with use_backend("reference"):
        yield
