"""Route one synthetic set of votes with all routings there are: a table, and a picture of the couplings per iteration.

Twelve children vote for three parents. Children 0 to 4 agree about the pose of parent A, children 5 to 8 about that
of parent B, and the last three agree with nobody. A routing should give each group to its parent. Self-routing alone is
left out: it decides by the poses of the children, and votes are all there is here (see kinds_of_routing.py).
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchcaps.routing import RoutingResult, create_routing, find_routing, routing_names

GROUPS = {"A": range(5), "B": range(5, 9), "nobody": range(9, 12)}
NUM_UPDATES = 2  # of the couplings, for every routing that has iterations


def route(name: str, votes: Tensor) -> RoutingResult:
    """With the options of a routing that has learned nothing; children are fully active for those that weigh them."""
    entry = find_routing(name)
    routing = create_routing(name, **(entry.unlearned or {}), **entry.with_updates(NUM_UPDATES))
    given = {"activations": torch.ones(votes.shape[:2])} if routing.weighs_children else {}
    return routing(votes, return_trace=True, **given)


def make_votes(generator: torch.Generator) -> Tensor:
    """Votes (1, 12, 3, 8): two groups that agree about one parent each, noise everywhere else."""
    votes = 0.7 * torch.randn(12, 3, 8, generator=generator)
    for parent, group in enumerate(("A", "B")):
        pose = torch.nn.functional.normalize(torch.randn(8, generator=generator), dim=0)
        children = torch.tensor(list(GROUPS[group]))
        votes[children, parent] = 2 * pose + 0.1 * torch.randn(len(children), 8, generator=generator)
    return votes.unsqueeze(0)


def draw(results: dict, path: Path) -> None:
    """One row per routing, one column per iteration: couplings of children (rows) to parents (columns)."""
    num_steps = max(len(result.trace) for result in results.values())
    figure, axes = plt.subplots(len(results), num_steps, figsize=(8, 2 * len(results)), layout="constrained")
    image = None
    for row, (name, result) in zip(axes, results.items(), strict=True):
        for step, axis in enumerate(row):
            if step >= len(result.trace):
                axis.set_axis_off()
                continue
            image = axis.imshow(result.trace[step].coupling[0].numpy(), vmin=0, vmax=1, cmap="cividis", aspect="auto")
            axis.set_xticks(range(3), ["A", "B", "C"])
            axis.set_yticks([2, 6.5, 10], list(GROUPS) if step == 0 else ["", "", ""])
            axis.tick_params(length=0)
            for border in (4.5, 8.5):
                axis.axhline(border, color="white", linewidth=1)
            axis.set_title(f"{name}, step {step + 1}", fontsize=9)
    figure.supxlabel("parent", fontsize=10)
    figure.supylabel("children, by the parent they agree about", fontsize=10)
    figure.suptitle("Couplings: how each child shares itself among the parents")
    figure.colorbar(image, ax=axes, label="coupling", shrink=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/couplings.png"), help="where to write the picture")
    arguments = parser.parse_args()
    votes = make_votes(torch.Generator().manual_seed(0))
    names = [name for name in routing_names() if find_routing(name).unlearned is not None]
    results = {name: route(name, votes) for name in names}

    table = Table(title="Twelve children, three parents: mean coupling of a group to its parent")
    for column in ("routing", "steps", "A to A", "B to B", "activation A, B, C", "objective, first to last"):
        table.add_column(column)
    for name, result in results.items():
        coupling, activations = result.coupling[0], result.capsules.activations[0]
        objective = [step.objective.item() for step in result.trace]
        table.add_row(
            name,
            str(len(result.trace)),
            *(f"{coupling[list(GROUPS[group]), parent].mean():.2f}" for parent, group in enumerate(("A", "B"))),
            ", ".join(f"{activation:.2f}" for activation in activations.tolist()),
            " -> ".join(f"{value:.2f}" for value in dict.fromkeys((objective[0], objective[-1]))),
        )
    Console().print(table)
    draw(results, arguments.out)
    Console().print(f"couplings of every iteration: {arguments.out}")


if __name__ == "__main__":
    main()
