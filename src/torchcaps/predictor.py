"""From raw images to answers: what the command line, the estimators and the services stand on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.models import ImageModel, ModelOutput, load_model


class Predictor:
    """A model with its preprocessing and labels.

    Args:
        model: a trained model.

    Example:
        >>> from torchcaps.models import create_model
        >>> predictor = Predictor(create_model("cnn-small", image_shape=(1, 28, 28), num_classes=10))
        >>> predictor.predict_proba(np.zeros((2, 28, 28), np.uint8)).shape
        (2, 10)
    """

    def __init__(self, model: ImageModel) -> None:
        self.model = model.eval()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.model.labels

    def predict(self, images: np.ndarray | Tensor, **options: Any) -> np.ndarray:
        """The most probable class of each image (n,); multi-label models: which classes are there (n, J)."""
        probabilities = self.predict_proba(images, **options)
        return probabilities >= 0.5 if self.model.multi_label else probabilities.argmax(-1)

    def predict_proba(self, images: np.ndarray | Tensor, *, batch_size: int = 128, crops: int = 1) -> np.ndarray:
        """Probability of each class.

        Args:
            images: raw uint8 (n, h, w) or (n, h, w, c).
            batch_size: images at a time.
            crops: average over this many crops, where the preprocessing crops.

        Shapes:
            (n, J)
        """
        batches = [
            self.model.probabilities(self.run(images[start : start + batch_size], crops=crops)).float().cpu().numpy()
            for start in range(0, len(images), batch_size)
        ]
        return np.concatenate(batches) if batches else np.zeros((0, self.model.num_classes), np.float32)

    @torch.inference_mode()
    def run(self, images: np.ndarray | Tensor, *, crops: int = 1) -> ModelOutput:
        """The model's own output for one batch of raw images; scores are averaged over crops."""
        device = next(self.model.parameters()).device
        if crops == 1:
            return self.model(self.model.preprocessing(images).to(device))
        views = self.model.preprocessing.crops(images, crops).to(device)
        scores = self.model(views.flatten(0, 1)).scores.unflatten(0, views.shape[:2])
        return ModelOutput(scores.mean(1))


def load(name: str | Path, **hub_options: Any) -> Predictor:
    """A predictor from a saved model: a folder, the name of a shipped model, or OWNER/NAME on the hub."""
    folder = Path(name)
    if (folder / "model").is_dir():  # a run folder
        name = folder / "model"
    return Predictor(load_model(name, **hub_options))
