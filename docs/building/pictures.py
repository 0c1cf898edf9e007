"""Pictures of the pages, drawn by torchcaps.viz from the model that ships with the package.

python docs/building/pictures.py       writes docs/images/
"""

from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure

from torchcaps import load, viz
from torchcaps.data import load_data
from torchcaps.routing import dynamic_routing

IMAGES = Path(__file__).parents[1] / "images"
MODEL = "capsnet-small-mnist"
NUMBER = 20  # of the test digit that is followed through the network
NUM_RECONSTRUCTIONS = 8
DOTS_PER_INCH = 110
DOTS_PER_INCH_OF_MANY = 75  # small pictures in one


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
        colour = viz.routed.COLOURS[parent]
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


def drawings() -> dict[str, Callable[[], Figure]]:
    """Name of the file -> how it is drawn."""
    model, test = load(MODEL).model, load_data("digits").test
    images = model.preprocessing(test.images[NUMBER : NUMBER + NUM_RECONSTRUCTIONS])
    truth = [test.class_names[label] for label in test.labels[NUMBER : NUMBER + NUM_RECONSTRUCTIONS]]
    routed = viz.route_classes(model, images[0])
    return {
        "agreement": agreement,
        "votes": lambda: viz.vote_strip(routed),
        "couplings": lambda: viz.coupling_strip(routed),
        "origins": lambda: viz.vote_origins(routed),
        "reconstructions": lambda: viz.reconstructions(model, images, truth),
        "dimensions": lambda: viz.capsule_dimensions(model, images[0]),
    }


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in drawings().items():
        dots = DOTS_PER_INCH_OF_MANY if name == "dimensions" else DOTS_PER_INCH
        draw().savefig(IMAGES / f"{name}.png", dpi=dots, metadata={"Software": None})


if __name__ == "__main__":
    main()
