"""Finding out how texts are stored at a path, and reading them."""

from pathlib import Path

from torchcaps.data.labelled import PART_NAMES, Parts, which_part
from torchcaps.data.labels import few
from torchcaps.data.text.sets import TextSet, label_texts, name_classes
from torchcaps.data.text.tables import (
    JSON_LINES,
    TABLES,
    Columns,
    Examples,
    class_folders,
    ending,
    is_table,
    read_class_folders,
    read_lines,
    read_table,
)

LINES = (".txt", ".all", ".train", ".test", ".dev", ".label")


def is_text(path: Path) -> bool:
    """Whether a path looks like texts with labels: a table, lines, or folders of .txt files."""
    if path.is_file():
        return _kind(path) is not None
    if not path.is_dir():
        return False
    train = _parts(path).get("train", path)
    if train.is_file():
        return True
    folders = class_folders(train)
    return bool(folders) and all(any(folder.glob("*.txt")) for folder in folders)  # a note beside images is no text


def read_texts(
    path: Path, columns: Columns | None = None, class_names: tuple[str, ...] | None = None
) -> Parts[TextSet]:
    """The texts of a path.

    Args:
        path: A .csv, .tsv or .jsonl file with named columns (a column "split" says what is for training, validation
            and test); a .txt file of "label text" lines; a folder with train.* and perhaps validation.* and test.* of
            these; a folder with one folder of .txt files per class, perhaps inside train/, validation/ and test/.
        columns: Where texts and labels are.
        class_names: The classes, where they are known beforehand; another label is then an error.
    """
    columns = columns or Columns()
    if path.is_file():
        return _number_classes(_split(_read_file(path, columns)), class_names)
    parts = _parts(path)
    if "train" not in parts:
        examples = {"train": read_class_folders(path, columns)}
    else:
        examples = {
            part: _read_file(place, columns) if place.is_file() else read_class_folders(place, columns)
            for part, place in parts.items()
        }
    return _number_classes(examples, class_names)


def _read_file(path: Path, columns: Columns) -> Examples:
    kind = _kind(path)
    if kind is None:
        known = ", ".join((*TABLES, *JSON_LINES, ".txt"))
        raise ValueError(f"{path} is no file of texts; it should end in one of {known}, perhaps with .gz")
    return read_lines(path, columns) if kind in LINES else read_table(path, columns)


def _split(examples: Examples) -> dict[str, Examples]:
    """By the file's own column of parts, where it has one; a file of one part alone is a whole."""
    if examples.splits is None or len(set(examples.splits)) == 1:
        return {"train": examples}
    if "train" not in examples.splits:
        raise ValueError(f"{examples.source} has texts for validation and test but none for training; split the file")
    parts = {}
    for part in dict.fromkeys(examples.splits):
        chosen = [index for index, split in enumerate(examples.splits) if split == part]
        texts, labels = [examples.texts[i] for i in chosen], [examples.labels[i] for i in chosen]
        parts[part] = Examples(texts=texts, labels=labels, splits=None, source=examples.source)
    return parts


def _number_classes(parts: dict[str, Examples], class_names: tuple[str, ...] | None) -> Parts[TextSet]:
    train = parts["train"]
    if class_names is not None:
        _check_known(train, class_names, "the model does not have")
    class_names = class_names or name_classes(train.labels, train.source)
    for other in parts.values():
        if isinstance(train.labels[0], list) != isinstance(other.labels[0], list):
            raise ValueError(f"{other.source}: all parts of the data must have lists of labels, or all single ones")
        _check_known(other, class_names, "no training text has")
    numbered = {part: label_texts(other.texts, other.labels, class_names) for part, other in parts.items()}
    return Parts(numbered["train"], numbered.get("test"), numbered.get("validation"))


def _check_known(examples: Examples, class_names: tuple[str, ...], fault: str) -> None:
    for number, label in enumerate(examples.labels, 1):
        for name in label if isinstance(label, list) else [label]:
            if name not in class_names:
                raise ValueError(
                    f"{examples.source}: text {number} has the label {name!r}, which {fault}; "
                    f"the classes are {few(class_names)}"
                )


def _kind(path: Path) -> str | None:
    """The ending that says how a file is written."""
    return ending(path) if is_table(path) or ending(path) in LINES else None


def _parts(folder: Path) -> dict[str, Path]:
    """The files or folders of the parts of a dataset."""
    found = {}
    for child in sorted(folder.iterdir()):
        part = which_part(child.name.split(".")[0])
        if part is None or not (child.is_dir() or _kind(child)):  # such as an archive beside what was in it
            continue
        if part in found:
            raise ValueError(f"{folder} holds both {found[part].name} and {child.name}; only one can be read")
        found[part] = child
    return {part: found[part] for part in PART_NAMES if part in found}
