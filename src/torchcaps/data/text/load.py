"""Finding out how texts are stored at a path, and reading them."""

from collections.abc import Sequence
from pathlib import Path

from torchcaps.data.text.sets import TextSet, label_texts, name_classes
from torchcaps.data.text.tables import JSON_LINES, TABLES, Columns, Examples, read_class_folders, read_lines, read_table

LINES = (".txt", ".all", ".train", ".test", ".dev", ".label")
PARTS = ("train", "test")


def is_text(path: Path) -> bool:
    """Whether a path looks like texts with labels: a table, lines, or folders of .txt files."""
    if path.is_file():
        return _kind(path) is not None
    if not path.is_dir():
        return False
    if any(_kind(child) and child.is_file() for child in _parts(path).values()):
        return True
    folders = _class_folders(path)
    return bool(folders) and all(any(folder.glob("*.txt")) for folder in folders)  # a note beside images is no text


def read_texts(
    path: Path, columns: Columns | None = None, class_names: tuple[str, ...] | None = None
) -> tuple[TextSet, TextSet | None]:
    """Training and test texts of a path.

    Args:
        path: A .csv, .tsv or .jsonl file with named columns (a column "split" of "train" and "test" is heeded); a .txt
            file of "label text" lines; a folder with train.* and perhaps test.* of these; a folder with one folder of
            .txt files per class, perhaps inside train/ and test/.
        columns: Where texts and labels are.
        class_names: The classes, where they are known beforehand; another label is then an error.
    """
    columns = columns or Columns()
    if path.is_file():
        return _number_classes(*_split(_read_file(path, columns)), class_names)
    parts = _parts(path)
    if "train" in parts and parts["train"].is_file():
        train, test = (None if part not in parts else _read_file(parts[part], columns) for part in PARTS)
    else:
        train, test = _read_folders(path, columns)
    assert train is not None
    return _number_classes(train, test, class_names)


def _read_file(path: Path, columns: Columns) -> Examples:
    kind = _kind(path)
    if kind is None:
        known = ", ".join((*TABLES, *JSON_LINES, ".txt"))
        raise ValueError(f"{path} is no file of texts; it should end in one of {known}, perhaps with .gz")
    return read_lines(path, columns) if kind in LINES else read_table(path, columns)


def _read_folders(path: Path, columns: Columns) -> tuple[Examples, Examples | None]:
    if not (path / "train").is_dir():
        return read_class_folders(_class_folders(path), columns), None
    train = read_class_folders(_class_folders(path / "train"), columns)
    has_test = (path / "test").is_dir()
    return train, read_class_folders(_class_folders(path / "test"), columns) if has_test else None


def _split(examples: Examples) -> tuple[Examples, Examples | None]:
    """By the file's own column of parts, where it has one."""
    if examples.splits is None or "test" not in examples.splits:
        return examples, None
    parts = []
    for part in PARTS:
        chosen = [index for index, split in enumerate(examples.splits) if split == part]
        texts, labels = [examples.texts[i] for i in chosen], [examples.labels[i] for i in chosen]
        parts.append(Examples(texts=texts, labels=labels, splits=None, source=examples.source))
    return parts[0], parts[1]


def _number_classes(
    train: Examples, test: Examples | None, class_names: tuple[str, ...] | None
) -> tuple[TextSet, TextSet | None]:
    if class_names is not None:
        _check_known(train, class_names, "the model does not have")
    class_names = class_names or name_classes(train.labels, train.source)
    if test is None:
        return label_texts(train.texts, train.labels, class_names), None
    several = [any(isinstance(label, list) for label in part.labels) for part in (train, test)]
    if several[0] != several[1]:
        raise ValueError(f"{test.source}: training and test data must both have lists of labels, or both single ones")
    _check_known(test, class_names, "no training text has")
    return label_texts(train.texts, train.labels, class_names), label_texts(test.texts, test.labels, class_names)


def _check_known(examples: Examples, class_names: tuple[str, ...], fault: str) -> None:
    for number, label in enumerate(examples.labels, 1):
        for name in label if isinstance(label, list) else [label]:
            if name not in class_names:
                raise ValueError(
                    f"{examples.source}: text {number} has the label {name!r}, which {fault}; "
                    f"the classes are {_few(class_names)}"
                )


def _few(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _kind(path: Path) -> str | None:
    """The ending that says how a file is written."""
    suffix = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    return suffix if suffix in (*TABLES, *JSON_LINES, *LINES) else None


def _parts(folder: Path) -> dict[str, Path]:
    """train.* and test.* of a folder."""
    return {child.name.split(".")[0]: child for child in sorted(folder.iterdir()) if child.name.split(".")[0] in PARTS}


def _class_folders(folder: Path) -> list[Path]:
    inner = folder / "train" if (folder / "train").is_dir() and folder.name not in PARTS else folder
    return sorted(child for child in inner.iterdir() if child.is_dir() and not child.name.startswith("."))
