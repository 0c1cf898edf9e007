"""Runs that are tested on several sets while they learn, so that networks can be compared when they are equally good.

A network that does better on known ground may do better elsewhere for that reason alone. So each is looked at when its
validation error has come down to that of a reference network which was trained to the end; where it never does, the
reference is looked at when it was as good as the network at its end.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchcaps.attacks import predictions
from torchcaps.data import DataSet, ImageSet
from torchcaps.environment import environment
from torchcaps.experiments.archive import Place, find_run
from torchcaps.experiments.harness import Runner, row_folder
from torchcaps.models import Model
from torchcaps.runs import CONFIG, ENVIRONMENT, RESULT, RunConfig, new_model, save_model
from torchcaps.storage import lock_folder, write_json
from torchcaps.training import Event
from torchcaps.training.engine import Trainer
from torchcaps.training.evaluation import settle_statistics
from torchcaps.viz.courses import Course, courses

COURSE = "course.json"
NUM_LOOKS = 10  # in a run
VALIDATION = "validation"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is learned, what decides when networks are equally good, and what they are then tested on."""

    data: DataSet
    validation: ImageSet
    tests: Mapping[str, ImageSet]


class Recorder(Trainer):
    """A training that is looked at NUM_LOOKS times; what it sees does not change it."""

    def __init__(self, *arguments: Any, parts: Parts, path: Path, **options: Any) -> None:
        self.parts_seen = {VALIDATION: parts.validation, **parts.tests}
        self.path = path
        super().__init__(*arguments, **options)
        self.looks = {look["step"]: look for look in read_course(path.parent)} if path.exists() else {}

    def train_step(self, indices: torch.Tensor, step: int) -> None:
        super().train_step(indices, step)
        done, total = self.progress.step, self.progress.total_steps
        is_due = done * NUM_LOOKS // total > (done - 1) * NUM_LOOKS // total
        if is_due and self.accelerator.is_main_process:
            model = self.state.evaluated_model
            settle_statistics(model, self.batches, self.progress.epoch, self.parts)
            # a run that goes on from an older checkpoint comes by here again and writes the same
            errors = {name: error(model, part) for name, part in self.parts_seen.items()}
            self.looks[done] = {"step": done} | errors
            write_json(self.path, {"looks": list(self.looks.values())})


def course_run(divide: Callable[[RunConfig], Parts]) -> Runner:
    """A way to run rows: train on what `divide` gives, and write course.json beside the usual files."""
    return partial(_run, divide)


def _run(
    divide: Callable[[RunConfig], Parts], config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None
) -> None:
    with lock_folder(folder):
        parts = divide(config)
        torch.manual_seed(config.training.seed)
        model = new_model(config, parts.data)
        write_json(folder / CONFIG, asdict(config))
        write_json(folder / ENVIRONMENT, environment())
        recorder = Recorder(
            *(model, parts.data.train, None, config.training),
            folder=folder,
            on_event=on_event,
            parts=parts,
            path=folder / COURSE,
        )
        progress = recorder.run()
        save_model(model, folder)
        result = {
            "seconds": round(progress.seconds, 1),
            "steps": progress.step,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "seed": config.training.seed,
            "num_train": len(parts.data.train),
            "num_test": {name: len(part) for name, part in parts.tests.items()},
        }
        write_json(folder / RESULT, result)


def error(model: Model, part: ImageSet) -> float:
    """Share of images that are given a wrong class, in percent."""
    return 100 * float((predictions(model, part.images) != part.labels).mean())


def read_course(folder: Place) -> list[dict[str, float]]:
    """All looks at a run."""
    return json.loads((folder / COURSE).read_text(encoding="utf-8"))["looks"]


def stopped_when_equal(course: list[dict[str, float]], reference: list[dict[str, float]]) -> dict[str, float] | None:
    """The first look at which the validation error is not above the reference's last; None if that never happens."""
    aim = reference[-1][VALIDATION]
    return next((look for look in course if look[VALIDATION] <= aim), None)


def compare_courses(folder: Path, rows: Sequence[str], names: Mapping[str, str]) -> dict[str, float]:
    """Figures at the end of a run and when it and the reference were equally good; draws all runs of table and seed.

    Args:
        folder: of a run, OUT/ROW/seed-N.
        rows: names of all that are compared, the reference first.
        names: of the tests -> what is measured there.
    """
    out, seed = folder.parent.parent, folder.name
    found_runs = {name: find_run(out, row_folder(name), seed, COURSE) for name in rows}
    folders = {name: place for name, place in found_runs.items() if place is not None}
    if rows[0] not in folders:
        raise ValueError(
            f"{folder} is compared with the row {rows[0]!r}, which has not run with {seed}; run that row first"
        )
    course = read_course(folder)
    (first, across), (second, up) = names.items()
    lines = [
        Course(name, *([look[test] for look in read_course(place)] for test in (first, second)))
        for name, place in folders.items()
    ]
    courses(lines, across=across, up=up).savefig(out / f"{second.replace(' ', '-')}-{seed}.png", dpi=150)
    found = {measured: course[-1][name] for name, measured in names.items()}
    if folders[rows[0]] != folder:
        reference = read_course(folders[rows[0]])
        if (look := stopped_when_equal(course, reference)) is not None:
            found |= {when_equal(measured): look[name] for name, measured in names.items()}
        elif (look := stopped_when_equal(reference, course)) is not None:
            found |= {of_reference(measured): look[name] for name, measured in names.items()}
    return found


def when_equal(measured: str) -> str:
    """The name of a figure when the run was stopped."""
    return measured.replace(", %", " when as good as the CNN, %")


def of_reference(measured: str) -> str:
    """The name of a figure when the reference was stopped."""
    return measured.replace(", %", " of the CNN when as good as this, %")
