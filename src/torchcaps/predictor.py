"""From raw images or texts to answers: what the command line, the estimators and the services stand on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.inputs import Preprocessing
from torchcaps.inspection.words import Reason, why_no_reasons, word_reasons
from torchcaps.models import Model, ModelOutput, load_model


class Predictor:
    """A model that is asked about raw inputs: its preprocessing prepares them, its task decides.

    Args:
        model: a trained model.

    Example:
        >>> from torchcaps.models import create_model
        >>> predictor = Predictor(create_model("cnn-small", image_shape=(1, 28, 28), num_classes=10))
        >>> predictor.predict_proba(np.zeros((2, 28, 28), np.uint8)).shape
        (2, 10)
        >>> predictor = Predictor(create_model("text-capsule-a", num_tokens=2, num_classes=3))
        >>> predictor.predict_proba(["a text", "another"]).shape
        (2, 3)
    """

    def __init__(self, model: Model) -> None:
        self.model = model.eval()
        self._answer_one: Callable[[Tensor], ModelOutput] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.name}, {len(self.labels)} classes: {', '.join(self.labels[:10])})"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.model.labels

    @property
    def kind(self) -> str:
        """What is asked about: "image" or "text"."""
        return self.model.preprocessing.kind

    def predict(self, inputs: Any, **options: Any) -> np.ndarray:
        """The answer of the task: the most probable class of each input (n,), or which classes are there (n, J)."""
        return self.model.task.decide(self.predict_proba(inputs, **options))

    def predict_proba(self, inputs: Any, /, *, batch_size: int = 128, crops: int = 1) -> np.ndarray:
        """What the answers are decided from: the probability of each class.

        Args:
            inputs: raw images, uint8 arrays or tensors (n, h, w) or (n, h, w, c), or a list of texts.
            batch_size: inputs at a time.
            crops: average over this many crops, where the preprocessing crops.

        Shapes:
            (n, J)
        """
        task = self.model.task
        estimates = np.zeros((len(inputs), *task.estimate_shape), task.estimate_type)
        for where, part in self.model.preprocessing.parts(inputs, batch_size):
            found = task.estimate(self.answer(part, crops=crops))
            estimates[where] = (found.float() if found.is_floating_point() else found).cpu().numpy()
        return estimates

    def run(self, inputs: Any, /, *, crops: int = 1) -> ModelOutput:
        """The model's own output for one batch of raw inputs; scores are averaged over crops."""
        return self._ask(self.model, inputs, crops)

    def answer(self, inputs: Any, /, *, crops: int = 1) -> ModelOutput:
        """The same without the reconstruction, which takes a good part of the time of a small network."""
        model = self.model.answer
        if self._answer_one is not None and len(inputs) == 1 and crops == 1:
            model = self._answer_one
        return self._ask(model, inputs, crops)

    def compile(self) -> None:
        """Let torch.compile translate what answers one image; it takes seconds here, and a C++ compiler.

        Weights are taken as they are now: norms are folded into convolutions, and these packed once and for all.
        Batches stay as they are, so that nothing is compiled again for every number of images.
        """
        prepare = self.model.preprocessing
        if not isinstance(prepare, Preprocessing):
            raise ValueError(f"only models of images are compiled, and this is one of a {self.kind}")
        from torch._inductor import config  # takes a second

        answer = torch.compile(self.model.answer, dynamic=False)
        # Strides of a single channel depend on how images were given, and other strides would be compiled again.
        self._answer_one = lambda images: answer(images.clone(memory_format=torch.contiguous_format))
        with config.patch(freezing=True):
            self.answer(np.zeros((1, *prepare.image_size, prepare.channels), np.uint8))

    @torch.inference_mode()
    def _ask(self, model: Callable[[Tensor], ModelOutput], inputs: Any, crops: int) -> ModelOutput:
        prepare, device = self.model.preprocessing, next(self.model.parameters()).device
        if crops == 1:
            return model(prepare(inputs).to(device))
        views = prepare.crops(inputs, crops).to(device)
        scores = model(views.flatten(0, 1)).scores.unflatten(0, views.shape[:2])
        return ModelOutput(scores.mean(1))

    def explain(self, texts: Sequence[str], classes: Sequence[int | str] | None = None) -> list[list[Reason]]:
        """What each word of each text says for a class: the given one, or the most probable.

        See `torchcaps.inspection.word_reasons`.
        """
        if (reason := why_no_reasons(self.model)) is not None:
            raise ValueError(reason)
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
    return Predictor(load_model(name, **hub_options))
