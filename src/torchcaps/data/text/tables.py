"""Readers of texts with labels: tables (CSV, TSV, JSONL), "label text" lines, one folder per class."""

import csv
import io
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torchcaps.data.labelled import DataNotice, which_part
from torchcaps.data.text.decode import read_text

TABLES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
TEXT_NAMES = ("text", "sentence", "review", "content", "comment", "question", "description", "body", "title")
LABEL_NAMES = ("label", "labels", "class", "category", "target", "sentiment", "topic", "topics", "polarity")
SPLIT_NAME = "split"
MOST_SHOWN = 40  # characters of a name: the first line may hold a text


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where texts and labels are in a table, and how labels are written.

    Attributes:
        text_column: name of the column with the texts; None looks for a common name. Without a header, its number.
        label_column: name of the column with the labels; None looks for a common name. Without a header, its number.
        label_separator: between the labels of a text that may have several, such as "|"; lists in JSON need none.
        encoding: of the files; None finds out UTF-8 and GB18030.
        header: the first line of .csv and .tsv files names the columns; without a header they are called 1, 2, ...
    """

    text_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    encoding: str | None = None
    header: bool = True


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Texts with labels by name, before classes have numbers.

    Attributes:
        texts: the texts.
        labels: a name for each, or a list of names where there may be several.
        splits: "train", "test" or "validation" for each, or None when the file does not say.
        source: the file, for errors.
    """

    texts: list[str]
    labels: list[Any]
    splits: list[str] | None
    source: str


def ending(path: Path) -> str:
    """The ending that says how a file is written, without that of gzip."""
    return path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def is_table(path: Path) -> bool:
    """Whether a file has named columns, by its ending."""
    return ending(path) in (*TABLES, *JSON_LINES)


def read_column(path: Path, columns: Columns) -> list[str]:
    """The texts of a table alone; it need not have labels."""
    rows = _rows(path, columns)
    name = _find(columns.text_column, TEXT_NAMES, list(rows[0][1]), "text", path, columns)
    return [str(row.get(name) or "") for _, row in rows]


def _rows(path: Path, columns: Columns) -> list[tuple[int, dict[str, Any]]]:
    if ending(path) in JSON_LINES:
        if not columns.header:
            raise ValueError(f"{path} names its columns on every line; header=False (--no-header) is for .csv and .tsv")
        rows = read_json_lines(path, columns.encoding)
    else:
        rows = _csv_rows(read_text(path, columns.encoding), TABLES[ending(path)], path, columns.header)
    if not rows:
        raise ValueError(f"{path} has no rows; expected one text with its label on each")
    return rows


def read_table(path: Path, columns: Columns) -> Examples:
    """A CSV, TSV or JSONL file (gzip or not) with named columns."""
    rows = _rows(path, columns)
    names = list(rows[0][1])
    text_name = _find(columns.text_column, TEXT_NAMES, names, "text", path, columns)
    label_name = _find(columns.label_column, LABEL_NAMES, names, "label", path, columns)
    split_name = next((name for name in names if name.lower() == SPLIT_NAME), None)
    texts, labels, splits = [], [], []
    for line, row in rows:
        for name in (text_name, label_name):
            if row.get(name) is None:
                raise ValueError(f"{path}, line {line}: no {name!r} here; every row needs a text and a label")
        texts.append(str(row[text_name]))
        labels.append(_label(row[label_name], columns.label_separator))
        if labels[-1] == "":
            raise ValueError(f"{path}, line {line}: the label is empty; every row needs a text and a label")
        splits.append(split_name and _split(row.get(split_name), f"{path}, line {line}"))
    if len({isinstance(label, list) for label in labels}) > 1:
        raise ValueError(f"{path}: some rows have a list of labels and some a single one; write lists everywhere")
    return Examples(texts=texts, labels=labels, splits=splits if split_name else None, source=str(path))


