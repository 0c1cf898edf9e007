"""Sub-words to vectors: what transformers says, in parts where texts are long, the same in every batch."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from support.encoders import save_encoder
from torchcaps.encoders import EncoderWords, find_encoder, read_encoder
from torchcaps.inputs.subwords import SubwordEncoding
from torchcaps.inputs.tokens import TextNotice

TEXTS = ["a very good film", "unlikeable", "this movie was not bad , it is wonderful fun !"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def read(folder):
    files, tokenizer = read_encoder(folder)
    return files, SubwordEncoding(tokenizer=tokenizer, max_length=500)


def frozen(folder, files) -> EncoderWords:
    return EncoderWords(folder, files)


def tuned(folder, files, **options) -> EncoderWords:
    words = EncoderWords(folder, files, fine_tune=True, **options).eval()
    words.load_pretrained()
    return words


def test_vectors_are_those_of_transformers(folder, read):
    files, encoding = read
    assert (files.before, files.after, files.part_length, files.size) == ((2,), (3,), 30, 16)
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    expected = theirs(**tokenizer(TEXTS, return_tensors="pt", padding=True)).last_hidden_state
    vectors, first = tuned(folder, files)(encoding(TEXTS))
    torch.testing.assert_close(first, expected[:, 0], rtol=1e-5, atol=1e-6)
    for index, row in enumerate(encoding.encode(TEXTS)):
        torch.testing.assert_close(vectors[index, : len(row)], expected[index, 1 : 1 + len(row)], rtol=1e-5, atol=1e-6)
        assert vectors[index, len(row) :].abs().sum() == 0
    rounded = frozen(folder, files)(encoding(TEXTS))[0]
    assert torch.equal(rounded, rounded.half().float())
    torch.testing.assert_close(rounded, vectors, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("length", [29, 30, 31, 52, 53, 54, 100])
def test_long_texts_are_read_in_parts_that_do_not_depend_on_the_batch(folder, read, length):
    files, _ = read
    numbers = torch.randint(6, 40, (1, length), generator=torch.Generator().manual_seed(length))
    words = tuned(folder, files)
    alone, first = words(numbers)
    beside = torch.nn.functional.pad(torch.cat([numbers, numbers.flip(1)]), (0, 7))
    longer = torch.cat([torch.nn.functional.pad(beside, (0, 130 - beside.shape[1])), torch.full((1, 130), 7)])
    for batch in (beside, longer):
        together, firsts = words(batch)
        torch.testing.assert_close(together[:1, :length], alone, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(firsts[:1], first, rtol=1e-5, atol=1e-6)
    # by hand: parts of 30 begin every 23 sub-words, and one belongs to the part in whose middle it is nearer
    last = max(0, -(-(length - 30) // 23))
    for place in range(length):
        part = min(max(0, (place - 3) // 23), last)
        own = words.transformer(
            torch.tensor([[2, *(numbers[0, 23 * part : 23 * part + 30] - 1).tolist(), 3]])
        ).last_hidden_state
        torch.testing.assert_close(alone[0, place], own[0, 1 + place - 23 * part], rtol=1e-5, atol=1e-6)
        assert 0 <= place - 23 * part < 30


def test_gradients_are_the_same_with_less_memory(folder, read):
    files, encoding = read
    gradients = []
    for save_memory in (False, True):
        words = tuned(folder, files, save_memory=save_memory)
        for module in words.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        words.train()
        words(encoding(TEXTS))[0].square().sum().backward()
        gradients.append([p.grad for p in words.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 10
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-4, atol=1e-6)


def test_a_frozen_encoder_is_shared_and_no_part_of_the_model(folder, read):
    files, encoding = read
    words = frozen(folder, files)
    assert not list(words.parameters())
    assert set(words.state_dict()) == {"mean", "deviation"}
    assert not words(encoding(TEXTS))[0].requires_grad
    assert words.double()(encoding(TEXTS))[0].dtype == torch.float64


@pytest.mark.parametrize("fine_tune", [False, True])
def test_vectors_are_standardised_by_those_of_training_texts(fine_tune, folder, read):
    files, encoding = read
    words = (tuned if fine_tune else frozen)(folder, files)
    words.settle(encoding.encode(TEXTS))
    tokens = encoding(TEXTS)
    vectors, first = words(tokens)
    assert vectors[1, 5:].abs().sum() == 0  # padding stays 0
    for each in (vectors[tokens != 0], first):
        torch.testing.assert_close(each.mean(0), torch.zeros(16), rtol=0, atol=1e-4)
        torch.testing.assert_close(each.std(0, correction=0), torch.ones(16), rtol=1e-3, atol=1e-3)


def test_kept_vectors_are_those_that_were_computed(folder, read, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path))
    files, encoding = read
    plain, keeping = frozen(folder, files), frozen(folder, files)
    keeping.keep(encoding.encode(TEXTS[:2]))
    assert len(list(tmp_path.glob("vectors/*/*.safetensors"))) == 1
    for _ in range(2):  # the last text is computed first, and then found
        for found, expected in zip(keeping(encoding(TEXTS)), plain(encoding(TEXTS)), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)
    assert len(list(tmp_path.glob("vectors/*/*.safetensors"))) == 2
    monkeypatch.setattr(keeping, "_compute", None)
    keeping(encoding(TEXTS[::-1]))


def test_sub_words_become_words(read):
    _, encoding = read
    text = "Unlikeable, isn't it? ☃"
    rows = encoding.encode([text])[0]
    named = encoding.by_word(text, np.ones(len(rows)).tolist())
    assert [word for word, _ in named] == ["Unlikeable", ",", "isn", "'", "t", "it", "?", "☃"]
    assert named[0][1] == 3
    assert sum(value for _, value in named) == len(rows)
    assert encoding.tokens(text) == [word for word, _ in named]


def test_reading_texts(read):
    _, encoding = read
    assert encoding([""]).tolist() == [[encoding.unknown]]
    assert encoding.unknown == 2
    with pytest.raises(TypeError, match="put it in a list"):
        encoding("a text")
    short = SubwordEncoding(tokenizer=encoding.tokenizer, max_length=3)
    with pytest.warns(TextNotice, match="1 of 2 texts are longer than 3 tokens"):
        assert short(["a good film , not bad", "good"]).shape == (2, 3)
    again = SubwordEncoding.from_dict(encoding.to_dict())
    assert again == encoding
    assert encoding.language == "en"
    with pytest.raises(ValueError, match="tokenizer of the encoder cannot be read"):
        SubwordEncoding.from_dict({"tokenizer": "{}", "max_length": 4})


def test_wrong_encoders_are_told(tmp_path, folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no encoder at 'nothing-here'"):
        find_encoder("nothing-here")
    with pytest.raises(ValueError, match=r"there is no config\.json"):
        find_encoder(str(tmp_path))
    with pytest.raises(TypeError, match="encoder must be a folder"):
        find_encoder(3)  # pyrefly: ignore
    assert find_encoder("somebody/something") == "somebody/something"
    monkeypatch.setenv("PLACE", folder)
    assert find_encoder("$PLACE") == folder
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        read_encoder(str(tmp_path))


def test_other_weights_are_refused(folder, read, tmp_path):
    files, encoding = read
    other = save_encoder(tmp_path, seed=1)
    with pytest.raises(ValueError, match="has other weights than the one that the model was trained with"):
        EncoderWords(other, files)(encoding(TEXTS))
    with pytest.raises(FileNotFoundError, match="needs its encoder, which it does not hold"):
        EncoderWords(str(tmp_path / "gone"), files)(encoding(TEXTS))
