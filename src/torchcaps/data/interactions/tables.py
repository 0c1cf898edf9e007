"""Readers of interactions: CSV, TSV and JSONL tables, Parquet where pyarrow is installed."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data.interactions.options import InteractionOptions
from torchcaps.data.interactions.sets import Interactions
from torchcaps.data.text.decode import read_text
from torchcaps.data.text.tables import JSON_LINES, TABLES, ending

USER_NAMES = ("user", "user_id", "userid", "person", "customer", "customer_id", "visitor", "session", "session_id")
ITEM_NAMES = ("item", "item_id", "itemid", "movie", "movie_id", "movieid", "product", "product_id", "article", "book")
TIME_NAMES = ("time", "timestamp", "date", "datetime", "created", "created_at")
PARQUET = (".parquet", ".brotli")  # some write the compression behind
SEPARATOR = "|"


def read_interactions(path: str | Path, options: InteractionOptions | None = None) -> Interactions:
    """Who used what, from a table with one row for each use.

    Args:
        path: a .csv, .tsv or .jsonl file (gzip or not), or a .parquet file, for which pyarrow must be installed.
        options: which columns hold what.
    """
    options, path = options or InteractionOptions(), Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {str(path)!r}; give a .csv, .tsv, .jsonl or .parquet of interactions"
        )
    kind = ending(path)
    if kind in PARQUET:
        names, rows = _parquet_rows(path)
    elif kind in JSON_LINES:
        names, rows = _json_rows(path)
    elif kind in TABLES:
        names, rows = _csv_rows(path, TABLES[kind])
    else:
        known = ", ".join((*TABLES, *JSON_LINES, ".parquet"))
        raise ValueError(f"{path} is no table of interactions; it should end in one of {known}")
    user = _find(options.user_column, USER_NAMES, names, "user", path)
    item = _find(options.item_column, ITEM_NAMES, names, "item", path)
    time = _find(options.time_column, TIME_NAMES, names, "time", path, is_needed=False)
    others = {name: _find(name, (), names, "", path) for name in (*_title(options), *options.feature_columns)}
    users, items, times = [], [], []
    titles: dict[str, str] = {}
    features: dict[str, list[str]] = {}
    for line, row in rows:
        for what, name in (("user", user), ("item", item)):
            if row.get(name) in (None, ""):
                raise ValueError(f"{path}, line {line}: no {what} here; every row needs a user and an item")
        users.append(str(row[user]))
        items.append(str(row[item]))
        if time is not None:
            times.append(_time(row.get(time), f"{path}, line {line}"))
        if others and items[-1] not in features:
            features[items[-1]] = [value for name in options.feature_columns for value in _values(name, row.get(name))]
            if options.title_column is not None and row.get(options.title_column) not in (None, ""):
                titles[items[-1]] = str(row[options.title_column])
    if not users:
        raise ValueError(f"{path} has no rows; expected a user and an item on each")
    return Interactions.of(
        users,
        items,
        None if time is None else np.array(times),
        titles=titles,
        features=features if options.feature_columns else None,
    )


def from_columns(columns: Mapping[str, Any], options: InteractionOptions | None = None) -> Interactions:
    """Who used what, from a data frame or anything else that has columns by name."""
    options, source = options or InteractionOptions(), Path("the table")
    names = [str(name) for name in (columns.keys() if hasattr(columns, "keys") else columns)]
    user = _find(options.user_column, USER_NAMES, names, "user", source)
    item = _find(options.item_column, ITEM_NAMES, names, "item", source)
    time = _find(options.time_column, TIME_NAMES, names, "time", source, is_needed=False)
    users, items = (np.asarray(columns[name]).tolist() for name in (user, item))
    times = None
    if time is not None:
        raw = np.asarray(columns[time])
        is_date = raw.dtype.kind == "M"
        times = raw if is_date else np.array([_time(v, f"row {n}") for n, v in enumerate(raw.tolist(), 1)])
    wanted = (*_title(options), *options.feature_columns)
    more = {name: np.asarray(columns[_find(name, (), names, "", source)]).tolist() for name in wanted}
    features: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for place, name in enumerate(map(str, items) if more else ()):
        if name not in features:
            features[name] = [value for f in options.feature_columns for value in _values(f, more[f][place])]
            if options.title_column is not None:
                titles[name] = str(more[options.title_column][place])
    return Interactions.of(users, items, times, titles=titles, features=features if options.feature_columns else None)


def _title(options: InteractionOptions) -> tuple[str, ...]:
    return () if options.title_column is None else (options.title_column,)


def _values(name: str, value: Any) -> list[str]:
    """The values of a feature of an item, with the name of the feature."""
    if value is None or value == "":
        return []
    values = value if isinstance(value, list) else str(value).split(SEPARATOR)
    return [f"{name}={part}" for part in values if str(part).strip()]


def _find(
    name: str | None, usual: Sequence[str], names: Sequence[str], what: str, path: Path, *, is_needed: bool = True
) -> Any:
    """The column that was named, or the one with a usual name; None if there is none and none is needed."""
    if name is not None:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{path} has no column {name!r} but {', '.join(names)}{hint}")
        return name
    found = next((column for wanted in usual for column in names if column.lower() == wanted), None)
    if found is None and is_needed:
        raise ValueError(
            f"{path} has the columns {', '.join(names)}; say which holds the {what}s: {what}_column (--{what}-column)"
        )
    return found


def _time(value: Any, where: str) -> float:
    """A number, or the seconds of a date in the form of ISO 8601."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        try:
            found = (datetime.fromisoformat(str(value)) if not isinstance(value, datetime) else value).timestamp()
        except ValueError:
            found = float("nan")
    if not np.isfinite(found):
        raise ValueError(f"{where}: the time is {value!r}; it should be a number or a date such as 2026-01-31T12:00")
    return found


def _csv_rows(path: Path, delimiter: str) -> tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    names = next(reader, [])

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            for row in reader:
                if row and len(row) != len(names):
                    raise ValueError(f"{path}, line {reader.line_num}: {len(row)} fields, but {len(names)} columns")
                if row:
                    yield reader.line_num, dict(zip(names, row, strict=True))
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error

    return names, rows()


def _json_rows(path: Path) -> tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]:
    lines = [(place, line) for place, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]

    def read(place: int, line: str) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {place}, is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f'{path}, line {place}: expected an object such as {{"user": ..., "item": ...}}')
        return row

    if not lines:
        raise ValueError(f"{path} has no rows; expected a user and an item on each")
    return list(read(*lines[0])), ((place, read(place, line)) for place, line in lines)


def _parquet_rows(path: Path) -> tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]:
    try:
        from pyarrow import parquet  # pyrefly: ignore[missing-import]
    except ImportError as error:
        raise ValueError("a .parquet file is read with pyarrow: pip install 'torchcaps[retrieval]'") from error
    try:
        file = parquet.ParquetFile(path)
    except Exception as error:  # pyarrow has many kinds
        raise ValueError(f"{path} is no Parquet file: {str(error).splitlines()[0]}") from error

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        line = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                line += 1
                yield line, row

    return list(file.schema_arrow.names), rows()
