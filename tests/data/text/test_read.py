"""Reading texts: formats, encodings, and one sentence for everything that is wrong."""

import gzip
import json

import numpy as np
import pytest

from torchcaps.data import Columns, load_data
from torchcaps.data.labelled import DataNotice
from torchcaps.data.text import TextSet, is_text, load_texts, read_texts
from torchcaps.data.text.tables import read_column
from torchcaps.inputs.texts import TextNotice

CSV = 'label,text\n1,"good, really"\n0,bad\n1,"two\nlines"\n'


def write(path, content: str | bytes, encoding: str = "utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.tsv", "label\ttext\n1\tgood, really\n0\tbad\n1\ttwo lines\n"),
        (
            "a.jsonl",
            '{"text": "good, really", "label": 1}\n{"text": "bad", "label": 0}\n\n{"text": "two lines", "label": 1}\n',
        ),
        ("a.txt", "1 good, really\n0 bad\n\n1\ttwo lines\n"),
    ],
)
def test_every_format_gives_the_same_texts(tmp_path, name, content):
    train, test, _ = read_texts(write(tmp_path / name, content))
    assert [" ".join(text.split()) for text in train.texts] == ["good, really", "bad", "two lines"]
    assert train.labels.tolist() == [1, 0, 1]
    assert train.class_names == ("0", "1")
    assert test is None
    with open(tmp_path / f"{name}.gz", "wb") as file:
        file.write(gzip.compress(content.encode()))
    assert read_texts(tmp_path / f"{name}.gz")[0].texts == train.texts


def test_folders_of_classes(tmp_path):
    for part, label, text in [("train", "pos", "good"), ("train", "neg", "bad"), ("test", "neg", "worse")]:
        write(tmp_path / part / label / "1.txt", text + "\n")
    train, test, _ = read_texts(tmp_path)
    assert train.class_names == ("neg", "pos")
    assert (train.texts, train.labels.tolist()) == (("bad", "good"), [0, 1])
    assert (test.texts, test.labels.tolist()) == (("worse",), [0])
    flat, nothing, _ = read_texts(tmp_path / "train")
    assert flat.texts == train.texts
    assert nothing is None
    assert load_data(tmp_path).class_names == ("neg", "pos")


def test_train_and_test_files_and_a_column_of_parts(tmp_path):
    write(tmp_path / "train.csv", CSV)
    write(tmp_path / "test.csv", "text,label\nfine,1\n")
    train, test, _ = read_texts(tmp_path)
    assert (len(train), test.labels.tolist()) == (3, [1])
    path = write(tmp_path / "x.tsv", "split\ttext\tlabel\ntrain\ta\t0\ntest\tb\t1\ntrain\tc\t1\n")
    train, test, _ = read_texts(path)
    assert (train.texts, test.texts) == (("a", "c"), ("b",))


def test_a_column_of_parts_may_name_validation(tmp_path):
    path = write(tmp_path / "x.csv", "Split,text,label\nTrain,a,0\nval,b,1\nTEST,c,1\ntrain,d,1\n")
    train, test, validation = read_texts(path)
    assert (train.texts, test.texts, validation.texts) == (("a", "d"), ("c",), ("b",))
    assert load_data(path).validation.texts == ("b",)
    assert read_texts(write(tmp_path / "y.csv", "split,text,label\ntest,a,0\ntest,b,1\n")).train.texts == ("a", "b")


def test_validation_files_and_folders(tmp_path):
    for part in ("train", "dev"):
        write(tmp_path / "files" / f"{part}.csv", CSV)
        write(tmp_path / "folders" / part / "pos" / "1.txt", "good")
        write(tmp_path / "folders" / part / "neg" / "1.txt", "bad")
    assert len(read_texts(tmp_path / "files").validation) == 3
    assert len(read_texts(tmp_path / "folders").validation) == 2
    write(tmp_path / "files" / "valid.csv", CSV)
    with pytest.raises(ValueError, match=r"holds both dev.csv and valid.csv; only one can be read"):
        read_texts(tmp_path / "files")


