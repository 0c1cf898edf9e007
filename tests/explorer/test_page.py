"""The explorer's page in a real browser, with a trained network of digits and small untrained ones beside it."""

import io
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
import uvicorn
from PIL import Image, ImageDraw

import torchcaps.explorer
from support.services import CHINESE, model_on_encoder, small_recommender, text_model, toy_model
from torchcaps import load
from torchcaps.explorer import Explorer, create_app
from torchcaps.models import create_model
from torchcaps.predictor import Predictor
from torchcaps.service import Limits
from torchcaps.service.listening import open_socket

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright, an extra of dev")
Browser, Page, expect = sync_api.Browser, sync_api.Page, sync_api.expect

STATIC = Path(torchcaps.explorer.__file__).parent / "static"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
VIEWS = ("routing", "origins", "pose", "attack", "toys", "text", "interests")
SEVEN = [[(0.3, 0.25), (0.7, 0.25), (0.45, 0.8)]]
NOTHING, MINUS = "\u2013", "\u2212"
TIMEOUT = 60_000  # milliseconds; a busy machine is not a failure

expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
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
def visit(browser, address) -> Iterator[Callable[..., Page]]:
    """Opens the page; at the end of the test, nothing was logged and nothing came from elsewhere."""
    complaints: list[str] = []
    elsewhere: list[str] = []
    contexts = []

    def is_ours(url: str) -> bool:
        return url.startswith((address, "data:"))

    def open_page(hash_: str = "", *, width: int = 1280, ready: bool = True, **options) -> Page:
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


def test_a_drawing_is_classified_while_it_is_drawn(visit):
    page = visit()
    page.click("#clear")
    expect(page.locator("#answer")).to_have_text(NOTHING)
    draw(page, SEVEN, lift=False)
    expect(page.locator("#answer")).not_to_have_text(NOTHING)  # the pen is still down
    page.mouse.up()
    expect(page.locator("#answer")).to_have_text("7")
    expect(page.locator("#activations .best .bar-label")).to_have_text("7")
    expect(page.locator("#activations li")).to_have_count(10)
    expect(page.locator("#timing")).to_have_text(re.compile(r"Updated in \d+ ms, of which computing [\d.]+ ms"))
    expect(page.locator("#announcer")).to_have_text(re.compile(r"The network says 7, 0\.\d\d"))
    draw(page, [[(0.2, 0.5), (0.8, 0.5)]])
    settled(page)
    page.click("#undo")
    expect(page.locator("#answer")).to_have_text("7")
    page.click("#undo")
    expect(page.locator("#answer")).to_have_text(NOTHING)


def test_drawing_with_keys_and_choosing_examples_with_keys(visit):
    page = visit()
    page.click("#clear")
    page.locator("#pad").press("Space")
    for _ in range(6):
        page.locator("#pad").press("ArrowDown")
    page.locator("#pad").press("Space")
    expect(page.locator("#answer")).to_have_text("1")
    first = page.locator("#examples input").first
    first.focus()
    page.keyboard.press("Space")
    expect(page.locator("#answer")).to_have_text("0")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#examples input:checked")).to_have_attribute("aria-label", "Example 7: 3")
    expect(page.locator("#answer")).to_have_text("3")


def test_an_image_is_opened_or_dropped(visit):
    page = visit()
    picture = Image.new("L", (300, 200), 240)  # ink on paper, off the middle
    ImageDraw.Draw(picture).line([(60, 30), (52, 150)], fill=20, width=14)
    file = io.BytesIO()
    picture.save(file, "PNG")
    page.set_input_files("#file", {"name": "one.png", "mimeType": "image/png", "buffer": file.getvalue()})
    expect(page.locator("#answer")).to_have_text("1")
    data = page.evaluate_handle(
        """async () => {
            const canvas = new OffscreenCanvas(56, 56);
            const context = canvas.getContext("2d");
            context.lineWidth = 6;
            context.strokeStyle = "#fff";
            context.fillRect(0, 0, 56, 56);
            context.strokeRect(16, 12, 24, 32);
            const data = new DataTransfer();
            data.items.add(new File([await canvas.convertToBlob()], "nought.png", { type: "image/png" }));
            return data;
        }"""
    )
    page.dispatch_event("#pad-frame", "drop", {"dataTransfer": data})
    expect(page.locator("#answer")).to_have_text("0")
    page.set_input_files("#file", {"name": "no.png", "mimeType": "image/png", "buffer": b"no image"})
    expect(page.locator("#problem")).to_contain_text("not an image")


