"""The explorer's page as a whole in a real browser: languages, links, names, sizes, a service that is busy."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import torchcaps.explorer
from support.pages import NOTHING, SEVEN, VIEWS, draw, expect, pixels, settled

STATIC = Path(torchcaps.explorer.__file__).parent / "static"
ROLES = {"capsules": "capsnet-small-mnist", "rival": None, "matrix": None, "english": None, "chinese": None}


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
