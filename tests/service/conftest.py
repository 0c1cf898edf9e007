"""A service with small models that nobody trained, and a client of its API."""

from collections.abc import Iterator

import numpy as np
import pytest
from starlette.testclient import TestClient

from support.services import DIGIT, small_predictors
from torchcaps.service import Limits, Service, create_app
from torchcaps.service.images import to_base64


@pytest.fixture(scope="session")
def service() -> Service:
    service = Service(small_predictors(), {"broken": "it is broken"})
    service.warm_up()
    return service


@pytest.fixture(scope="session")
def client(service) -> Iterator[TestClient]:
    with TestClient(create_app(service, limits=Limits(seconds=60))) as client:  # machines may be busy
        yield client


@pytest.fixture(scope="session")
def digit() -> np.ndarray:
    return DIGIT


@pytest.fixture(scope="session")
def png(digit) -> str:
    return to_base64(digit)


@pytest.fixture(scope="session")
def pair() -> str:
    """Two cameras side by side."""
    return to_base64(np.random.default_rng(1).integers(0, 256, (20, 40), dtype=np.uint8))