def test_routing_is_stepped_through_and_played(visit):
    page = visit("#in=e14", reduced_motion="no-preference")
    label = page.locator("#step-label")
    expect(label).to_have_text("iteration 3 of 3")
    shown = [(pixels(page, ".plane"), pixels(page, ".matrix"), pixels(page, ".poses"))]
    for number in (2, 1):
        page.click("#step-back")
        expect(label).to_have_text(f"iteration {number} of 3")
        expect(page.locator("#panel-routing")).to_have_attribute("data-time", f"{number - 1}.00")
        shown.append((pixels(page, ".plane"), pixels(page, ".matrix"), pixels(page, ".poses")))
    assert all(len(set(pictures)) == 3 for pictures in zip(*shown, strict=True))
    slide(page, "#step", 2)
    expect(label).to_have_text("iteration 3 of 3")
    page.click("#play")
    expect(page.locator("#play")).to_have_text("Pause")
    expect(label).to_have_text("iteration 1 of 3")
    expect(label).to_have_text("iteration 3 of 3")
    expect(page.locator("#play")).to_have_text("Play")


def test_two_routings_side_by_side(visit):
    page = visit("#in=e14")
    page.select_option("#routing-algorithm", "entropy")
    slide(page, "#routing-iterations", 5)
    expect(page.locator("#step-label")).to_have_text("iteration 5 of 5")
    expect(page.locator(".view h3")).to_have_text("entropy · 5 iterations")
    page.select_option("#versus-algorithm", "kmeans")
    slide(page, "#versus-iterations", 6)
    expect(page.locator(".view h3")).to_have_text(["entropy · 5 iterations", "K-Means · 6 iterations"])
    expect(page.locator("#step-label")).to_have_text("iteration 7 of 7")  # K-Means shows its start as well
    expect(page.locator(".view .legend").first).to_contain_text("class 7")
    texts = page.locator(".view .legend").all_inner_texts()
    assert texts[0] == texts[1]  # the same classes in the same plane
    page.select_option("#versus-algorithm", "uniform")
    expect(page.locator("#versus-iterations")).to_be_disabled()
    expect(page.locator(".view h3").nth(1)).to_have_text("uniform (none)")


def test_sliders_move_the_reconstruction(visit):
    page = visit("#view=pose&in=e14&by=entries")
    found, moved = page.locator("#pose-found"), page.locator("#pose-moved")
    before = moved.get_attribute("src")
    assert before == found.get_attribute("src")
    assert before.startswith("data:image/png;base64,")
    expect(page.locator(".slider input")).to_have_count(16)
    slide(page, ".slider:nth-child(1) input", float(page.locator(".slider input").first.get_attribute("max")))
    expect(moved).not_to_have_attribute("src", before)
    expect(found).to_have_attribute("src", before)
    page.click("#pose-reset")
    expect(moved).to_have_attribute("src", before)
    page.select_option("#pose-class", "2")
    expect(found).not_to_have_attribute("src", before)


def test_properties_of_a_pose_have_sliders(visit):
    page = visit("#view=pose&in=e14")
    names = page.locator(".slider-name").all_inner_texts()
    assert names[:3] == ["slant", "thickness", "width"]
    before = page.locator("#pose-moved").get_attribute("src")
    slide(page, ".slider:nth-child(1) input", float(page.locator(".slider input").first.get_attribute("max")))
    expect(page.locator("#pose-moved")).not_to_have_attribute("src", before)


