"""`torchcaps show`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from matplotlib.figure import Figure
    from torch import Tensor

    from torchcaps.data import LabelledSet
    from torchcaps.inspection import Routes
    from torchcaps.predictor import Predictor

    Inputs = tuple[Tensor, list[str] | None]

Picture = Literal[
    "couplings",
    "votes",
    "animation",
    "distances",
    "origins",
    "parse-tree",
    "reconstructions",
    "dimensions",
    "poses",
    "words",
    "curves",
    "confusion",
]
OF_KIND = {
    "image": (
        *("couplings", "votes", "animation", "distances", "origins"),
        *("parse-tree", "reconstructions", "dimensions", "poses"),
    ),
    "text": ("words",),
}
USUAL = {"image": ("couplings", "votes", "distances", "origins"), "text": ("words",)}
OF_ANY = ("curves", "confusion")  # pictures of runs with images and with texts
MOST_RECONSTRUCTIONS = 10
FRAMES_PER_SECOND = 8
DOTS_PER_INCH = 150


@dataclass(frozen=True, kw_only=True)
class Show:
    """Draw how a trained network came to its answer, and write the pictures to a folder.

    Of images: couplings: of each iteration; votes: in the plane, with their centres, as a strip; animation: the same
    as a GIF; distances: of votes from their centre; origins: where in the image they come from; parse-tree: of a matrix
    network, the strongest couplings layer by layer; reconstructions; dimensions: what each entry of the winning
    capsule changes; poses: how well the poses of the test set tell slant, thickness and more, and what their directions
    change. Of texts: words: what each says for every class. Of both: curves: of training; confusion: of the
    whole test set.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    pictures: Annotated[tuple[Picture, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[PICTURE ...]")] = ()
    """Which pictures; by default couplings, votes, distances and origins of images, words of texts."""

    image: Path | None = None
    """An image file; by default an image of the test set."""

    text: str | None = None
    """A text; by default a text of the test set."""

    number: int = 0
    """Number of the image or text in the test set, from 0."""

    data: str | None = None
    """Name or path of the dataset; by default the one of the run."""

    rival: str | None = None
    """With poses: a run, saved or shipped model to be measured beside; by default a shipped network without capsules
    that knows the same classes, where there is one."""

    out: Path = Path("pictures")
    """Folder for the pictures."""

    format: Literal["png", "svg"] = "png"
    """Of the pictures; an animation is always a GIF."""

    def run(self) -> None:
        """Write the pictures and print their paths."""
        from torchcaps.predictor import load

        predictor = load(self.run_folder)
        kind = predictor.kind
        if kind not in USUAL:
            raise ValueError(f"there are no pictures of {kind}s; try torchcaps recommend {self.run_folder} --explain")
        other = {"image": self.text, "text": self.image}[kind]
        if other is not None:
            raise ValueError(f"{self.run_folder} takes {kind}s; give --{kind} instead of {str(other)!r}")
        pictures = dict.fromkeys(self.pictures or USUAL[kind])
        for picture in pictures:
            if picture not in (*OF_ANY, *OF_KIND[kind]):
                raise ValueError(f"{self.run_folder} takes {kind}s; {picture} cannot be drawn of them")
        {"image": self.show_images, "text": self.show_texts}[kind](predictor, pictures)

    def show_texts(self, predictor: "Predictor", pictures: "Iterable[str]") -> None:
        """Write pictures of a model of texts."""
        for picture in pictures:
            self.save(self.draw_text(picture, predictor), picture)

    def show_images(self, predictor: "Predictor", pictures: "Iterable[str]") -> None:
        """Write pictures of a model of images."""
        from torchcaps.inspection import find_routes

        inputs = cache(lambda: self.inputs(predictor))  # read once, and only for pictures of an image
        routes = cache(lambda: find_routes(predictor.model, inputs()[0][0], return_trace=True))
        for picture in pictures:
            if picture == "animation":
                self.animate(predictor, routes)
            elif picture == "poses":
                self.show_poses(predictor)
            else:
                self.save(self.draw(picture, predictor, inputs, routes), picture)

    def save(self, figure: "Figure", picture: str) -> None:
        """Write a picture that stands still and print its path."""
        from torchcaps.viz import legible

        path = self.out / f"{picture}.{self.format}"
        legible(figure)
        self.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DOTS_PER_INCH)
        print(path)

    def show_poses(self, predictor: "Predictor") -> None:
        """Write what the poses of the test set tell, and what the directions of the chosen image's class change."""
        from torchcaps.cli.poses import beside, direction_pages, told_pages

        part = self.test_part(predictor)
        self.of_test_set(part)  # there must be an image with the number that was asked for
        rival = beside(predictor.model, self.rival)
        pages, lines = told_pages(predictor.model, rival, part)
        for picture, page in {**pages, **direction_pages(predictor.model, part, self.number)}.items():
            self.save(page, picture)
        print("\n".join(lines))

    def animate(self, predictor: "Predictor", routes: "Callable[[], Routes]") -> None:
        """Write the moving picture and print its path."""
        from matplotlib import rc_context, rcParams
        from matplotlib.animation import PillowWriter

        from torchcaps.inspection import class_routing
        from torchcaps.viz import vote_animation
        from torchcaps.viz.fonts import more_fonts

        path = self.out / "animation.gif"
        families = [*rcParams["font.family"], *more_fonts("".join(predictor.labels))]
        with rc_context({"font.family": families}):  # a setting, because each frame is drawn anew
            animation = vote_animation(class_routing(routes()))
            self.out.mkdir(parents=True, exist_ok=True)
            animation.save(path, writer=PillowWriter(fps=FRAMES_PER_SECOND))
        print(path)

    def draw(
        self, picture: str, predictor: "Predictor", inputs: "Callable[[], Inputs]", routes: "Callable[[], Routes]"
    ) -> "Figure":
        """One picture of a model of images."""
        from torchcaps import inspection, viz

        if picture in OF_ANY:
            return self.draw_any(picture, predictor)
        if picture == "reconstructions":
            images, truth = inputs()
            return viz.reconstructions(inspection.reconstruct(predictor.model, images), truth)
        if picture == "dimensions":
            return viz.capsule_dimensions(inspection.move_entries(predictor.model, inputs()[0][0]))
        if picture == "parse-tree":
            return viz.parse_tree_page(inspection.parse_tree(routes()), inputs()[0][0].numpy())
        drawings = {
            "couplings": viz.coupling_strip,
            "votes": viz.vote_strip,
            "distances": viz.vote_distances,
            "origins": viz.vote_origins,
        }
        return drawings[picture](inspection.class_routing(routes()))

    def draw_text(self, picture: str, predictor: "Predictor") -> "Figure":
        """One picture of a model of texts."""
        import numpy as np

        from torchcaps.inspection import WordRouting
        from torchcaps.viz import word_page

        if picture in OF_ANY:
            return self.draw_any(picture, predictor)
        text = self.text if self.text is not None else self.of_test_set(self.test_part(predictor))[0]
        encoding = predictor.model.preprocessing
        words = encoding.tokens(text)
        if not words:
            raise ValueError("the text has no words")
        routed = WordRouting(predictor.model, encoding([text]))
        values = np.array([routed.values([index])[0].tolist() for index in range(len(predictor.labels))])
        return word_page(words, values[:, : len(words)], predictor.labels, routed.output.scores[0].tolist())

    def draw_any(self, picture: str, predictor: "Predictor") -> "Figure":
        """One picture of a run, whatever it takes."""
        return self.curves(predictor) if picture == "curves" else self.confusion(predictor)

    def inputs(self, predictor: "Predictor") -> "Inputs":
        """The image that was asked for and, of a test set, those after it: prepared, with their true classes."""
        from torchcaps.data import ImageSet, read_image
        from torchcaps.data.showing import caption

        prepare = predictor.model.preprocessing
        if self.image is not None:
            return prepare(read_image(self.image)[None]), None
        part = self.test_part(predictor)
        assert isinstance(part, ImageSet)
        images = self.of_test_set(part)
        chosen = range(self.number, self.number + len(images))
        return prepare(images), [caption(part, i).split("\n")[0] for i in chosen]

    def of_test_set(self, part: "LabelledSet"):
        """The image or text with the number that was asked for, and some after it."""
        if not 0 <= self.number < len(part):
            raise ValueError(f"--number must be between 0 and {len(part) - 1}, got {self.number}")
        return part.inputs[self.number : self.number + MOST_RECONSTRUCTIONS]

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
            raise ValueError("a confusion matrix needs one class for each; here some have several")
        counts = np.zeros((len(predictor.labels), len(predictor.labels)), np.int64)
        np.add.at(counts, (part.labels, predictor.predict(part.inputs)), 1)
        accuracy = 100 * np.trace(counts) / counts.sum()
        title = f"{predictor.model.name}: {accuracy:.2f} % of {len(part):,} {predictor.model.kind}s right"
        return confusion_page(counts, predictor.labels, title=title)

    def test_part(self, predictor: "Predictor") -> "LabelledSet":
        """The test images or texts of the data that were asked for, else of those of the run."""
        from torchcaps.cli.evaluate import Evaluate, load_part

        name, columns = Evaluate(run_folder=self.run_folder, data=self.data).source(predictor.model.card)
        try:
            return load_part(name, columns, predictor.model, is_asked_for=self.data is not None)[0]
        except (FileNotFoundError, ValueError) as error:
            if self.data is not None:
                raise
            hint = f"give something to show with --{predictor.model.kind} or --data"
            raise ValueError(f"{hint}; by default it is of {name}: {error}") from error
