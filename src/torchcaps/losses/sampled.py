"""Softmax over so many classes that a few of them must stand for all."""

import torch
from torch import Tensor


def sampled_logits(
    true_scores: Tensor, sampled_scores: Tensor, true_log_q: Tensor, sampled_log_q: Tensor, is_true: Tensor
) -> Tensor:
    r"""Logits of what is true and of sampled classes, whose softmax stands for that over all (Bengio, Senécal 2003).

    A class that is drawn with probability q among n draws counts :math:`e^{s} / (n q)`, which on average is what all
    classes count; without this correction classes that are drawn often would be pushed down, and rare ones up. A draw
    that happens to be the true class is left out.

    Args:
        true_scores, sampled_scores: s.
        true_log_q, sampled_log_q: ln q of these classes.
        is_true: which draws are the true class.

    Shapes:
        true_scores, true_log_q: (B,); sampled_scores, is_true: (B, n); sampled_log_q: (n,) -> (B, 1 + n)

    Example:
        >>> uniform = torch.full((2,), 0.5).log()
        >>> sampled_logits(torch.tensor([3.0]), torch.tensor([[1.0, 2.0]]), uniform[:1], uniform,
        ...     torch.tensor([[False, True]]))
        tensor([[3., 1., -inf]])
    """
    log_count = torch.log(torch.tensor(float(sampled_scores.shape[1]), dtype=sampled_log_q.dtype))
    true = true_scores - (true_log_q + log_count)
    sampled = (sampled_scores - (sampled_log_q + log_count)).masked_fill(is_true, -torch.inf)
    return torch.cat([true.unsqueeze(1), sampled], 1)
