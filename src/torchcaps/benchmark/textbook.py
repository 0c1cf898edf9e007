"""Dynamic routing as tutorials write it: votes times couplings, summed. What most code in use is timed like."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, squash


def textbook_routing(poses_BIK: Tensor, weight_IJKD: Tensor, num_iterations: int) -> Capsules:
    """Same parents as the reference, which contracts instead of summing products and so forms fewer copies."""
    votes_BIJD = torch.einsum("bik,ijkd->bijd", poses_BIK, weight_IJKD)
    logits_BIJ = votes_BIJD.new_zeros(votes_BIJD.shape[:3])
    for iteration in range(num_iterations):
        coupling_BIJ = logits_BIJ.softmax(-1)
        parents_BJD = squash((coupling_BIJ[..., None] * votes_BIJD).sum(1))
        if iteration + 1 < num_iterations:
            logits_BIJ = logits_BIJ + (votes_BIJD * parents_BJD[:, None]).sum(-1)
    return Capsules.from_poses(parents_BJD)