def test_main_directions_have_names_and_stay_among_real_digits(visit):
    page = visit("#view=pose&in=e14&by=directions")
    expect(page.locator(".slider input")).to_have_count(8)
    names = page.locator(".slider-name").all_inner_texts()
    assert set(names) <= {
        "slant",
        "thickness",
        "width",
        "height",
        "place, down",
        "place, right",
        "size of holes",
        "shape",
    }
    first = page.locator(".slider input").first
    assert float(first.get_attribute("min")) <= 0 <= float(first.get_attribute("max"))
    before = page.locator("#pose-moved").get_attribute("src")
    slide(page, ".slider:nth-child(1) input", float(first.get_attribute("max")))
    expect(page.locator("#pose-moved")).not_to_have_attribute("src", before)
    page.check("input[value=entries]")  # another way starts from the pose as found
    expect(page.locator(".slider input")).to_have_count(16)
    expect(page.locator("#pose-moved")).to_have_attribute("src", before)


def test_a_digit_turns_into_another_of_its_class(visit):
    page = visit("#view=pose&in=e14&by=morph")
    expect(page.locator(".members input")).to_have_count(8)
    expect(page.locator(".slider input")).to_have_count(1)
    page.locator(".members input").nth(3).check()
    slide(page, ".slider input", 1)
    expect(page.locator("#pose-moved")).not_to_have_attribute("src", page.locator("#pose-found").get_attribute("src"))
    there = page.locator("#pose-moved").get_attribute("src")
    page.locator(".members input").nth(5).check()
    expect(page.locator("#pose-moved")).not_to_have_attribute("src", there)


def test_attacks_on_capsules_and_network_beside_them(visit):
    page = visit("#view=attack&in=e14")
    slide(page, "#epsilon", 0)
    expect(page.locator(".attacked .outcome").first).to_have_text("Holds: still 7")
    same = page.locator(".attacked img").first.get_attribute("src")
    page.check("input[value=bim]")
    slide(page, "#attack-steps", 5)
    slide(page, "#epsilon", 0.4)
    expect(page.locator(".attacked .outcome").first).to_have_text(re.compile(r"Fooled: 7 became \d"))
    expect(page.locator(".attacked img").first).not_to_have_attribute("src", same)
    expect(page.locator(".attacked h3")).to_have_text(["Capsules · capsnet-small-mnist", "Small CNN · cnn"])
    expect(page.locator(".attacked .bars li")).to_have_count(20)
    settled(page)
    assert state(page) == {"view": "attack", "in": "e14", "attack": "bim", "steps": "5", "epsilon": "0.4"}


def test_where_votes_come_from(visit):
    page = visit("#view=origins&in=e14")
    cells = page.locator(".cells td")
    shares = [int(text) for text in cells.all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=len(shares) / 2)
    before = pixels(page, "#origins-view canvas")
    cells.first.hover()
    framed = pixels(page, "#origins-view canvas")
    assert framed != before
    page.select_option("#origins-class", "2")
    expect(page.locator("#origins-view figcaption").first).to_have_text("Votes for 2 over the picture")


def test_parse_tree_of_a_toy(visit):
    page = visit("#view=toys")
    expect(page.locator("#toy-activations li")).to_have_count(5)
    assert page.locator(".tree .node").count() > 4
    slider = page.locator("#tree-view input[type=range]")
    slider.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"conv2, row \d+, column \d+, type \d+: activation"))
    expect(page.locator(".tree .node.chosen")).to_have_attribute("data-node", "1")
    page.locator("#toys input").nth(5).check()
    expect(page.locator("#toy-note")).to_have_text("true class: human")


