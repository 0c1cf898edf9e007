"""A routing of one's own in one file: agreement is the cosine between a vote and the sum of its parent.

Long votes then have no more say in where they go than short ones; `sharpness` says how much a better parent gets. It is
not from a paper: it shows how little a routing needs.

Nothing in the package knows of this file, yet the routing works in every layer, leaves a trace, runs on the chunked
backend, and has names: "cosine" wherever this file was imported, "new_routing:CosineRouting" for the command line.

    python examples/new_routing.py --steps 100
"""

import argparse
from dataclasses import dataclass

import torch

from torchcaps import Capsules, nn, squash
from torchcaps.capsules import normalise
from torchcaps.checks import check_count, check_positive
from torchcaps.losses import margin_loss
from torchcaps.routing import (
    Algorithm,
    FunctionRouting,
    Problem,
    RoutingResult,
    TraceStep,
    agreement,
    create_routing,
    options_of,
    per_example,
    pose_problem,
    register_routing,
    solve,
    use_backend,
    weighted_sum,
)


@dataclass(frozen=True)
class CosineOptions:
    num_iterations: int
    sharpness: float


def cosine(problem: Problem) -> RoutingResult:
    """The mathematics. Competition knows masks, windows and who competes; `materialise` knows layers."""
    options, competition, trace = problem.options, problem.compete(), []
    votes_BIJD = problem.votes.materialise()
    directions_BIJD = normalise(votes_BIJD)
    next_BIJ = competition.first(problem.initial_logits)
    for _ in range(options.num_iterations):
        coupling_BIJ = next_BIJ
        sums_BJD = weighted_sum(coupling_BIJ, votes_BIJD)
        cosine_BIJ = agreement(directions_BIJD, normalise(sums_BJD))
        capsules = Capsules.from_poses(squash(sums_BJD))
        step = coupling_BIJ, *capsules, -per_example(coupling_BIJ * cosine_BIJ)
        trace.append(TraceStep(*(value.detach() for value in step)))
        next_BIJ = competition.softmax(options.sharpness * cosine_BIJ)
    return RoutingResult(capsules, coupling_BIJ.detach(), tuple(trace) if problem.return_trace else None)


COSINE = Algorithm("cosine", cosine)


def cosine_routing(
    votes, *, num_iterations=3, sharpness=4.0, competition="window", initial_logits=None, activations=None, mask=None,
    backend="auto", return_trace=False,
) -> RoutingResult:  # fmt: skip
    """The function; what stands after `sharpness` every routing takes."""
    options = CosineOptions(check_count("num_iterations", num_iterations), check_positive("sharpness", sharpness))
    call = {"activations": activations, "mask": mask, "initial_logits": initial_logits, "return_trace": return_trace}
    return solve(pose_problem(COSINE, votes, options, competition=competition, **call), backend)


@register_routing("cosine", english="cosine", chinese="余弦路由")
class CosineRouting(FunctionRouting):
    """The module: its options, written out for editors, checked when it is made."""

    function = staticmethod(cosine_routing)

    def __init__(
        self,
        *,
        num_iterations: int = 3,
        sharpness: float = 4.0,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))


def main(steps: int) -> None:
    torch.manual_seed(0)
    prototypes = torch.randn(5, 12, 8)  # 5 classes of 12 parts; below, half of the parts are clutter
    routing = create_routing("cosine", sharpness=8.0)
    layer = nn.DenseCaps(12, 5, 8, 16, routing=routing, weight_std=0.3)
    print(layer)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    for step in range(steps):
        classes, clutter = torch.randint(5, (64,)), torch.rand(64, 12, 1) < 0.5
        parts = Capsules.from_poses(squash(torch.where(clutter, torch.randn(64, 12, 8), prototypes[classes])))
        activations = layer(parts).activations
        loss = margin_loss(activations, classes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d}: loss {loss:.3f}, accuracy {(activations.argmax(-1) == classes).float().mean():.2f}")
    with use_backend("chunked"):
        trace = layer.route(parts, return_trace=True).trace
    for number, step in enumerate(trace):
        own = step.coupling[torch.arange(64), :, classes].unsqueeze(-1)
        shares = f"{own[~clutter].mean():.2f} to their class, clutter {own[clutter].mean():.2f}"
        print(f"iteration {number}: parts give {shares}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    main(parser.parse_args().steps)
