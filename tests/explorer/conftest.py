"""An explorer with small models that nobody trained, a client of its API, and its page in a real browser."""

import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import torch
import uvicorn
from starlette.testclient import TestClient

from support.services import (
    CHINESE,
    DIGIT,
    model_on_encoder,
    small_predictors,
    small_recommender,
    text_model,
    toy_model,
)
from torchcaps import load
from torchcaps.explorer import Explorer, create_app
from torchcaps.models import create_model
from torchcaps.predictor import Predictor
from torchcaps.service import Limits
from torchcaps.service.images import to_base64
from torchcaps.service.listening import open_socket

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


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


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from support.pages import BROWSERS, sync_api  # skips where there is no playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("the browser tests need chromium (on Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(browser, tmp_path_factory) -> Iterator[str]:
    """Of a server on a free port."""
    torch.manual_seed(0)
    models = {
        "cnn": create_model("cnn-small", image_shape=(1, 28, 28), num_classes=10),
        "toys": toy_model(),
        "english": model_on_encoder(tmp_path_factory.mktemp("encoder")),
        "chinese": text_model("text-capsule-a", CHINESE, "characters"),
        "people": small_recommender(),
    }
    predictors = {name: Predictor(model) for name, model in models.items()}
    explorer = Explorer({"capsnet-small-mnist": load("capsnet-small-mnist"), **predictors})
    explorer.warm_up()
    app = create_app(explorer, limits=Limits(seconds=60))
    listener = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def visit(browser, address) -> Iterator[Callable[..., "Page"]]:
    """Opens the page; at the end of the test, nothing was logged and nothing came from elsewhere."""
    from support.pages import TIMEOUT, settled

    complaints: list[str] = []
    elsewhere: list[str] = []
    contexts = []

    def is_ours(url: str) -> bool:
        return url.startswith((address, "data:"))

    def open_page(hash_: str = "", *, width: int = 1280, ready: bool = True, **options) -> "Page":
        options = {"locale": "en-GB", "color_scheme": "light", "reduced_motion": "reduce", **options}
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if is_ours(request.url) else elsewhere.append(request.url))
        page.goto(address + hash_)
        if ready:
            settled(page)
        return page

    open_page.complaints = complaints
    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert elsewhere == []