def test_the_dial_turns_a_toy_and_its_needle(visit):
    page = visit("#view=toys&toy=4&side=3")
    note = page.locator("#dial-note")
    expect(note).to_have_text(re.compile(r"^Shown from 60°, read as \d+°: \d+° off\.$"))
    expect(page.locator("#dial-error")).to_have_text(re.compile(r"it is \d+° off on average; a guess is 90° off"))

    def state() -> tuple[str | None, ...]:
        ends = [
            page.get_attribute(needle, end) for needle in ("#needle-shown", "#needle-found") for end in ("x2", "y2")
        ]
        return (*ends, page.get_attribute("#side-image", "src"))

    before = state()
    shown, found, off = (int(number) for number in re.findall(r"\d+", note.inner_text()))
    assert off == pytest.approx(abs((shown - found + 180) % 360 - 180), abs=1)
    page.locator("#side").press("ArrowRight")
    expect(note).to_have_text(re.compile("^Shown from 80°"))
    assert all(now != then for now, then in zip(state()[::2], before[::2], strict=True))  # both needles, the picture
    dial = page.locator(".dial").bounding_box()
    page.mouse.click(dial["x"] + 0.5 * dial["width"], dial["y"] + 0.95 * dial["height"])  # at the bottom
    expect(note).to_have_text(re.compile("^Shown from 180°"))
    expect(page.locator("#side")).to_have_attribute("aria-valuetext", "180 degrees")
    page.locator("#toys input").nth(0).check()
    expect(page.locator("#dial-view p").first).to_contain_text("from the pose of animal")


def test_texts_in_two_languages(visit):
    page = visit("#view=text")
    page.fill("#sentence", "a good film, badly made")
    expect(page.locator(".word-text")).to_have_text(["a", "good", "film", ",", "badly", "made"])
    expect(page.locator("#text-activations li")).to_have_count(2)
    values = [float(text.replace(MINUS, "-")) for text in page.locator(".word-value").all_inner_texts()]
    length = float(re.search(r"\((\d\.\d+) in all\)", page.locator("#words-note").inner_text())[1])
    assert sum(values) == pytest.approx(length, abs=0.01 * len(values))
    winner = page.locator("#text-answer").inner_text()
    other = 1 - ["negative", "positive"].index(winner)
    page.select_option("#text-class", str(other))
    expect(page.locator("#words-note")).not_to_contain_text(f"“{winner}”")
    page.check("input[value=chinese]")
    page.fill("#sentence", "好看的电影")
    expect(page.locator(".word-text")).to_have_text(list("好看的电影"))
    page.fill("#sentence", " ")
    expect(page.locator("#words")).to_have_text("Type something.")


def test_parts_of_two_texts_match_on_an_encoder(visit):
    page = visit("#view=text&text-model=chinese")
    expect(page.locator("#matching")).to_be_hidden()  # this one has no encoder
    page.check("input[value=english]")
    page.fill("#sentence", "a good film , it is fun")
    expect(page.locator("#matches")).to_have_text("Type another text.")
    page.fill("#other-sentence", "this movie was not bad")
    expect(page.locator("#matches strong")).to_contain_text(re.compile(r"Similarity \d\.\d\d"))
    rows = page.locator(".matches tbody tr")
    told = " ".join(rows.locator("td:nth-child(2)").all_inner_texts()).split()
    assert set(told) & {"this", "movie", "was", "not", "bad"}
    assert state(page)["other"] == "this movie was not bad"
    page.select_option("#language", "zh")
    expect(page.locator("#matches strong")).to_contain_text("相似度")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_narrow_screen_needs_no_sideways_scrolling(visit, language):
    page = visit(f"#lang={language}&versus=em", width=360, has_touch=True)
    page.click("#clear")
    page.locator("#pad").tap()  # a dot
    expect(page.locator("#answer")).not_to_have_text(NOTHING)
    for view in VIEWS:
        page.click(f"#tab-{view}")
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        outside = page.locator("main").evaluate(
            """main => [...main.querySelectorAll("button, input, select, canvas, h2, h3, p, figure")]
                .filter(one => one.checkVisibility() && !one.closest(".tree-frame, .hidden"))
                .filter(one => one.getBoundingClientRect().right > 360).map(one => one.outerHTML.slice(0, 80))"""
        )
        assert outside == [], view


