"""Attention routing as a module, with its LayerNorm learned."""

from typing import ClassVar

from torch import Tensor

from torchcaps.routing.attention.api import attention_routing
from torchcaps.routing.module import LearningRouting, options_of
from torchcaps.routing.registry import cost_of_sums, register_routing


@register_routing(
    "attention",
    english="inverted attention",
    chinese="反向注意力路由",
    cost=cost_of_sums,
    unlearned={"learn": False},
)
class AttentionRouting(LearningRouting):
    """:func:`torchcaps.routing.attention_routing` with its options fixed, scale and shift of its LayerNorm learned.

    Args:
        learn: False for a LayerNorm without scale and shift.
        num_iterations: and all others are options of the function.
    """

    function = staticmethod(attention_routing)
    learns = ("scale", "shift")
    start: ClassVar = {"scale": 1.0, "shift": 0.0}
    unlearned: ClassVar = {"scale": None, "shift": None}
    activations_are_lengths = False

    def __init__(
        self,
        *,
        learn: bool = True,
        num_iterations: int = 3,
        eps: float = 1e-5,
        squash_k: float = 1.0,
        amend: bool = False,
        partial: float | Tensor | None = None,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))

    def shape_of_learned(self, num_parents: int, vote_size: int, num_owners: int) -> tuple[int, ...]:
        return (vote_size,)
