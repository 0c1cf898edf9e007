"""A routing of one's own: inverted dot-product attention (Tsai et al. 2020), in about 30 lines.

Parents attend to children: logits are replaced by <vote, pose> / sqrt(D), poses are layer-normalised in between. The
paper has no activations; here the length of the squashed sum serves as one.

Nothing in the package knows of this file, yet the routing works in every layer, leaves a trace, runs on the chunked
backend, and has a name: "new_routing:AttentionRouting" for `create_routing` and the command line.

    python examples/new_routing.py --steps 100
"""

import argparse
import math
from dataclasses import dataclass

import torch
from torch.nn.functional import layer_norm

from torchcaps import Capsules, nn, squash
from torchcaps.losses import margin_loss
from torchcaps.nn import FunctionRouting
from torchcaps.routing import RoutingResult, TraceStep, use_backend
from torchcaps.routing.backend import solve
from torchcaps.routing.problem import Algorithm, Problem, pose_problem
from torchcaps.routing.steps import agreement, per_example, weighted_sum


@dataclass(frozen=True)
class AttentionOptions:
    num_iterations: int


def attention(problem: Problem) -> RoutingResult:
    """The mathematics. Competition knows masks, windows and who competes; `materialise` knows layers."""
    competition, votes_BIJD, trace = problem.compete(), problem.votes.materialise(), []
    next_BIJ, size = competition.first(problem.initial_logits), problem.votes.vote_size
    for _ in range(problem.options.num_iterations):
        coupling_BIJ = next_BIJ
        sums_BJD = weighted_sum(coupling_BIJ, votes_BIJD)
        logits_BIJ = agreement(votes_BIJD, layer_norm(sums_BJD, (size,))) / math.sqrt(size)
        capsules = Capsules.from_poses(squash(sums_BJD))
        step = coupling_BIJ, *capsules, -per_example(coupling_BIJ * logits_BIJ)
        trace.append(TraceStep(*(value.detach() for value in step)))
        next_BIJ = competition.softmax(logits_BIJ)
    return RoutingResult(capsules, coupling_BIJ.detach(), tuple(trace) if problem.return_trace else None)


ATTENTION = Algorithm("attention", attention)


def attention_routing(votes, *, num_iterations=2, competition="window", backend="auto", **call) -> RoutingResult:
    """Inverted dot-product attention routing; `call` holds what every routing takes: mask, initial_logits, ..."""
    call = {"initial_logits": None, "return_trace": False} | call
    problem = pose_problem(ATTENTION, votes, AttentionOptions(num_iterations), competition=competition, **call)
    return solve(problem, backend)


class AttentionRouting(FunctionRouting):
    function = staticmethod(attention_routing)


def main(steps: int) -> None:
    torch.manual_seed(0)
    prototypes = torch.randn(5, 12, 8)  # 5 classes of 12 parts; below, half of the parts are clutter
    routing = nn.create_routing("new_routing:AttentionRouting", num_iterations=3)
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