def test_languages(visit):
    page = visit("#in=e14")
    page.select_option("#language", "zh")
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    expect(page.locator("#tab-routing")).to_have_text("路由")
    expect(page.locator(".view h3")).to_have_text("动态路由 · 迭代 3 次")
    expect(page.locator("#step-label")).to_have_text(re.compile("第 3 次迭代.共 3 次"))
    assert page.title() == "torchcaps 探索页"
    keys = page.evaluate(
        """async () => {
            const { ENGLISH } = await import("/static/words_en.js");
            const { CHINESE } = await import("/static/words_zh.js");
            const shape = (table) => Object.entries(table).map(([key, words]) =>
                [key, ...[...words.matchAll(/\\{\\w+\\}/g)].map(String).sort()].join());
            return [shape(ENGLISH), shape(CHINESE)];
        }"""
    )
    assert keys[0] == keys[1]
    assert visit("", locale="zh-CN").locator("#tab-text").inner_text() == "文本"  # as the browser wishes


def test_light_and_dark(visit):
    page = visit("", color_scheme="dark")
    paper = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark, plane = page.evaluate(paper), pixels(page, ".plane")
    page.select_option("#theme", "light")
    light = page.evaluate(paper)
    assert (dark, light) == ("rgb(17, 21, 26)", "rgb(245, 246, 248)")
    assert pixels(page, ".plane") != plane
    page.select_option("#theme", "")
    assert page.evaluate(paper) == dark


def test_a_link_restores_what_was_seen(visit):
    page = visit()
    page.click("#clear")
    draw(page, SEVEN)
    page.select_option("#routing-algorithm", "kmeans")
    page.select_option("#versus-algorithm", "dynamic")
    settled(page)
    page.click("#step-back")
    page.select_option("#language", "zh")
    page.select_option("#theme", "dark")
    expect(page).to_have_url(re.compile("theme=dark"))
    link, seen = "#" + urlsplit(page.url).fragment, pixels(page, "#seen")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy-link")
    expect(page.locator("#announcer")).to_contain_text("链接已复制")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    other = visit(link)
    assert pixels(other, "#seen") == seen
    for selector in ("#answer", "#step-label", "#activations", "#routing-views .bars >> nth=1", "#tab-text"):
        assert other.locator(selector).inner_text() == page.locator(selector).inner_text()
    for selector in ("#routing-algorithm", "#versus-algorithm", "#language", "#theme"):
        assert other.locator(selector).input_value() == page.locator(selector).input_value()
    other.evaluate("location.hash = 'view=pose&in=e14&pose=0,0,40&class=7'")  # a link followed within the page
    expect(other.locator(".slider:nth-child(3) input")).to_have_value("0.4")
    expect(other.locator("#tab-pose")).to_have_attribute("aria-selected", "true")
    found = other.locator("#pose-found").get_attribute("src")
    expect(other.locator("#pose-moved")).not_to_have_attribute("src", found)


@pytest.mark.parametrize("link", ["view=nowhere&in=x9&step=-1", "in=dzz&pose=nan&epsilon=7", "in=pAAAA&class=99"])
def test_links_that_make_no_sense_do_no_harm(visit, link):
    page = visit(f"#{link}")
    expect(page.locator("#panel-routing")).to_be_visible()
    page.locator("#examples input").first.check()
    expect(page.locator("#answer")).to_have_text("0")


