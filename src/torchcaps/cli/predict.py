"""`torchcaps predict`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Predict:
    """The class of each image file: one line per file with its class and activation."""

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Image files."""

    json: bool = False
    """Print one JSON object per file, with the score of every class."""

    def run(self) -> None:
        """Print the answers."""
        from torchcaps.data import read_image
        from torchcaps.predictor import load

        if not self.files:
            raise ValueError("no image files were given: torchcaps predict RUN FILE...")
        predictor = load(self.run_folder)
        for path in self.files:
            output = predictor.run(read_image(path)[None])
            model = predictor.model
            scores = output.scores[0] if model.gives_activations else model.probabilities(output)[0]
            best = int(scores.argmax())
            if self.json:
                named = dict(zip(predictor.labels, (round(score, 6) for score in scores.tolist()), strict=True))
                print(json.dumps({"file": str(path), "class": predictor.labels[best], "scores": named}))
            else:
                print(f"{path}\t{predictor.labels[best]}\t{scores[best]:.4f}")
