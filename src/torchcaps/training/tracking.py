"""Metrics of a run: one JSON object per line, always; other trackers through accelerate, on request."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchcaps.checks import check_choice
from torchcaps.storage import sync, whole_file, writing


def check_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker cannot be used here; accelerate alone would go on without it."""
    from accelerate.tracking import LoggerType, get_available_trackers

    here = [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        check_choice("tracker", name, [str(kind) for kind in LoggerType if str(kind) != "all"])
        if name not in here:
            package = "'torchcaps[tensorboard]'" if name == "tensorboard" else name
            raise ValueError(f"the tracker {name} is not installed: pip install {package}")


class MetricsFile:
    """metrics.jsonl of a run folder; a resumed run drops what was written after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"

    def read(self) -> list[dict[str, Any]]:
        """All lines up to the first that is incomplete or damaged."""
        rows: list[dict[str, Any]] = []
        if not self.path.exists():
            return rows
        for line in self.path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break  # the line that was being written when the run was killed
            if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
                break
            rows.append(row)
        return rows

    def cut_after(self, epoch: int) -> None:
        """Forget what a resumed run will write again: all that comes after its first epochs."""
        if not self.path.exists():
            return
        rows = [row for row in self.read() if row["epoch"] <= epoch]
        with whole_file(self.path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def append(self, row: dict[str, Any]) -> None:
        """Write one line."""
        with writing(self.path):
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")
            sync(self.path)
