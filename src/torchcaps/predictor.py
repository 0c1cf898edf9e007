"""From raw images or texts to answers: what the command line, the estimators and the services stand on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.inspection.words import Reason, word_reasons
from torchcaps.models import Model, ModelOutput, TextModel, load_model


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

    def __init__(self, model: Model) -> None:
        self.model = model.eval()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.name}, {len(self.labels)} classes: {', '.join(self.labels[:10])})"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.model.labels

    def predict(self, inputs: Any, **options: Any) -> np.ndarray:
        """The most probable class of each input (n,); multi-label models: which classes are there (n, J)."""
        return self.model.decide(self.predict_proba(inputs, **options))

    def predict_proba(self, images: Any, /, *, batch_size: int = 128, crops: int = 1) -> np.ndarray:
        """Probability of each class.

        Args:
            images: raw uint8 arrays or tensors, (n, h, w) or (n, h, w, c).
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
    def run(self, images: Any, /, *, crops: int = 1) -> ModelOutput:
        """The model's own output for one batch of raw images; scores are averaged over crops."""
        device = next(self.model.parameters()).device
        if crops == 1:
            return self.model(self.model.preprocessing(images).to(device))
        views = self.model.preprocessing.crops(images, crops).to(device)
        scores = self.model(views.flatten(0, 1)).scores.unflatten(0, views.shape[:2])
        return ModelOutput(scores.mean(1))


class TextPredictor(Predictor):
    """A text model with its vocabulary and labels; takes lists of strings.

    Example:
        >>> from torchcaps.models import create_model
        >>> predictor = TextPredictor(create_model("text-capsule-a", num_tokens=2, num_classes=3))
        >>> predictor.predict_proba(["a text", "another"]).shape
        (2, 3)
    """

    def predict_proba(self, texts: Sequence[str], /, *, batch_size: int = 128, crops: int = 1) -> np.ndarray:
        """Probability of each class; texts of similar length are computed together, and there are no crops of them.

        Shapes:
            (n, J)
        """
        rows = self.model.preprocessing.encode(texts)
        order = np.argsort([len(row) for row in rows], kind="stable")
        probabilities = np.zeros((len(rows), self.model.num_classes), np.float32)
        for start in range(0, len(rows), batch_size):
            chosen = order[start : start + batch_size]
            output = self.run([texts[index] for index in chosen], crops=crops)
            probabilities[chosen] = self.model.probabilities(output).float().cpu().numpy()
        return probabilities

    @torch.inference_mode()
    def run(self, texts: Sequence[str], /, *, crops: int = 1) -> ModelOutput:
        """The model's own output for one batch of texts."""
        if crops != 1:
            raise ValueError("crops are for images; a text is read as a whole")
        return self.model(self.model.preprocessing(texts).to(next(self.model.parameters()).device))

    def explain(self, texts: Sequence[str], classes: Sequence[int | str] | None = None) -> list[list[Reason]]:
        """What each word of each text says for a class: the given one, or the most probable.

        See `torchcaps.inspection.word_reasons`.
        """
        return word_reasons(self.model, texts, classes)


def load(name: str | Path, **hub_options: Any) -> Predictor:
    """A predictor from a saved model: a folder, the name of a shipped model, or OWNER/NAME on the hub."""
    folder = Path(name)
    if (folder / "model").is_dir():  # a run folder
        name = folder / "model"
    elif (folder / "result.json").is_file():
        raise ValueError(f"the run in {folder} is finished, but its model was not kept; train it anew")
    elif (folder / "environment.json").is_file():
        raise ValueError(f"the run in {folder} is not finished; go on with: torchcaps train --resume {folder}")
    return new_predictor(load_model(name, **hub_options))


def new_predictor(model: Model) -> Predictor:
    """The predictor of a model of images or of texts."""
    return TextPredictor(model) if isinstance(model, TextModel) else Predictor(model)
