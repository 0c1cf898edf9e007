"""Self-routing as a module, which learns where a child belongs from its pose."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.precision import solved_type, without_autocast
from torchcaps.routing.module import FunctionRouting, options_of
from torchcaps.routing.registry import WEIGHTED_SUM, register_routing
from torchcaps.routing.result import RoutingResult
from torchcaps.routing.self.api import self_routing
from torchcaps.votes import LinearVotes, Votes


@register_routing(
    "self", english="self-routing", chinese="自路由", cost=lambda num_iterations: WEIGHTED_SUM, unlearned=None
)
class SelfRouting(FunctionRouting):
    """:func:`torchcaps.routing.self_routing` whose logits w_i . u_i + b_i are learned.

    There is one w and b per child and parent type, per child type where children share their transformations. Logits
    that a layer is given are added.

    Args:
        competition, backend: options of the function.

    Shapes:
        weight: (owners, K, J)
        bias: (owners, J)
    """

    function = staticmethod(self_routing)
    parents_are_means = True
    activations_are_lengths = False
    weighs_children = True

    def __init__(self, *, competition: str = "window", backend: str = "auto") -> None:
        super().__init__(**options_of(locals()))
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def bind(
        self,
        num_parents: int,
        vote_size: int,
        *,
        num_owners: int = 1,
        child_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if child_size is None:
            raise ValueError("self-routing decides by the pose of a child; give bind the child_size, entries of a pose")
        super().bind(num_parents, vote_size, num_owners=num_owners, child_size=child_size, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(num_owners, child_size, num_parents, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_owners, num_parents, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
            nn.init.zeros_(self.bias)

    def forward(self, votes: Votes | Tensor, *, initial_logits: Tensor | None = None, **call: Any) -> RoutingResult:
        logits = self.logits(votes)
        if initial_logits is not None:
            logits = logits + initial_logits
        return super().forward(votes, initial_logits=logits, **call)

    def logits(self, votes: Votes | Tensor) -> Tensor:
        """w_i . u_i + b_i of the children in every slot: (B, *positions, slots, J)."""
        if not isinstance(votes, LinearVotes):
            raise TypeError(
                "SelfRouting decides by the poses of the children, which plain votes do not show; give it to a layer, "
                "or call self_routing with initial_logits"
            )
        if self.weight is None:
            raise ValueError("SelfRouting has learned nothing yet; give it to a layer")
        poses, weight, bias = votes.poses, self.weight, self.bias
        if votes.mask is not None:  # padding may hold anything, NaN too
            poses = torch.where(votes.mask.unsqueeze(-1), poses, torch.zeros_like(poses))
        poses_BPTK = votes.slots(poses.to(solved_type(poses))).unflatten(-2, (-1, weight.shape[0]))
        with without_autocast(poses.device.type):
            return (torch.einsum("...ptk,tkj->...ptj", poses_BPTK, weight) + bias).flatten(-3, -2)
