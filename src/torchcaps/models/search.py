"""The items that fit the interests of a person best: all are looked at, a part at a time."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.checks import check_count

PART = 2**25  # scores that are held at a time


class Found(NamedTuple):
    """The best items of each person, in order; item 0 with score -inf where there are no more.

    Shapes:
        items: (B, k), numbers from 1 on
        scores: (B, k), those of the interest that likes the item best
        interests: (B, k), which one that is
        log_sums: (B,), ln of the sum of e^score over all items that are not left out
    """

    items: Tensor
    scores: Tensor
    interests: Tensor
    log_sums: Tensor


def search(
    interests: Tensor,
    vectors: Tensor,
    k: int,
    *,
    present: Tensor | None = None,
    leave_out: Tensor | None = None,
    part: int = PART,
) -> Found:
    """The k items with the largest max over interests of <interest, item>.

    Memory is that of one part of the items, whatever their number.

    Args:
        interests: of the people.
        vectors: of the items; row 0 is no item.
        k: how many.
        present: which interests there are; all if left out.
        leave_out: numbers of items that are not recommended, such as those that were used; 0 for nothing.
        part: numbers of scores that are held at a time.

    Shapes:
        interests: (B, J, D); vectors: (items + 1, D); present: (B, J); leave_out: (B, T)

    Example:
        >>> vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> found = search(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), vectors, 2, leave_out=torch.tensor([[3]]))
        >>> found.items, found.interests
        (tensor([[1, 2]]), tensor([[0, 1]]))
    """
    check_count("k", k)
    batch_size, num_interests, _ = interests.shape
    # a graph that is compiled has any number of people, so that the size of parts cannot depend on it
    step = len(vectors) if torch.compiler.is_compiling() else max(1, part // max(1, batch_size * num_interests))
    best: list[Tensor] = []
    log_sums = []
    for start in range(1, len(vectors), step):
        scores_BJN = interests @ vectors[start : start + step].T
        if present is not None:
            scores_BJN = scores_BJN.masked_fill(~present.unsqueeze(-1), -torch.inf)
        scores_BN, which_BN = scores_BJN.max(1)
        if leave_out is not None:
            scores_BN = _without(scores_BN, leave_out - start)
        log_sums.append(scores_BN.logsumexp(1))
        top_BK, place_BK = scores_BN.topk(min(k, scores_BN.shape[1]))
        found = [top_BK, place_BK + start, which_BN.gather(1, place_BK)]
        best = [torch.cat(pair, 1) for pair in zip(best, found, strict=True)] if best else found
    scores_BK, order_BK = best[0].topk(min(k, best[0].shape[1]))
    items_BK, interests_BK = (part_BK.gather(1, order_BK) for part_BK in best[1:])
    items_BK = torch.where(scores_BK > -torch.inf, items_BK, 0)
    return Found(items_BK, scores_BK, interests_BK, torch.stack(log_sums, 1).logsumexp(1))


def _without(scores: Tensor, places: Tensor) -> Tensor:
    """Scores (B, N) with -inf at these places (B, T), where they are among them."""
    num_items = scores.shape[1]
    is_here = (places >= 0) & (places < num_items)
    index = torch.where(is_here, places, num_items)
    wider = torch.cat([scores, scores[:, :1]], 1)  # one more column, which takes what is elsewhere
    return wider.scatter(1, index, -torch.inf)[:, :num_items]
