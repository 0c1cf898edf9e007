"""Pictures of the pages, drawn by torchcaps.viz from the model that ships with the package.

python docs/building/pictures.py       writes docs/images/
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from torchcaps import inspection, load, viz
from torchcaps.cli.poses import beside, direction_pages, told_pages
from torchcaps.data import ImageSet, load_data
from torchcaps.inspection import morph, read_features
from torchcaps.models import Model
from torchcaps.routing import dynamic_routing

IMAGES = Path(__file__).parents[1] / "images"
MODEL = "capsnet-small-mnist"
NUMBER = 20  # of the test digit that is followed through the network
NUM_RECONSTRUCTIONS = 8
DOTS_PER_INCH = 110
DOTS_PER_INCH_OF_MANY = 75  # small pictures in one
MANY = ("directions", "told")
MORPHED = ((0, 1), (2, 3), (4, 5), (8, 6))  # of each class, the numbers of two test digits; one row for each pair
NUM_STEPS = 9


def agreement() -> Figure:
    """Votes of twelve children for two parents, made up: those for the first agree, those for the second do not."""
    generator = torch.Generator().manual_seed(3)
    num_children = 12
    same = torch.tensor([0.5, 0.6]) + 0.07 * torch.randn(num_children, 2, generator=generator)
    angles = 2 * torch.pi * torch.arange(num_children) / num_children
    apart = torch.stack([angles.cos(), angles.sin()], -1) * (
        0.5 + 0.4 * torch.rand(num_children, 1, generator=generator)
    )
    result = dynamic_routing(torch.stack([same, apart], 1)[None], return_trace=True)
    coupling = result.coupling[0]
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    names = ("parent 1: the votes agree", "parent 2: the votes disagree")
    for parent, (axes, name, votes) in enumerate(zip(panels, names, (same, apart), strict=True)):
        colour = viz.palette.COLOURS[parent]
        for vote, share in zip(votes, coupling[:, parent], strict=True):
            arrow = {"arrowstyle": "-|>", "color": colour, "alpha": 0.25 + 0.7 * float(share), "lw": 4 * float(share)}
            axes.annotate("", vote.tolist(), (0, 0), arrowprops=arrow)
        pose = result.capsules.poses[0, parent]
        axes.annotate("", pose.tolist(), (0, 0), arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 2.5})
        activation, share = float(result.capsules.activations[0, parent]), float(coupling[:, parent].mean())
        axes.set(title=f"{name}\nactivation {activation:.2f}, mean coupling {share:.2f}", xlim=(-1, 1), ylim=(-1, 1))
        axes.set_xlabel("first entry of the pose")
        axes.set_aspect("equal")
        axes.grid(True, alpha=0.25)
    panels[0].set_ylabel("second entry of the pose")
    figure.suptitle("Twelve children vote (colour, width: coupling); the parents' poses (black)", fontsize=11)
    return figure


def morphs(model: Model, test: ImageSet) -> Figure:
    """From one digit to another of its class through their poses: real digits at both ends, decoded ones between."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    grid = figure.subplots(len(MORPHED), NUM_STEPS + 2)
    for row, (label, pair) in zip(grid, zip((2, 4, 5, 8), MORPHED, strict=True), strict=True):
        ends = test.images[np.flatnonzero(test.labels == label)[list(pair)]]
        first, last = read_features(model, ends, np.array([label, label]))
        decoded = morph(model, label, first, last, NUM_STEPS)[:, 0]
        for axes, picture in zip(row, [ends[0] / 255, *decoded, ends[1] / 255], strict=True):
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
    grid[0, 0].set_title("one", fontsize=9)
    grid[0, 1 + NUM_STEPS // 2].set_title("half the way", fontsize=9)
    grid[0, -1].set_title("the other", fontsize=9)
    figure.suptitle(
        "Test digits (left and right), and what is decoded on the straight line between their poses", fontsize=11
    )
    return figure


def drawings() -> dict[str, Callable[[], Figure]]:
    """Name of the file -> how it is drawn."""
    model, test = load(MODEL).model, load_data("digits").test
    images = model.preprocessing(test.images[NUMBER : NUMBER + NUM_RECONSTRUCTIONS])
    truth = [test.class_names[label] for label in test.labels[NUMBER : NUMBER + NUM_RECONSTRUCTIONS]]
    routed = inspection.class_routing(inspection.find_routes(model, images[0], return_trace=True))
    return {
        "agreement": agreement,
        "votes": lambda: viz.vote_strip(routed),
        "couplings": lambda: viz.coupling_strip(routed),
        "origins": lambda: viz.vote_origins(routed),
        "reconstructions": lambda: viz.reconstructions(inspection.reconstruct(model, images), truth),
        "told": lambda: told_pages(model, beside(model, None), test)[0]["poses"],
        "properties": lambda: direction_pages(model, test, NUMBER)["poses-properties"],
        "directions": lambda: direction_pages(model, test, NUMBER)["poses-directions"],
        "morph": lambda: morphs(model, test),
    }


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in drawings().items():
        dots = DOTS_PER_INCH_OF_MANY if name in MANY else DOTS_PER_INCH
        draw().savefig(IMAGES / f"{name}.png", dpi=dots, metadata={"Software": None})


if __name__ == "__main__":
    main()
