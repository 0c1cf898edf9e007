"""An explorer with small models that nobody trained, and a client of its API."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from support.services import DIGIT, small_predictors
from torchcaps.explorer import Explorer, create_app
from torchcaps.service import Limits
from torchcaps.service.images import to_base64


@pytest.fixture(scope="session")
def explorer() -> Explorer:
    return Explorer(small_predictors(), {"broken": "it is broken"})


@pytest.fixture(scope="session")
def client(explorer) -> Iterator[TestClient]:
    with TestClient(create_app(explorer, limits=Limits(seconds=60))) as client:  # machines may be busy
        yield client


@pytest.fixture(scope="session")
def png() -> str:
    return to_base64(DIGIT)