def test_folders_without_texts_are_refused(tmp_path):
    write(tmp_path / "train" / "pos" / "1.txt", "good")
    write(tmp_path / "train" / "neg" / "1.txt", "bad")
    write(tmp_path / "test" / "1.txt", "in no class")
    with pytest.raises(ValueError, match=r"test holds no texts; expected one folder of .txt files per class"):
        read_texts(tmp_path)
    write(tmp_path / "test" / "pos" / "1.doc", "?")
    with (
        pytest.warns(DataNotice, match="1 of 1 files in .*pos do not end"),
        pytest.raises(ValueError, match="no texts"),
    ):
        read_texts(tmp_path)


def test_several_labels(tmp_path):
    rows = [{"body": "a", "topics": ["x", "y"]}, {"body": "b", "topics": []}, {"body": "c", "topics": ["z"]}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    train, *_ = read_texts(path)
    assert train.class_names == ("x", "y", "z")
    np.testing.assert_array_equal(train.labels, [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    assert train.is_multi_label
    path = write(tmp_path / "a.csv", "text,label\na,x|y\nb,\nc,z\n")
    assert np.array_equal(read_texts(path, Columns(label_separator="|"))[0].labels, train.labels)


def test_numbers_are_ordered_by_size_and_names_by_alphabet(tmp_path):
    assert read_texts(write(tmp_path / "a.txt", "10 a\n9 b\n1 c\n"))[0].class_names == ("1", "9", "10")
    assert read_texts(write(tmp_path / "b.txt", "z a\nb b\n"))[0].class_names == ("b", "z")
    assert read_texts(write(tmp_path / "c.txt", "10 a\nnan b\n9 c\n"))[0].class_names == ("10", "9", "nan")
    assert read_texts(write(tmp_path / "d.txt", "1.0 a\n2 b\n1 c\n"))[0].class_names == ("1", "1.0", "2")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "gbk"])
def test_encodings_are_found_out(tmp_path, encoding):
    content = "label,text\n1,味道很好送餐快\n0,太难吃了不会再点\n"
    train, *_ = read_texts(write(tmp_path / "a.csv", content, encoding))
    assert train.texts == ("味道很好送餐快", "太难吃了不会再点")


def test_other_encodings_must_be_named(tmp_path):
    path = write(tmp_path / "a.txt", "1 a café\n0 na\u00efve one\n", "latin-1")
    with pytest.raises(ValueError, match=r"a.txt is neither UTF-8 \(line 1 is not\) nor Chinese in GB18030"):
        read_texts(path)
    assert read_texts(path, Columns(encoding="latin-1"))[0].texts == ("a café", "na\u00efve one")
    with pytest.raises(ValueError, match="a.txt, line 1, is not utf-8"):
        read_texts(path, Columns(encoding="utf-8"))
    with pytest.raises(ValueError, match="no encoding is called 'utf-9'"):
        read_texts(path, Columns(encoding="utf-9"))


def test_mixed_encodings_are_refused_with_the_line(tmp_path):
    content = "1 很好\n".encode() * 3 + "0 太差了\n".encode("gb18030") + "1 很好\n".encode() * 3
    with pytest.raises(ValueError, match=r"mixed.txt is neither UTF-8 \(line 4 is not\)"):
        read_texts(write(tmp_path / "mixed.txt", content + b"\xff\xff\n"))


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n\x00\x00", b"PK\x03\x04\x14\x00", b"\x7fELF\x02\x01"])
def test_binary_files_are_refused(tmp_path, start):
    with pytest.raises(ValueError, match=r"a.csv is not a text file$"):
        read_texts(write(tmp_path / "a.csv", start))


def test_utf16_is_named():
    from torchcaps.data.text.decode import decode

    with pytest.raises(ValueError, match="x is not a text file; it looks like UTF-16, save it as UTF-8"):
        decode("1 good".encode("utf-16"), "x")


def test_empty_texts_stay_with_a_notice(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\ngood,1\n,0\nbad,0\n")
    with pytest.warns(TextNotice, match=r"1 of 3 texts are empty \(the first is number 2\)"):
        train, *_ = read_texts(path)
    assert len(train) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,1\nb,1\n", "a.csv has only the class '1'; a classifier needs texts of at least two"),
        ("a.csv", "text,label\n", "a.csv has no rows"),
        ("a.csv", "words,label\na,1\n", "a.csv has the columns words, label; say which holds the text: text_column"),
        ("a.csv", "text,what\na,1\n", "say which holds the label: label_column"),
        ("a.csv", "text,label\na, b,1\n", "a.csv, line 2: more fields than the 2 columns"),
        ("a.csv", "text,label\na\n", "a.csv, line 2: no 'label' here"),
        ("a.csv", "text,label\na,1\nb, \n", "a.csv, line 3: the label is empty"),
        ("a.csv", "text,label,split\na,1,fold 1\n", "the column split holds 'fold 1'; it should be train, validation"),
        ("a.csv", "text,label,split\na,1,test\nb,0,dev\n", "but none for training"),
        ("a.csv", 'text,label\n"a,1\n', "a.csv, line 1: unexpected end of data"),
        ("a.jsonl", '{"text": "a"\n', "a.jsonl, line 1, is not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl, line 1: expected an object"),
        ("a.jsonl", '{"text": "a", "label": [1]}\n{"text": "b", "label": 2}\n', "write lists everywhere"),
        ("a.txt", "", "a.txt is empty"),
        ("a.txt", "justonelabel\n", "a.txt, line 1: expected a label, a space and a text"),
        ("a.csv.gz", "not gzip", "a.csv.gz is damaged"),
    ],
)
def test_one_sentence_for_everything_that_is_wrong(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=".*") as caught:
        read_texts(write(tmp_path / name, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_parts_have_lists_or_none_has(tmp_path):
    write(tmp_path / "train.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    write(tmp_path / "test.jsonl", '{"text": "a", "label": ["x"]}\n')
    with pytest.raises(ValueError, match=r"test.jsonl: all parts of the data must have lists of labels, or all single"):
        read_texts(tmp_path)


def test_a_label_only_in_test_is_named(tmp_path):
    write(tmp_path / "train.csv", CSV)
    write(tmp_path / "test.csv", "text,label\nfine,2\n")
    with pytest.raises(ValueError, match=r"test.csv: text 1 has the label '2', which no training text has"):
        read_texts(tmp_path)
    path = write(tmp_path / "new.csv", "text,label\nfine,1\nfine,3\n")
    with pytest.raises(
        ValueError, match="text 2 has the label '3', which the model does not have; the classes are 0, 1"
    ):
        read_texts(path, class_names=("0", "1"))
    only = write(tmp_path / "only.csv", "text,label\nfine,1\n")
    assert read_texts(only, class_names=("0", "1"))[0].labels.tolist() == [1]


def test_wrong_column_names_get_a_hint(tmp_path):
    path = write(tmp_path / "a.csv", "review,stars\na,1\nb,2\n")
    with pytest.raises(ValueError, match="has no column 'reviews' but review, stars; did you mean 'review'?"):
        read_texts(path, Columns(text_column="reviews", label_column="stars"))
    assert read_texts(path, Columns(label_column="stars"))[0].texts == ("a", "b")


def test_a_table_without_a_header_has_numbers_for_columns(tmp_path):
    path = write(tmp_path / "a.tsv", "up\ta good film\ndown\ta bad film\n")
    train, *_ = read_texts(path, Columns(header=False, text_column="2", label_column="1"))
    assert train.texts == ("a good film", "a bad film")
    assert [train.class_names[label] for label in train.labels] == ["up", "down"]
    path = write(tmp_path / "a.csv", '1,"good, or\nbetter"\n0,bad\n')
    train, *_ = read_texts(path, Columns(header=False, text_column="2", label_column="1"))
    assert train.texts == ("good, or\nbetter", "bad")
    assert read_column(path, Columns(header=False, text_column="2")) == ["good, or\nbetter", "bad"]


SAY_WHICH = "say which holds the text: text_column (--text-column)"
FOR_TABLES = "header=False (--no-header) is for .csv and .tsv"
NO_HEADER = "if its first line is no header, use header=False (--no-header) and the numbers of columns"


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("a.tsv", Columns(), f"has the columns up, a good film; {SAY_WHICH}; {NO_HEADER}"),
        ("a.tsv", Columns(text_column="2"), f"has no column '2' but up, a good film; {NO_HEADER}"),
        ("a.tsv", Columns(header=False), f"has the columns 1, 2; {SAY_WHICH}"),
        ("a.tsv", Columns(header=False, text_column="3"), "has no column '3' but 1, 2"),
        ("a.jsonl", Columns(header=False), f"names its columns on every line; {FOR_TABLES}"),
    ],
)  # fmt: skip
def test_a_missing_header_is_spoken_of(tmp_path, name, columns, message):
    content = "up\ta good film\ndown\ta bad film\n" if name == "a.tsv" else '{"text": "a", "label": "b"}\n'
    with pytest.raises(ValueError, match=".*") as caught:
        read_texts(write(tmp_path / name, content), columns)
    assert str(caught.value) == f"{tmp_path / name} {message}"


def test_a_first_line_of_text_is_not_shown_whole(tmp_path):
    path = write(tmp_path / "a.tsv", "up\t" + "word " * 1000 + "\ndown\tbad\n")
    with pytest.raises(ValueError, match=r"the columns up, (word ){8}\.\.\.; say which"):
        read_texts(path)


def test_a_header_that_is_read_as_a_text_is_noticed(tmp_path):
    path = write(tmp_path / "a.csv", CSV)
    with pytest.warns(DataNotice, match=r"the first line of .*a.csv looks like a header and is read as a text; leave"):
        read_texts(path, Columns(header=False, text_column="1", label_column="2"))


def test_wrong_labels_of_texts_are_not_those_of_images():
    with pytest.raises(ValueError, match="labels must lie in 0 to 1, but text 1 has label 2"):
        TextSet(texts=["a", "b"], labels=np.array([0, 2]), class_names=("x", "y"))
    with pytest.raises(ValueError, match="there are 2 texts but 1 labels; each text needs one"):
        TextSet(texts=["a", "b"], labels=np.array([0]), class_names=("x", "y"))


def test_what_looks_like_texts(tmp_path):
    assert is_text(write(tmp_path / "a.csv", CSV))
    assert not is_text(write(tmp_path / "a.npz", b""))
    assert not is_text(tmp_path / "missing")
    write(tmp_path / "images" / "cat" / "1.png", b"")
    assert not is_text(tmp_path / "images")
    with pytest.raises(ValueError, match="text and label columns are for tables of texts"):
        load_data("digits", columns=Columns(text_column="x"))
    with pytest.raises(ValueError, match="image_size is for images"):
        load_data(tmp_path / "a.csv", image_size=(3, 3))


@pytest.mark.parametrize("name", ["movie-snippets", "chinese-reviews"])
def test_embedded_sets(name):
    data = load_texts(name)
    assert (len(data.train), len(data.test), data.class_names) == (3200, 800, ("negative", "positive"))
    for part in (data.train, data.test):
        assert np.bincount(part.labels).tolist() == [len(part) // 2] * 2
        assert all(text.strip() for text in part.texts)
    everything = [*data.train.texts, *data.test.texts]
    assert len(set(everything)) == len(everything)
    assert data.terms == "MIT"


def test_unknown_names_and_missing_sets(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="did you mean 'movie-snippets'?"):
        load_texts("movie-snippet")
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"mr is not here: put its files into .*mr \(10,662 sentences"):
        load_texts("mr")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    write(tmp_path / "text" / "mr" / "rt-polarity.all", "0 bad\x85 film\n1 good\n", "latin-1")
    assert load_data("mr").train.texts == ("bad\x85 film", "good")
