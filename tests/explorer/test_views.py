"""What each view of the explorer's page does in a real browser."""

import io
import re
from urllib.parse import urlsplit

import pytest
from PIL import Image, ImageDraw

from support.pages import MINUS, NOTHING, SEVEN, draw, expect, pixels, settled, slide, state


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
