"""Routing problems in two forms: as the library takes them, and as the loops do."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support import loops
from torchcaps.capsules import Capsules
from torchcaps.votes import ClassVotes, ConvVotes, DenseVotes, Votes

SIZES = (2, 7, 3, 4)  # B, I, J, D of plain votes


@dataclass(frozen=True)
class Case:
    """One problem: leaf tensors, and how to make votes for the library and for the loops from them."""

    leaves: dict[str, Tensor]
    describe: Callable[..., Votes | Tensor]  # (poses, activations, weight, ...) -> votes
    form: Callable[[dict[str, Any]], tuple[np.ndarray, np.ndarray]]  # numpy leaves -> votes (B, S, N, J, D), child
    positions: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # of the call: competition, mask, initial_logits, ...
    mask: Tensor | None = None  # of the description
    window_mask: Tensor | None = None

    def given(self, **options) -> "Case":
        """The case with further options in the call."""
        return replace(self, options=self.options | options)

    def votes(self, **leaves) -> Votes | Tensor:
        """The votes as the library takes them."""
        return self.describe(**{**self.leaves, **leaves})

    def field(self) -> loops.Field:
        """The votes as the loops take them."""
        arrays = {name: leaf.detach().numpy() for name, leaf in self.leaves.items()}
        votes, child = self.form(arrays)
        options = {name: as_array(value) for name, value in self.options.items() if name in LOOP_OPTIONS}
        if options.get("competition") == "position" and not self.positions:
            options["competition"] = "window"  # without windows types compete under any name
        if "initial_logits" in options:
            options["initial_logits"] = options["initial_logits"].reshape(votes.shape[:4])
        if self.mask is not None:
            options["mask"] = self.mask.flatten(1).numpy()
        if self.window_mask is not None:
            options["window_mask"] = self.window_mask.flatten(1).numpy()
        if "activations" not in options and "activations" in arrays:
            options["activations"] = arrays["activations"].reshape(len(votes), -1)
        return loops.Field(votes, child, **options)


LOOP_OPTIONS = ("competition", "mask", "activations", "initial_logits", "partial", "leaky", "amend")


def as_array(value):
    return value.detach().numpy() if isinstance(value, Tensor) else value


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def random_mask(*shape: int) -> Tensor:
    """About two in three take part: the last of the first example never, the first of each example always."""
    mask = torch.rand(*shape) < 0.67
    mask[0, -1] = False
    mask[:, 0] = True
    return mask


def tensor_case(sizes=SIZES) -> Case:
    """Plain votes (B, I, J, D)."""
    votes = randn(*sizes)
    return Case(
        {"votes": votes},
        lambda votes: votes,
        lambda arrays: (arrays["votes"][:, None], np.arange(sizes[1])[None]),
    )


def transformation(owners: tuple[int, ...], num_parents: int, pose: str, sharing: str, bias: bool, inner=3, outer=4):
    """Leaves of a weight (and bias): inner K, outer D, or 2 x 2 matrices."""
    if pose == "matrix":
        inner = outer = 2
    vote_size = outer * (2 if pose == "matrix" else 1)
    leaves = {}
    if sharing == "factorised":
        middle = 2
        leaves["factor"], leaves["weight"] = randn(*owners, inner, middle), randn(num_parents, middle, outer)
    else:
        leaves["weight"] = randn(*(owners if sharing == "full" else ()), num_parents, inner, outer)
    if bias:
        leaves["bias"] = randn(*(owners if sharing == "full" else ()), num_parents, vote_size)
    return leaves, inner * (2 if pose == "matrix" else 1)


def pair(weight, factor=None):
    return weight if factor is None else (factor, weight)


def linear_case(describe, form, shape, owners, *, num_parents, pose, sharing, bias, mask, windows=None, **extra):
    """What dense, convolutional and class votes have in common; `shape` is that of the activations."""
    leaves, pose_size = transformation(owners, num_parents, pose, sharing, bias)
    leaves = {"poses": randn(*shape, pose_size), "activations": rand(*shape), **leaves}
    mask = random_mask(*shape) if mask else None
    common = {"pose": pose, "sharing": sharing}

    def describe_leaves(poses, weight, activations=None, factor=None, bias=None):
        children = poses if activations is None else Capsules(poses, activations)
        return describe(children, pair(weight, factor), bias=bias, mask=mask, **common, **extra)

    def form_leaves(arrays):
        weight = pair(arrays["weight"], arrays.get("factor"))
        return form(arrays["poses"], weight, bias=arrays.get("bias"), **common)

    return Case(leaves, describe_leaves, form_leaves, mask=mask, **(windows or {}))


def dense_case(*, batch_size=2, num_children=5, num_parents=3, pose="vector", sharing="full", bias=True, mask=False):
    return linear_case(
        DenseVotes, loops.dense_votes, (batch_size, num_children), (num_children,),
        num_parents=num_parents, pose=pose, sharing=sharing, bias=bias, mask=mask,
    )  # fmt: skip


def conv_case(
    *, batch_size=2, spatial=(6, 4), num_types=2, kernel=(3, 2), stride=(2, 1), num_parents=2,
    pose="vector", sharing="full", bias=True, mask=False, window_mask=False,
):  # fmt: skip
    """Convolutional votes; with the sizes given here the last row is seen by no window."""
    output = tuple((size - k) // s + 1 for size, k, s in zip(spatial, kernel, stride))
    windows = {"positions": output}
    if window_mask:
        windows["window_mask"] = random_mask(batch_size, *output)
    extra = {"kernel_size": kernel, "stride": stride, "window_mask": windows.get("window_mask")}

    def form(poses, weight, bias, pose, sharing):
        return loops.conv_votes(poses, weight, kernel, stride, bias, pose, sharing)

    return linear_case(
        ConvVotes, form, (batch_size, *spatial, num_types), (*kernel, num_types),
        num_parents=num_parents, pose=pose, sharing=sharing, bias=bias, mask=mask, windows=windows, **extra,
    )  # fmt: skip


def class_case(
    *, batch_size=2, spatial=(2, 3), num_types=2, num_parents=3, pose="vector", sharing="full", bias=True, mask=False,
    coordinates=True,
):  # fmt: skip
    def form(poses, weight, bias, pose, sharing):
        return loops.class_votes(poses, weight, bias, pose, sharing, coordinates)

    return linear_case(
        ClassVotes, form, (batch_size, *spatial, num_types), (num_types,),
        num_parents=num_parents, pose=pose, sharing=sharing, bias=bias, mask=mask, coordinates=coordinates,
    )  # fmt: skip
