"""The explorer's page in a browser: what tests do to it and see of it."""

from urllib.parse import parse_qs, urlsplit

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright, an extra of dev")
Browser, Page, expect = sync_api.Browser, sync_api.Page, sync_api.expect

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
VIEWS = ("routing", "origins", "pose", "attack", "toys", "text", "interests")
SEVEN = [[(0.3, 0.25), (0.7, 0.25), (0.45, 0.8)]]
NOTHING, MINUS = "\u2013", "\u2212"
TIMEOUT = 60_000  # milliseconds; a busy machine is not a failure

expect.set_options(timeout=TIMEOUT)


def settled(page: Page) -> None:
    """Wait until nothing is being computed."""
    expect(page.locator("html[data-ready]")).to_have_count(1)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def state(page: Page) -> dict[str, str]:
    """What the address of the page says after #; it follows the page with 200 ms of delay."""
    page.wait_for_timeout(300)
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).fragment).items()}


def draw(page: Page, strokes: list[list[tuple[float, float]]], *, lift: bool = True) -> None:
    box = page.locator("#pad").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=8)
        if lift:
            page.mouse.up()


def slide(page: Page, selector: str, value: float) -> None:
    page.locator(selector).fill(str(value))


def pixels(page: Page, selector: str) -> str:
    return page.locator(selector).first.evaluate("canvas => canvas.toDataURL()")