def test_everything_has_a_name_and_tabs_move_with_keys(visit):
    page = visit("#in=e14")
    page.locator("#tab-routing").focus()
    for view in (*VIEWS[1:], VIEWS[0]):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{view}")).to_be_focused()
        expect(page.locator(f"#panel-{view}")).to_be_visible()
        settled(page)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, textarea, canvas, img, svg[role]")]
                .filter(one => one.checkVisibility() && !one.closest("[aria-hidden=true]") && one.alt !== "")
                .filter(one => !(one.getAttribute("aria-label") || one.alt || one.textContent.trim()
                    || [...(one.labels ?? [])].some(label => label.textContent.trim())))
                .map(one => one.outerHTML)"""
        )
        assert nameless == []
    page.keyboard.press("Tab")
    focused = "document.activeElement.closest('.pad-frame') ?? document.activeElement"
    outline = page.evaluate(f"getComputedStyle({focused}).outlineStyle")
    assert outline == "solid"


def test_models_that_are_missing_are_named(visit):
    page = visit(ready=False)
    page.route("**/api/roles", lambda route: route.fulfill(json=ROLES))
    page.goto("about:blank")
    page.go_back()
    settled(page)
    expect(page.locator("#answer")).to_have_text("0")
    page.click("#tab-attack")
    expect(page.locator("#attack-views")).to_contain_text("no convolutional network")
    page.click("#tab-toys")
    expect(page.locator("#tree-view")).to_contain_text("No matrix capsule network is installed")
    page.click("#tab-text")
    expect(page.locator("#words")).to_contain_text("No text model is installed")


ROLES = {"capsules": "capsnet-small-mnist", "rival": None, "matrix": None, "english": None, "chinese": None}


def test_a_busy_service_is_asked_again(visit):
    page = visit()
    refusals = []

    def refuse_once(route) -> None:
        if refusals:
            route.continue_()
        else:
            refusals.append(route)
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"detail": "too many at once"})

    page.route("**/api/predict", refuse_once)
    page.locator("#examples input").nth(14).check()
    expect(page.locator("#problem")).to_contain_text("busy")
    expect(page.locator("#answer")).to_have_text("7")
    expect(page.locator("#problem")).to_be_hidden()
    assert [line for line in visit.complaints if "429" not in line] == []
    visit.complaints.clear()  # the browser itself reports the 429


def test_the_page_is_small_and_stands_alone():
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    for path in files:
        addresses = set(re.findall(r"https?://[^\s\"'`]+", path.read_text("utf-8")))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path.name


def test_interests_form_from_picked_items(visit):
    page = visit("#view=interests")
    expect(page.locator("#items-used li")).to_have_count(6)  # the most used, to begin with
    expect(page.locator(".forming thead th")).to_have_count(3)  # of six items two interests
    rows = page.locator(".forming tbody tr:not(.likes)")
    expect(rows).to_have_count(6)
    last = rows.first.locator("td").all_inner_texts()
    assert sum(map(float, last)) == pytest.approx(1, abs=0.02)
    slide(page, "#forming-step", 0)
    expect(rows.first.locator("td").first).not_to_have_text(last[0])
    assert state(page)["forming"] == "0"
    page.fill("#item-search", "item-2")
    expect(page.locator("#items-found button").first).to_have_text("item-29")
    for name in ("item-29", "item-28"):
        page.click(f"#items-found button:text-is('{name}')")
        settled(page)
    expect(page.locator(".forming thead th")).to_have_count(4)  # of eight items three
    liked = page.locator(".forming .likes li").all_inner_texts()
    assert len(liked) == 15
    assert not {"item-29", "item-28", "item-39"} & set(liked)  # what was used is left out
    page.click("#items-used li:first-child button")
    expect(page.locator("#items-used li")).to_have_count(7)
    assert state(page)["used"].count("item-") == 7
    again = visit(f"#{urlsplit(page.url).fragment}")  # a link shows the same
    expect(again.locator("#items-used li")).to_have_count(len(page.locator("#items-used li").all()))
    page.click("#items-clear")
    expect(page.locator("#interests-view")).to_contain_text("Pick at least one item")
