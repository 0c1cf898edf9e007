"""`torchcaps show`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure
    from torch import Tensor

    from torchcaps.data import ImageSet
    from torchcaps.predictor import Predictor

    Inputs = tuple[Tensor, list[str] | None]

Picture = Literal[
    "couplings", "votes", "animation", "distances", "origins", "reconstructions", "dimensions", "curves", "confusion"
]
MOST_RECONSTRUCTIONS = 10
FRAMES_PER_SECOND = 8
DOTS_PER_INCH = 150


@dataclass(frozen=True, kw_only=True)
class Show:
    """Draw how a trained network of images came to its answer, and write the pictures to a folder.

    couplings: of each iteration; votes: in the plane, with their centres, as a strip; animation: the same as a GIF;
    distances: of votes from their centre; origins: where in the image they come from; reconstructions; dimensions:
    what each entry of the winning capsule changes; curves: of training; confusion: of the whole test set.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    pictures: Annotated[tuple[Picture, ...], tyro.conf.Positional] = ("couplings", "votes", "distances", "origins")
    """Which pictures."""

    image: Path | None = None
    """An image file; by default an image of the test set."""

    number: int = 0
    """Number of the image in the test set, from 0."""

    data: str | None = None
    """Name or path of the dataset; by default the one of the run."""

    out: Path = Path("pictures")
    """Folder for the pictures."""

    format: Literal["png", "svg"] = "png"
    """Of the pictures; an animation is always a GIF."""

    def run(self) -> None:
        """Write the pictures and print their paths."""
        from torchcaps.predictor import TextPredictor, load

        predictor = load(self.run_folder)
        if isinstance(predictor, TextPredictor):
            raise ValueError(f"{self.run_folder} takes texts; see their words with `torchcaps predict --explain`")
        inputs = cache(lambda: self.inputs(predictor))  # read once, and only for pictures of an image
        for picture in dict.fromkeys(self.pictures):
            self.write(picture, predictor, inputs)

    def write(self, picture: str, predictor: "Predictor", inputs: "Callable[[], Inputs]") -> None:
        """Draw one picture and write it."""
        from torchcaps.viz import route_classes, vote_animation

        if picture == "animation":
            from matplotlib.animation import PillowWriter

            animation = vote_animation(route_classes(predictor.model, inputs()[0][0]))
            path = self.out / "animation.gif"
            self.out.mkdir(parents=True, exist_ok=True)
            animation.save(path, writer=PillowWriter(fps=FRAMES_PER_SECOND))
        else:
            figure = self.draw(picture, predictor, inputs)
            path = self.out / f"{picture}.{self.format}"
            self.out.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=DOTS_PER_INCH)
        print(path)

    def draw(self, picture: str, predictor: "Predictor", inputs: "Callable[[], Inputs]") -> "Figure":
        """One picture that stands still."""
        from torchcaps import viz

        if picture == "curves":
            return self.curves(predictor)
        if picture == "confusion":
            return self.confusion(predictor)
        images, truth = inputs()
        if picture == "reconstructions":
            return viz.reconstructions(predictor.model, images, truth)
        if picture == "dimensions":
            return viz.capsule_dimensions(predictor.model, images[0])
        drawings = {
            "couplings": viz.coupling_strip,
            "votes": viz.vote_strip,
            "distances": viz.vote_distances,
            "origins": viz.vote_origins,
        }
        return drawings[picture](viz.route_classes(predictor.model, images[0]))

    def inputs(self, predictor: "Predictor") -> "Inputs":
        """The image that was asked for and, of a test set, those after it: prepared, with their true classes."""
        from torchcaps.data import read_image
        from torchcaps.viz.contact_sheet import caption

        prepare = predictor.model.preprocessing
        if self.image is not None:
            return prepare(read_image(self.image)[None]), None
        part = self.test_part(predictor)
        if not 0 <= self.number < len(part):
            raise ValueError(f"--number must be between 0 and {len(part) - 1}, got {self.number}")
        chosen = range(self.number, min(self.number + MOST_RECONSTRUCTIONS, len(part)))
        return prepare(part.images[chosen.start : chosen.stop]), [caption(part, i).split("\n")[0] for i in chosen]

    def curves(self, predictor: "Predictor") -> "Figure":
        """Of the run's training."""
        from torchcaps.training.tracking import MetricsFile
        from torchcaps.viz import training_curves

        folder = Path(self.run_folder)
        history = MetricsFile(folder).read() if folder.is_dir() else []
        if not history:
            raise ValueError(f"{self.run_folder} has no metrics.jsonl with the course of a training; give a run folder")
        return training_curves(history, title=f"Training of {predictor.model.name} ({folder.name})")

    def confusion(self, predictor: "Predictor") -> "Figure":
        """Of the whole test set."""
        import numpy as np

        from torchcaps.viz import confusion_page

        part = self.test_part(predictor)
        if part.is_multi_label:
            raise ValueError("a confusion matrix needs one class per image; these images have several")
        counts = np.zeros((len(predictor.labels), len(predictor.labels)), np.int64)
        np.add.at(counts, (part.labels, predictor.predict(part.images)), 1)
        accuracy = 100 * np.trace(counts) / counts.sum()
        title = f"{predictor.model.name}: {accuracy:.2f} % of {len(part):,} images right"
        return confusion_page(counts, predictor.labels, title=title)

    def test_part(self, predictor: "Predictor") -> "ImageSet":
        """The test images of the data that were asked for, else of those of the run."""
        from torchcaps.cli.evaluate import Evaluate, load_part
        from torchcaps.data import ImageSet

        name, columns = Evaluate(run_folder=self.run_folder, data=self.data).source(predictor.model.card)
        part = load_part(name, columns, predictor.labels, False, is_asked_for=self.data is not None)
        assert isinstance(part, ImageSet)
        if len(part.class_names) != len(predictor.labels):
            raise ValueError(f"{name} has {len(part.class_names)} classes, the model has {len(predictor.labels)}")
        return part
