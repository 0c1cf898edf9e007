"""What is left of a run: report and model."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data import LabelledSet
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.texts import TextEncoding
from torchcaps.losses import reconstruction_loss
from torchcaps.models import Model
from torchcaps.predictor import Predictor
from torchcaps.runs.configuration import MISTAKES, MODEL, REPORT
from torchcaps.storage import sync, temporary_path, whole_file, writing
from torchcaps.tasks import Mistake
from torchcaps.training.tracking import MetricsFile
from torchcaps.viz import training_report

NUM_SHOWN = 10


def draw_report(
    folder: Path, predictor: Predictor, test: LabelledSet, estimates: np.ndarray, result: dict[str, Any]
) -> None:
    """Write report.png: curves, confusion, for images worst mistakes and reconstructions; for texts mistakes.tsv."""
    model = predictor.model
    report = model.task.report(estimates, test.labels, predictor.labels)
    if report is None:
        return
    shown = SHOW[predictor.kind](folder, predictor, test, report.mistakes)
    title = f"{model.name}: {model.task.say(result)} on {len(test):,} test {predictor.kind}s"
    page = training_report(MetricsFile(folder).read(), report.confusion, predictor.labels, **shown, title=title)
    with whole_file(folder / REPORT) as path:
        page.savefig(path, dpi=120, format="png")


def _show_images(folder: Path, predictor: Predictor, test: LabelledSet, mistakes: Sequence[Mistake]) -> dict[str, Any]:
    """The worst mistakes, and what a decoder makes of the first images."""
    images, some = test.inputs, test.inputs[:NUM_SHOWN]
    pictures = [
        (images[wrong.index], f"{wrong.true} taken for\n{wrong.found} ({wrong.confidence:.2f})")
        for wrong in mistakes[:NUM_SHOWN]
    ]
    drawn = predictor.run(some).reconstruction
    pairs = [] if drawn is None else zip(predictor.model.preprocessing(some).numpy(), drawn.numpy(), strict=True)
    return {"mistakes": pictures, "reconstructions": list(pairs)}


def _show_texts(folder: Path, predictor: Predictor, test: LabelledSet, mistakes: Sequence[Mistake]) -> dict[str, Any]:
    """All mistakes, in a table of their own."""
    rows = [("confidence", "true", "found", "text")]
    for wrong in mistakes:
        text = " ".join(test.inputs[wrong.index].split())
        rows.append((f"{wrong.confidence:.2f}", wrong.true, wrong.found, text))
    with whole_file(folder / MISTAKES) as path:
        path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return {"mistakes": None}


SHOW = {Preprocessing.kind: _show_images, TextEncoding.kind: _show_texts}


def reconstruction_error(predictor: Predictor, test: LabelledSet, *, batch_size: int = 500) -> float | None:
    """Mean squared error, summed over pixels, of what is drawn from the winners' poses; None where nothing is drawn.

    Nor where several things are in an image: the winner is one of them.
    """
    model = predictor.model
    if getattr(model, "decoder", None) is None or model.task.multi_label:
        return None
    errors = []
    for _, images in model.preprocessing.parts(test.inputs, batch_size):
        drawn = predictor.run(images).reconstruction
        assert drawn is not None
        truth = model.preprocessing(images).to(drawn.device)
        errors.append(reconstruction_loss(drawn, truth, weight=1.0, reduction="none"))
    return float(torch.cat(errors).mean())


def save_model(model: Model, folder: Path) -> None:
    """Write the trained model of a run, each file whole or not at all."""
    temporary, place = temporary_path(folder / MODEL), folder / MODEL
    try:
        with writing(place):
            temporary.mkdir()
            model.save_pretrained(temporary)
            place.mkdir(exist_ok=True)
            for path in temporary.iterdir():
                sync(path)
                os.replace(path, place / path.name)
            sync(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
