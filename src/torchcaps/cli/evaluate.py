"""`torchcaps evaluate`."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Accuracy of a trained model on the test images of a dataset."""

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    data: str | None = None
    """Name or path of the dataset; by default the one of the run."""

    crops: int = 1
    """Average over this many crops of each image, where the model sees crops."""

    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> None:
        """Print the accuracy."""
        from pathlib import Path

        from torchcaps.data import load_data
        from torchcaps.predictor import load
        from torchcaps.runs import CONFIG, RunConfig, accuracy

        predictor = load(self.run_folder)
        name = self.data
        if name is None:
            folder = Path(self.run_folder)
            is_run = (folder / "model").is_dir() and (folder / CONFIG).exists()
            name = RunConfig.read(folder).data if is_run else predictor.model.card.get("dataset")
        if name is None:
            raise ValueError(f"{self.run_folder} does not say what it was trained on; give --data NAME or PATH")
        data = load_data(name)
        if data.test is None:
            raise ValueError(f"{name} has no test images; give a dataset with a test split")
        if data.class_names != predictor.labels and len(data.class_names) != len(predictor.labels):
            raise ValueError(f"{name} has {len(data.class_names)} classes, the model has {len(predictor.labels)}")
        right = accuracy(predictor.predict_proba(data.test.images, crops=self.crops), data.test.labels)
        result = {
            "accuracy": right,
            "images": len(data.test),
            "data": name,
            "model": predictor.model.name,
            "crops": self.crops,
        }
        if self.json:
            print(json.dumps(result))
        else:
            print(f"test accuracy: {100 * right:.2f} % ({len(data.test)} images of {name})")
