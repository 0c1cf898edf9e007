"""Tables of serving and of several processes show what was measured alone."""

import json
from pathlib import Path

import pytest

from building import operation
from building.markdown import NOTHING


def write(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("table", [operation.serving_load, operation.process_scaling])
def test_without_results_there_is_a_sentence(table, tmp_path):
    assert table(tmp_path) == NOTHING


def test_operation_has_rows_for_what_was_measured(tmp_path):
    figures = {"requests_per_second": 123.4, "p50_milliseconds": 1.26, "p99_milliseconds": 40.0}
    loads = [{"clients": clients, "handler": handler, **figures} for clients in (8, 1) for handler in ("a", "b")]
    write(tmp_path / "serving" / "load.json", {"model": "m", "rows": loads})
    assert rows(operation.serving_load(tmp_path))[1:3] == [
        ["", "b", "123", "1.3", "40.0"],
        ["m, 8 clients", "a", "123", "1.3", "40.0"],
    ]
    row = {"model": "m", "layout": "2 processes", "images_per_second": 99.6, "ratio": 1.5}
    write(tmp_path / "scaling" / "x.json", {"rows": [row | {"bytes_sent_by_each_process_per_step": 32_900_000}]})
    assert rows(operation.process_scaling(tmp_path)) == [["m", "2 processes", "100", "1.50", "32.9"]]
