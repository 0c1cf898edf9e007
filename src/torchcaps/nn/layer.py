"""What dense, convolutional and class layers have in common: weights, their owner, and a routing."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, check_are_capsules, matrix_side, normalise
from torchcaps.checks import check_choice, check_count
from torchcaps.nn.norm import CapsuleNorm, check_norm
from torchcaps.routing import Routing, RoutingResult
from torchcaps.votes import POSES, SHARINGS, LinearVotes, Weight
from torchcaps.votes.sharing import takes_old_name

# Vector layers start so that children of this length keep it under uniform coupling, and longer ones grow.
LEAST_LENGTH = 1 / 8
MATRIX_STD = 0.1  # of matrices around the identity
STARTS = ("identity", "small")


class CapsuleLayer(nn.Module):
    """A layer that transforms poses into votes and routes them.

    Vector W start normal with variance 1/K (more where many parents share few children, so
    that a stack of layers stays alive), matrix W as identity + 0.1 N(0, 1), which makes couplings of EM hard from the
    first step on. `start="small"` is for stacks of EM layers: uniform with standard deviation
    sqrt(2 / ((C_in + C_out) kernel D)), so that votes start close together and couplings soft.

    Args:
        owners: axes that full weights start with: (I,), (kernel..., C) or (C,).
        num_children: children one parent sees, or None where it varies.
        num_parents: parent types.
        in_size, out_size: entries of a pose; matrix poses have P * P on both sides.
        routing: an instance of its own.
        pose: "vector" or "matrix".
        sharing: "full", "shared" or "factorised".
        bias: add a learned vector to every vote, one per transformation.
        normalise_weights: divide every matrix by its Frobenius norm; None leaves it to the routing.
        start: "identity" (matrices alone) or "small"; None for the identity for matrices, normal for vectors.
        weight_std: standard deviation at the start, around the identity for matrices unless they start small, else
            around 0; None for the above.
        norm: of the parents' poses and activation logits, an instance of its own; None for none.

    Attributes:
        child_types: types that children have although they share their transformations.
    """

    child_types = 1

    @takes_old_name
    def __init__(
        self,
        owners: tuple[int, ...],
        num_children: int | None,
        num_parents: int,
        in_size: int,
        out_size: int,
        *,
        routing: Routing,
        pose: str = "vector",
        sharing: str = "full",
        bias: bool = False,
        normalise_weights: bool | None = None,
        start: str | None = None,
        weight_std: float | None = None,
        norm: CapsuleNorm | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(routing, Routing):
            raise TypeError(f"routing must be an instance such as DynamicRouting(), got {routing!r}")
        self.pose, self.sharing = check_choice("pose", pose, POSES), check_choice("sharing", sharing, SHARINGS)
        self.num_parents = check_count("number of parents", num_parents)
        self.in_size, self.out_size = check_count("in_size", in_size), check_count("out_size", out_size)
        self.owners, self.num_children, self.weight_std = owners, num_children, weight_std
        self.start = None if start is None else check_choice("start", start, STARTS)
        if start == "identity" and pose != "matrix":
            raise ValueError(
                "start='identity' is for matrix poses; vector transformations start normal (None) or 'small'"
            )
        if norm is not None:
            check_norm(norm, num_parents)
        if weight_std is not None and not 0 <= weight_std < math.inf:
            raise ValueError(f"weight_std must be a finite number of at least 0, got {weight_std!r}")
        self.normalise_weights = routing.normalise_weights if normalise_weights is None else normalise_weights
        inner, outer = in_size, out_size
        if pose == "matrix":
            inner = outer = matrix_side(in_size)
            if in_size != out_size:
                raise ValueError(f"matrix poses keep their size: in_size {in_size} and out_size {out_size} differ")
        own = owners if sharing == "full" else ()
        empty = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(*own, num_parents, inner, outer, **empty))
        self.register_parameter("child_weight", None)
        if sharing == "factorised":
            self.child_weight = nn.Parameter(torch.empty(*owners, inner, inner, **empty))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(*own, num_parents, out_size, **empty)) if bias else None
        )
        num_owners = self.child_types if sharing == "shared" else math.prod(owners)
        routing.bind(num_parents, out_size, num_owners=num_owners, child_size=in_size, **empty)
        self.routing, self.norm = routing, norm
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weights, bias and what the routing learns back to their start."""
        if self.child_weight is not None:
            _near_identity(self.child_weight, MATRIX_STD)
        if self.start == "small":
            bound = math.sqrt(3) * (self._small_std() if self.weight_std is None else self.weight_std)
            nn.init.uniform_(self.weight, -bound, bound)
        elif self.pose == "matrix":
            _near_identity(self.weight, MATRIX_STD if self.weight_std is None else self.weight_std)
        else:
            nn.init.normal_(self.weight, std=self._alive_std() if self.weight_std is None else self.weight_std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.routing.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()

    def _small_std(self) -> float:
        """Root of 2 / ((C_in + C_out) kernel D); shared and factorised weights count as those of one child type."""
        in_types = self.owners[-1] if self.sharing == "full" else 1
        return math.sqrt(2 / ((in_types + self.num_parents) * math.prod(self.owners[:-1]) * self.out_size))

    def _alive_std(self) -> float:
        """Root of 1/K, or of the variance that keeps a stack of layers alive where that is more.

        Children of length l under uniform coupling give |s_j|^2 = g l^2 with g about N D variance / J^2, and squash
        turns that into a length of g l^2 / (1 + g l^2): l is kept for g = 1 / (l (1 - l)), and what is longer grows.
        """
        variance = 1 / self.in_size
        if self.num_children is not None:
            gain = 1 / (LEAST_LENGTH * (1 - LEAST_LENGTH))
            variance = max(variance, gain * self.num_parents**2 / (self.num_children * self.out_size))
        return math.sqrt(variance)

    def transformation(self) -> Weight:
        """The weights as votes take them, normalised if the layer does that."""
        weight = _frobenius(self.weight) if self.normalise_weights else self.weight
        if self.child_weight is None:
            return weight
        return (_frobenius(self.child_weight) if self.normalise_weights else self.child_weight, weight)

    def check_poses(self, poses: Tensor, *axes: int | str) -> None:
        """Raise unless poses have the given axes between batch and pose; names stand for any size."""
        expected = ("B", *axes, self.in_size)
        fits = all(isinstance(wanted, str) or wanted == size for wanted, size in zip(expected, poses.shape))
        if poses.dim() != len(expected) or not fits:
            raise ValueError(f"poses must have shape ({', '.join(map(str, expected))}), got {tuple(poses.shape)}")

    @abstractmethod
    def votes(self, children: Capsules, *, mask: Tensor | None = None) -> LinearVotes:
        """Describe what the children vote for."""

    def route(
        self,
        children: Capsules,
        *,
        mask: Tensor | None = None,
        initial_logits: Tensor | None = None,
        return_trace: bool = False,
    ) -> RoutingResult:
        """Route the children's votes; the result holds children, votes, couplings and, on request, the trace.

        The trace is that of the routing, before the norm.

        Under autocast the result is float32: routing needs its digits.
        """
        check_are_capsules(children)
        extra = {} if initial_logits is None else {"initial_logits": initial_logits}
        votes = self.votes(children, mask=mask)
        result = self.routing(votes, return_trace=return_trace, **extra)
        result.children, result.votes = children, votes
        return result if self.norm is None else result.normed(self.norm, votes.window_mask)

    def forward(self, children: Capsules, mask: Tensor | None = None) -> Capsules:
        return self.route(children, mask=mask).capsules

    def extra_repr(self) -> str:
        parts = [f"{self.in_size} -> {self.out_size}", f"pose={self.pose!r}", f"sharing={self.sharing!r}"]
        parts += ["bias=True"] if self.bias is not None else []
        parts += ["normalise_weights=True"] if self.normalise_weights else []
        parts += [] if self.start is None else [f"start={self.start!r}"]
        return ", ".join(parts)


def _frobenius(weight: Tensor) -> Tensor:
    """W / |W|_F for each matrix."""
    return normalise(weight.flatten(-2)).view_as(weight)


@torch.no_grad()
def _near_identity(weight: Tensor, std: float) -> None:
    nn.init.normal_(weight, std=std)
    weight += torch.eye(weight.shape[-1], device=weight.device, dtype=weight.dtype)
