"""Word vectors, length buckets, vocabulary with vectors."""

import gzip
import struct

import numpy as np
import pytest

from torchcaps.data.text import TextOptions, bucket, read_vectors, vector_table

WORDS = ("good", "bad", "the")
VALUES = np.array([[1, 2], [3, 4], [0.5, -1]], dtype=np.float32)


def write_vectors(folder, kind: str):
    path = folder / f"v.{kind}"
    if kind == "npz":
        np.savez(path, words=np.array(WORDS), vectors=VALUES.astype(np.float16))
    elif kind == "bin":
        rows = b"".join(w.encode() + b" " + struct.pack("<2f", *v) + b"\n" for w, v in zip(WORDS, VALUES))
        path.write_bytes(b"3 2\n" + rows)
    elif kind == "vec":
        path.write_text("3 2\n" + "".join(f"{w} {v[0]} {v[1]}\n" for w, v in zip(WORDS, VALUES)))
    else:
        path.write_text("".join(f"{w} {v[0]} {v[1]}\n" for w, v in zip(WORDS, VALUES)))
    return path


@pytest.mark.parametrize("kind", ["txt", "vec", "bin", "npz"])
def test_every_format(tmp_path, kind):
    vectors = read_vectors(write_vectors(tmp_path, kind))
    assert vectors.words == WORDS
    np.testing.assert_array_equal(vectors.values, VALUES)
    assert vectors.values.dtype == np.float32
    some = read_vectors(write_vectors(tmp_path, kind), {"bad", "worse"})
    assert some.words == ("bad",)


def test_words_as_the_bytes_of_their_lines(tmp_path):
    path = tmp_path / "v.npz"
    np.savez(path, words=np.frombuffer(b"good\nbad", np.uint8), vectors=VALUES[:2])
    assert read_vectors(path).words == ("good", "bad")


def test_text_as_other_tools_write_it(tmp_path):
    content = "3 2\n\ngood 1 2 \nvery\t3\t4\n. . . 5 6\n\u00a0 7 8\n"
    (tmp_path / "a.vec").write_text(content, encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode()))
    for name in ("a.vec", "a.txt.gz"):
        vectors = read_vectors(tmp_path / name)
        assert vectors.words == ("good", "very", ". . .", "\u00a0")
        assert vectors.values.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_damaged_vectors_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("good 1 2\nbad 1\n")
    with pytest.raises(ValueError, match="the vector of 'bad' has 1 entries, those before it have 2"):
        read_vectors(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("good 1 2\nbad\n")
    with pytest.raises(ValueError, match="the vector of 'bad' has 0 entries"):
        read_vectors(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("good 1 x\n")
    with pytest.raises(ValueError, match="line 1: expected a word and numbers"):
        read_vectors(tmp_path / "b.txt")
    (tmp_path / "c.bin").write_bytes(b"3 2\ngood \x00")
    with pytest.raises(ValueError, match="truncated: it declares 3 words"):
        read_vectors(tmp_path / "c.bin")
    (tmp_path / "d.bin").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="two counts"):
        read_vectors(tmp_path / "d.bin")
    (tmp_path / "e.txt").write_text("good 1 nan\n")
    with pytest.raises(ValueError, match="not finite"):
        read_vectors(tmp_path / "e.txt")
    with pytest.raises(FileNotFoundError, match="no word vectors"):
        read_vectors(tmp_path / "f.txt")
    np.savez(tmp_path / "g.npz", vectors=VALUES)
    with pytest.raises(ValueError, match="lacks the array words"):
        read_vectors(tmp_path / "g.npz")
    for order in "<>":
        letters = np.array([0x61, 0x7FFFFFFF], f"{order}u4").view(f"{order}U1")
        np.savez(tmp_path / "h.npz", words=letters, vectors=np.eye(2, dtype=np.float32))
        with pytest.raises(ValueError, match="letter number 2147483647, which there is not"):
            read_vectors(tmp_path / "h.npz")


def test_words_of_other_texts_join_where_they_have_a_vector(tmp_path):
    options = TextOptions(vectors=str(write_vectors(tmp_path, "npz")))
    encoding, vectors = options.encode(["a good film"], ["a bad plot"])
    assert encoding.vocabulary == ("a", "film", "good", "bad")
    numbers, values = vector_table(encoding, vectors)
    assert dict(zip(numbers.tolist(), values.tolist())) == {4: [1, 2], 5: [3, 4]}
    assert TextOptions().encode(["a good film"], ["a bad plot"])[0].vocabulary == ("a", "film", "good")


def test_buckets_keep_every_text_and_save_padding():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 60, 1003)
    order = generator.permutation(1003)
    buckets = bucket(order, lengths, 32, np.random.default_rng(1))
    assert sorted(buckets.tolist()) == list(range(1003))

    def padding(order):
        return sum(lengths[order[i : i + 32]].max() * 32 - lengths[order[i : i + 32]].sum() for i in range(0, 992, 32))

    assert padding(buckets) < padding(order) / 5
    firsts = [lengths[buckets[i]] for i in range(0, 992, 32)]
    assert firsts != sorted(firsts)  # the batches themselves come in random order
    assert np.array_equal(buckets, bucket(order, lengths, 32, np.random.default_rng(1)))


def test_fewer_texts_than_a_batch():
    assert sorted(bucket(np.array([2, 0, 1]), np.array([5, 1, 3]), 8, np.random.default_rng(0)).tolist()) == [0, 1, 2]


def test_endings_start_from_their_words_where_they_have_no_vector(tmp_path):
    np.savez(tmp_path / "v.npz", words=np.array(["not", "an", "'s"]), vectors=np.eye(3, dtype=np.float32))
    encoding, vectors = TextOptions(vectors=str(tmp_path / "v.npz")).encode(["it isn't a film's plot"])
    table = dict(zip(*(array.tolist() for array in vector_table(encoding, vectors))))
    named = {word: table.get(number) for word, number in encoding.numbers.items()}
    assert (named["n't"], named["a"], named["'s"]) == ([1, 0, 0], [0, 1, 0], [0, 0, 1])
    assert named["it"] is None


def test_vectors_in_the_home_of_all_data(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "vectors").mkdir(parents=True)
    (tmp_path / "data" / "vectors" / "a.txt").write_text("good 1 2\n")
    assert read_vectors("$TORCHCAPS_DATA/vectors/a.txt").words == ("good",)
