"""Every routing with every option of its own, behind one call; votes to feed them; who competes with whom."""

from functools import partial

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.routing import (
    RoutingResult,
    attention_routing,
    dynamic_routing,
    em_routing,
    entropy_routing,
    heinsen_routing,
    kmeans_routing,
    max_min_routing,
    self_attention_routing,
    self_routing,
    uniform_routing,
    vb_routing,
)
from torchcaps.votes import ClassVotes, ConvVotes, DenseVotes, Votes

BETAS = {"beta_a": 0.3, "beta_u": -0.2}

# Those whose couplings alone weigh a child; all of them can be amended.
COUPLING = {
    "dynamic": dynamic_routing,
    "dynamic leaky": partial(dynamic_routing, leaky=True),
    "dynamic detached": partial(dynamic_routing, detach_couplings=True),
    "dynamic k": partial(dynamic_routing, squash_k=0.5, num_iterations=5),
    "uniform": uniform_routing,
    "kmeans": kmeans_routing,
    "kmeans hot": partial(kmeans_routing, inverse_temperature=3.0),
    "kmeans hard": partial(kmeans_routing, hard=True),
    "kmeans euclidean": partial(kmeans_routing, metric="euclidean"),
    "kmeans euclidean hard": partial(kmeans_routing, metric="euclidean", hard=True),
    "entropy": entropy_routing,
    "entropy decreasing": partial(entropy_routing, alpha=[0.5, 0.2, 0.1]),
    "attention": attention_routing,
    "self_attention": partial(self_attention_routing, bias=-0.05),
    "max_min": max_min_routing,
}
# Those that weigh children by their activations.
EM = {
    "em": partial(em_routing, **BETAS),
    "em paper": partial(em_routing, cost_scale="paper", lambda_schedule=0.1, **BETAS),
    "em mixing": partial(em_routing, activation="mixing", **BETAS),
    "em entropy": partial(em_routing, activation="entropy", **BETAS),
    "em damped": partial(em_routing, damping=0.3, **BETAS),
    "vb": partial(vb_routing, **BETAS),
    "heinsen": partial(heinsen_routing, beta_use=0.3, beta_ignore=-0.2),
    "self": self_routing,
}
AMENDED = {
    f"{name} amended": partial(COUPLING[name], amend=True)
    for name in ("dynamic", "dynamic leaky", "kmeans", "kmeans euclidean hard", "entropy")
}
ALL = {**COUPLING, **AMENDED, **EM}
LEAKY = tuple(name for name in ALL if "leaky" in name)
# Couplings of a child that are no shares: places between extremes, shares and a bias.
NO_SHARES = ("max_min", "self_attention")


def weighs_by_activation(name: str) -> bool:
    """Whether the routing reads the activations of the children."""
    return name in EM or name.endswith("amended")


def route(name: str, votes: Votes | Tensor, activations: Tensor | None = None, **options) -> RoutingResult:
    """Route; activations of the call are given only to a routing that takes them."""
    if activations is not None and weighs_by_activation(name):
        options["activations"] = activations
    return ALL[name](votes, **options)


def conv_votes(
    *,
    batch_size: int = 2,
    spatial: tuple[int, ...] = (6, 4),
    kernel: tuple[int, ...] = (3, 2),
    stride: tuple[int, ...] = (2, 1),
    num_types: int = 2,
    num_parents: int = 3,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
    **options,
) -> ConvVotes:
    """Random convolutional votes of size 3; with the sizes given here the last row is seen by no window."""
    poses = scale * torch.randn(batch_size, *spatial, num_types, 2, dtype=dtype)
    activations = torch.rand(batch_size, *spatial, num_types, dtype=dtype)
    weight = torch.randn(*kernel, num_types, num_parents, 2, 3, dtype=dtype)
    return ConvVotes(Capsules(poses, activations), weight, stride=stride, **options)


def describe(kind: str, batch_size: int = 3, dtype: torch.dtype = torch.float64) -> Votes:
    """Random votes of each kind of description, activations included."""
    if kind == "conv":
        return conv_votes(batch_size=batch_size, dtype=dtype)
    if kind == "conv1d":
        return conv_votes(batch_size=batch_size, dtype=dtype, spatial=(6,), kernel=(3,), stride=(2,))
    shape = (batch_size, 7) if kind == "dense" else (batch_size, 2, 3, 2)
    children = Capsules(torch.randn(*shape, 4, dtype=dtype), torch.rand(shape, dtype=dtype))
    if kind == "dense":
        return DenseVotes(children, torch.randn(7, 3, 4, 5, dtype=dtype))
    return ClassVotes(children, torch.randn(2, 3, 2, 2, dtype=dtype), pose="matrix")


DESCRIPTIONS = ("dense", "class", "conv", "conv1d")


def competitors(values: Tensor, votes: Votes, competition: str, fill: float) -> Tensor:
    """One row for each softmax of a routing: (B, *positions, slots, J) -> (B, rows, parents in competition).

    Under global competition the row of a child runs over all positions and types, under position competition there is
    one over all positions for each type; `fill` where it does not reach.
    """
    if votes.windows is None:
        return values
    if competition == "window":
        return values.flatten(1, -2)
    values_BSNJ = values.flatten(1, -3)
    batch_size, num_positions, _, num_parents = values_BSNJ.shape
    rows = values.new_full((batch_size, votes.num_children, num_positions, num_parents), fill)
    for position, children in enumerate(votes.windows.children()):
        rows[:, children, position] = values_BSNJ[:, position]
    return rows.movedim(-1, 2).flatten(1, 2) if competition == "position" else rows.flatten(2)


def of_competitors(weights: Tensor, votes: Votes, competition: str) -> Tensor:
    """The weight of its child for each row of `competitors`: (B, I) -> (B, rows)."""
    if competition == "window":
        return votes.slots(weights).flatten(1)
    by_type = competition == "position" and votes.windows is not None
    return weights.repeat_interleave(votes.num_parents, 1) if by_type else weights
