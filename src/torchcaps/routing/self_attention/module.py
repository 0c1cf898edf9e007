"""Self-attention routing as a module, with its bias learned."""

from typing import ClassVar

from torch import Tensor

from torchcaps.routing.module import LearningRouting, options_of
from torchcaps.routing.registry import AGREEMENT, WEIGHTED_SUM, register_routing
from torchcaps.routing.self_attention.api import self_attention_routing


@register_routing(
    "self_attention",
    english="self-attention",
    chinese="自注意力路由",
    cost=lambda num_iterations: 2 * WEIGHTED_SUM + AGREEMENT,  # all votes, their agreement with that, those coupled
    unlearned={"learn": False},
)
class SelfAttentionRouting(LearningRouting):
    """:func:`torchcaps.routing.self_attention_routing` with its options fixed and its bias learned.

    There is one per child and parent type, per child type where children share their transformations.

    Args:
        learn: False for no bias.
        amend, partial, competition, backend: options of the function.
    """

    function = staticmethod(self_attention_routing)
    learns = ("bias",)
    start: ClassVar = {"bias": 0.0}
    unlearned: ClassVar = {"bias": None}

    def __init__(
        self,
        *,
        learn: bool = True,
        amend: bool = False,
        partial: float | Tensor | None = None,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))

    def shape_of_learned(self, num_parents: int, vote_size: int, num_owners: int) -> tuple[int, ...]:
        return (num_owners, num_parents)