def read_lines(path: Path, columns: Columns) -> Examples:
    """Lines of a label, a space or tab, and a text."""
    texts, labels = [], []
    for number, line in enumerate(read_text(path, columns.encoding).split("\n"), 1):
        if not line.strip():
            continue
        label, *rest = line.lstrip().split(None, 1)
        if number == 1 and not rest:
            raise ValueError(f"{path}, line 1: expected a label, a space and a text, got {line[:60]!r}")
        texts.append(rest[0].rstrip() if rest else "")
        labels.append(_label(label, columns.label_separator))
    if not texts:
        raise ValueError(f"{path} is empty; expected a label, a space and a text on each line")
    return Examples(texts=texts, labels=labels, splits=None, source=str(path))


def read_class_folders(folder: Path, columns: Columns) -> Examples:
    """One folder of .txt files per class, one text in each file."""
    texts, labels = [], []
    for class_folder in class_folders(folder):
        files = [path for path in sorted(class_folder.iterdir()) if not path.name.startswith(".")]
        paths = [path for path in files if path.suffix.lower() == ".txt"]
        if len(paths) < len(files):
            others = f"{len(files) - len(paths)} of {len(files)} files in {class_folder}"
            warnings.warn(f"{others} do not end in .txt and are left out", DataNotice, stacklevel=2)
        texts += [read_text(path, columns.encoding).strip() for path in paths]
        labels += [class_folder.name] * len(paths)
    if not texts:
        raise ValueError(f"{folder} holds no texts; expected one folder of .txt files per class")
    return Examples(texts=texts, labels=labels, splits=None, source=str(folder))


def class_folders(folder: Path) -> list[Path]:
    """The folders of the classes."""
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _csv_rows(content: str, delimiter: str, path: Path, header: bool) -> list[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(sys.maxsize)  # a whole document may stand in one field
    quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    how: dict[str, Any] = {"delimiter": delimiter, "quoting": quoting, "strict": True}
    reader = csv.DictReader(io.StringIO(content, newline=""), **how)
    rows = []
    try:
        if not header:
            first = next(csv.reader(io.StringIO(content, newline=""), **how), [])
            reader.fieldnames = [str(number) for number in range(1, len(first) + 1)]
            names = {value.strip().lower() for value in first}
            if names & {*TEXT_NAMES} and names & {*LABEL_NAMES}:
                notice = f"the first line of {path} looks like a header and is read as a text; leave out --no-header"
                warnings.warn(notice, DataNotice, stacklevel=2)
        for row in reader:
            if None in row:
                raise ValueError(
                    f"{path}, line {reader.line_num}: more fields than the {len(reader.fieldnames or ())} columns of "
                    "the first line; quote texts that hold the separator"
                )
            rows.append((reader.line_num, row))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    return rows


def read_json_lines(path: Path, encoding: str | None = None) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file (gzip or not) with the numbers of their lines."""
    rows = []
    for number, line in enumerate(read_text(path, encoding).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f'{path}, line {number}: expected an object such as {{"text": ..., "label": ...}}')
        rows.append((number, row))
    return rows


def _find(name: str | None, usual: Sequence[str], names: Sequence[str], what: str, path: Path, columns: Columns) -> str:
    """The column that was named, or the one with a usual name."""
    shown = ", ".join(name if len(name) <= MOST_SHOWN else f"{name[:MOST_SHOWN]}..." for name in names)
    first_line = ""
    if columns.header and ending(path) in TABLES:
        first_line = "; if its first line is no header, use header=False (--no-header) and the numbers of columns"
    if name is None:
        found = next((column for wanted in usual for column in names if column.lower() == wanted), None)
        if found is None:
            hint = f"say which holds the {what}: {what}_column (--{what}-column)"
            raise ValueError(f"{path} has the columns {shown}; {hint}{first_line}")
        return found
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else first_line
        raise ValueError(f"{path} has no column {name!r} but {shown}{hint}")
    return name


def _split(value: Any, where: str) -> str:
    """The part that a row belongs to."""
    part = which_part(str(value))
    if part is None:
        raise ValueError(
            f"{where}: the column {SPLIT_NAME} holds {value!r}; it should be train, validation or test, or have "
            "another name if it means something else"
        )
    return part


def _label(value: Any, separator: str | None) -> str | list[str]:
    """A label, or a list of them."""
    if isinstance(value, list):
        return [str(label) for label in value]
    if isinstance(value, bool | int | float):
        return str(value)
    if separator is not None:
        return [label.strip() for label in str(value).split(separator) if label.strip()]
    return str(value).strip()
