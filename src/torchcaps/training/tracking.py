"""Metrics of a run: one JSON object per line, always; other trackers through accelerate, on request."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchcaps.checks import check_choice


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
        """All complete lines."""
        if not self.path.exists():
            return []
        rows = []
        for line in self.path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # the line that was being written when the run was killed
        return rows

    def cut_after(self, step: int) -> None:
        """Forget what a resumed run will write again."""
        rows = [row for row in self.read() if row["step"] <= step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.replace(temporary, self.path)

    def append(self, row: dict[str, Any]) -> None:
        """Write one line."""
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
