"""Words by class, in fonts that have their characters."""

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.figure import Figure

from torchcaps.viz import legible, word_page
from torchcaps.viz.fonts import find_fonts, more_fonts
from torchcaps.viz.words import LINE, broken_lines, room

VALUES = np.array([[0.4, -0.1, 0.05], [-0.2, 0.1, 0.0]])


@pytest.fixture
def no_chinese(monkeypatch):
    """A machine with no more than the fonts that matplotlib brings."""
    own = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)


@pytest.fixture
def one_chinese(no_chinese, monkeypatch, tmp_path):
    """A machine on which a font with three Chinese characters was installed."""
    pen = TTGlyphPen(None)
    for step, corner in enumerate([(0, 0), (0, 700), (700, 700), (700, 0)]):
        (pen.lineTo if step else pen.moveTo)(corner)
    pen.closePath()
    glyphs = {".notdef": pen.glyph(), "square": pen.glyph()}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(list(glyphs))
    builder.setupCharacterMap({ord(character): "square" for character in "好电影"})
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupOS2()
    builder.setupNameTable({"familyName": "Three Characters", "styleName": "Regular"})
    builder.setupPost()
    builder.save(tmp_path / "three.ttf")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "three.ttf")])


def test_every_word_has_a_colour_for_every_class():
    figure = word_page(["a", "dull", "film"], VALUES, ["bad", "good"], [0.8, 0.1])
    axes = figure.axes[0]
    assert np.allclose(np.asarray(axes.collections[0].get_array()), VALUES)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "dull", "film"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["bad (0.80)", "good (0.10)"]
    assert [text.get_text() for text in axes.texts] == ["+40", "-10", "+5", "-20", "+10", "+0"]
    assert "answer bad" in figure.get_suptitle()
    with pytest.raises(ValueError, match=r"shape \(2, 2\), got \(2, 3\)"):
        word_page(["a", "film"], VALUES, ["bad", "good"], [0.8, 0.1])


def test_long_texts_are_broken_into_lines():
    words = ["word" * (1 + number % 3) for number in range(40)]
    lines = broken_lines(words)
    assert [place for line in lines for place in line] == list(range(40))
    assert all(sum(room(words[place]) for place in line) <= LINE for line in lines)
    assert broken_lines(["x" * 200, "y"]) == [[0], [1]]


def test_chinese_words_are_set_in_a_font_that_has_them(one_chinese, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of glyphs that no font has
        word_page(["好", "电影", "ok"], VALUES, ["bad", "good"], [0.8, 0.1]).savefig(tmp_path / "words.png")
    assert find_fonts("好影") == more_fonts("好 ok") == ["Three Characters"]
    assert more_fonts("ok") == []


def test_without_a_font_a_sentence_says_what_to_install(no_chinese):
    with pytest.raises(ValueError, match="no installed font has the characters 影电; install one, such as fonts-noto"):
        word_page(["电影"], VALUES[:, :1], ["bad", "good"], [0.8, 0.1])


def test_only_what_no_font_has_is_named(one_chinese):
    with pytest.raises(ValueError, match="has the characters 片;"):
        find_fonts("好片")


def test_what_the_usual_font_has_stays_in_it(no_chinese):
    figure = Figure()
    text = figure.text(0, 0, "plain, naïve")
    family = text.get_fontfamily()
    assert legible(figure) is figure
    assert text.get_fontfamily() == family
