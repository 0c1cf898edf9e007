"""Tokens, vocabulary, padding."""

import json
import sys

import pytest
import torch

from torchcaps.inputs.texts import PAD, UNKNOWN, TextEncoding, TextNotice, characters, chinese, choose_tokeniser, words


def test_english_words():
    assert words("It's a GOOD film, isn\u2019t it? 10/10_x") == [
        *("it", "'s", "a", "good", "film", ",", "is", "n't", "it", "?"),
        *("10", "/", "10", "_", "x"),
    ]
    assert words("café naïve") == ["café", "naïve"]
    assert words("can't they've o'clock 'quoted' students' n't") == [
        *("ca", "n't", "they", "'ve", "o'clock", "'", "quoted", "'", "students", "'", "n't"),
    ]


def test_chinese_characters_and_words():
    assert characters("很好吃!iPhone 5") == ["很", "好", "吃", "!", "iphone", "5"]
    pytest.importorskip("rjieba")
    assert chinese("这本书很好看 OK") == ["这", "本书", "很", "好看", "ok"]


def test_tokeniser_is_chosen_by_looking(monkeypatch):
    assert choose_tokeniser(["a good film"]) == "words"
    pytest.importorskip("rjieba")
    assert choose_tokeniser(["很好吃 ok"]) == "chinese"
    monkeypatch.setattr("torchcaps.inputs.texts.find_spec", lambda name: None)
    assert choose_tokeniser(["很好吃 ok"]) == "characters"


def test_missing_segmentation_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ValueError, match=r"rjieba is missing: pip install 'torchcaps\[chinese\]'"):
        chinese("很好")


def test_vocabulary_is_by_frequency_then_alphabet():
    encoding = TextEncoding.of(["b a c", "b c", "b d"], min_count=1, max_words=3)
    assert encoding.vocabulary == ("b", "c", "a")
    assert TextEncoding.of(["b a c", "b c", "b d"], min_count=2).vocabulary == ("b", "c")
    assert encoding.num_tokens == 5


def test_numbers_and_padding():
    encoding = TextEncoding(tokeniser="words", vocabulary=("good", "film"))
    assert encoding(["good new film", "film", ""]).tolist() == [[2, UNKNOWN, 3], [3, PAD, PAD], [UNKNOWN, PAD, PAD]]
    assert encoding([]).shape == (0, 1)
    assert encoding(["good"]).dtype == torch.int64


def test_json_round_trip():
    encoding = TextEncoding(tokeniser="chinese", vocabulary=("很", "好", "'s", "x"), max_length=9)
    assert TextEncoding.from_dict(json.loads(json.dumps(encoding.to_dict()))) == encoding


def test_long_texts_are_cut_with_a_notice():
    encoding = TextEncoding(tokeniser="words", vocabulary=("a",), max_length=5)
    with pytest.warns(TextNotice, match="1 of 2 texts are longer than 5 tokens and were cut there"):
        rows = encoding.encode(["a " * 100_000, "a"])
    assert [len(row) for row in rows] == [5, 1]
    assert len(encoding.encode(["a a a a a"])[0]) == 5


@pytest.mark.parametrize(
    ("texts", "message"),
    [("one text", "got one string; put it in a list"), ([b"bytes"], "texts must be strings"), ([None], "got None")],
)
def test_what_is_no_list_of_strings_is_refused(texts, message):
    with pytest.raises(TypeError, match=message):
        TextEncoding(tokeniser="words", vocabulary=())(texts)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="tokeniser must be one of 'words', 'characters', 'chinese', got 'word'"):
        TextEncoding(tokeniser="word", vocabulary=())
    with pytest.raises(ValueError, match="list every word once"):
        TextEncoding(tokeniser="words", vocabulary=("a", "a"))
