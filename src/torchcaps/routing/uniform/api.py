"""Uniform routing: the public function."""

from torch import Tensor

from torchcaps.routing.dynamic.api import dynamic_routing
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes


def uniform_routing(
    votes: Votes | Tensor,
    *,
    squash_k: float = 1.0,
    leaky: bool = False,
    amend: bool = False,
    partial: float | Tensor | None = None,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    activations: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""The baseline without routing: dynamic routing with one iteration.

    .. math:: v_j = squash(\frac{1}{J} \sum_i \hat u_{ij})

    The options are those of :func:`dynamic_routing`.

    Example:
        >>> import torch
        >>> uniform_routing(torch.randn(2, 5, 4, 8)).coupling.unique()
        tensor([0.2500])
    """
    return dynamic_routing(
        votes,
        num_iterations=1,
        squash_k=squash_k,
        leaky=leaky,
        amend=amend,
        partial=partial,
        competition=competition,
        initial_logits=initial_logits,
        activations=activations,
        mask=mask,
        backend=backend,
        return_trace=return_trace,
    )
