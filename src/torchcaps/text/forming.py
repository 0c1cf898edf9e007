"""Tokens become capsules without labels: starts that differ, then any clustering that routes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import normalise
from torchcaps.checks import check_choice
from torchcaps.routing import RoutingResult, em_routing, kmeans_routing, vb_routing

SHARPNESS = 10.0  # of the first couplings and of K-Means, for vectors of length 1
SOFT_START = 20.0  # of the first couplings of EM and VB


class Formed(NamedTuple):
    """Shapes: poses (B, K, E) of length 1; shares (B, K), which add up to 1; coupling (B, T, K)."""

    poses: Tensor
    shares: Tensor
    coupling: Tensor


def starts_of(vectors: Tensor, mask: Tensor, num_capsules: int) -> Tensor:
    r"""Tokens that are far from each other: where the capsules of each text begin.

    The first is the token that is nearest to the mean of all, every other one the token whose largest cosine with those
    before it is least. Parents with equal transformations must begin differently, or they would stay equal for ever;
    and what they begin with must depend on the text alone, not on padding or on other texts.

    Shapes:
        vectors: (B, T, E), of length 1; mask: (B, T) -> numbers of tokens (B, K)

    Example:
        >>> vectors = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [9.0, 9.0]]])
        >>> starts_of(vectors, torch.tensor([[True, True, True, False]]), 2)
        tensor([[2, 0]])
    """
    centre_BE = normalise((vectors * mask.unsqueeze(-1)).sum(1))
    near_BT = torch.einsum("bte,be->bt", vectors, centre_BE).masked_fill(~mask, -torch.inf)
    chosen = [near_BT.argmax(1)]
    nearest_BT = torch.full_like(near_BT, -torch.inf)
    for _ in range(num_capsules - 1):
        last_BE = vectors[torch.arange(len(vectors)), chosen[-1]]
        nearest_BT = torch.maximum(nearest_BT, torch.einsum("bte,be->bt", vectors, last_BE))
        chosen.append(nearest_BT.masked_fill(~mask, torch.inf).argmin(1))
    return torch.stack(chosen, 1)


def form_capsules(
    vectors: Tensor, mask: Tensor, num_capsules: int, *, routing: str = "kmeans", num_iterations: int = 3
) -> Formed:
    r"""Route the tokens of each text into K capsules; every token votes for all of them with its own vector.

    The first couplings are a softmax over :math:`T \langle x_i, x_{s_j} \rangle`, with the starts :math:`s_j` of
    `starts_of`. A capsule's pose is the direction of the sum of its tokens, :math:`\sum_i c_{ij} x_i`, its share the
    part of all tokens that it holds, so that one capsule is the mean of the text.

    Args:
        vectors: of the tokens.
        mask: which are there.
        num_capsules: K, no more than there are tokens in any of the texts.
        routing: "kmeans", "em", "vb" or "uniform".
        num_iterations: of the routing.

    Shapes:
        vectors: (B, T, E); mask: (B, T), at least K of each row

    Example:
        >>> vectors = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]])
        >>> form_capsules(vectors, torch.ones(1, 3, dtype=torch.bool), 2).shares
        tensor([[0.6666, 0.3334]])
    """
    check_choice("routing", routing, FORMS)
    if int(mask.sum(1).min()) < num_capsules:
        raise ValueError(
            f"a text of {int(mask.sum(1).min())} tokens cannot form {num_capsules} capsules; ask for fewer"
        )
    unit_BTE = normalise(vectors)
    starts_BK = starts_of(unit_BTE, mask, num_capsules)
    first_BKE = unit_BTE[torch.arange(len(unit_BTE))[:, None], starts_BK]
    logits_BTK = torch.einsum("bte,bke->btk", unit_BTE, first_BKE)
    votes_BTKE = unit_BTE.unsqueeze(2).expand(-1, -1, num_capsules, -1)
    result = FORMS[routing](votes_BTKE, logits_BTK, mask, num_iterations)
    coupling_BTK = (result.coupling * mask.unsqueeze(-1)).to(vectors.dtype)
    poses_BKE = normalise(torch.einsum("btk,bte->bke", coupling_BTK, vectors))
    shares_BK = coupling_BTK.sum(1) / mask.sum(1, keepdim=True)
    return Formed(poses_BKE, shares_BK, coupling_BTK)


def _kmeans(votes: Tensor, logits: Tensor, mask: Tensor, num_iterations: int) -> RoutingResult:
    options = {"num_iterations": num_iterations, "inverse_temperature": SHARPNESS}
    return kmeans_routing(votes, initial_logits=SHARPNESS * logits, mask=mask, **options)


def _em(votes: Tensor, logits: Tensor, mask: Tensor, num_iterations: int) -> RoutingResult:
    return em_routing(
        votes,
        mask.to(votes.dtype),
        beta_a=0.0,
        beta_u=0.0,
        num_iterations=num_iterations,
        inverse_temperature=1 / votes.shape[-1],
        eps_var=0.1 / votes.shape[-1],
        activation="mixing",
        initial_logits=SOFT_START * logits,
        mask=mask,
    )


def _vb(votes: Tensor, logits: Tensor, mask: Tensor, num_iterations: int) -> RoutingResult:
    return vb_routing(
        votes * votes.shape[-1] ** 0.5,  # entries of about 1, as the priors expect
        mask.to(votes.dtype),
        beta_a=0.0,
        beta_u=0.0,
        num_iterations=num_iterations,
        initial_logits=SOFT_START * logits,
        mask=mask,
    )


def _uniform(votes: Tensor, logits: Tensor, mask: Tensor, num_iterations: int) -> RoutingResult:
    return kmeans_routing(votes, initial_logits=SHARPNESS * logits, mask=mask, num_iterations=0)


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor, int], RoutingResult]] = {
    "kmeans": _kmeans,
    "em": _em,
    "vb": _vb,
    "uniform": _uniform,
}
