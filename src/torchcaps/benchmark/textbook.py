"""Dynamic routing as tutorials write it: votes times couplings, summed."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, squash


def textbook_routing(poses_BIK: Tensor, weight_IJKD: Tensor, num_iterations: int) -> Capsules:
    """The parents of the reference, which contracts couplings and votes instead of summing their products."""
    votes_BIJD = torch.einsum("bik,ijkd->bijd", poses_BIK, weight_IJKD)
    logits_BIJ = votes_BIJD.new_zeros(votes_BIJD.shape[:3])
    for iteration in range(num_iterations):
        coupling_BIJ = logits_BIJ.softmax(-1)
        parents_BJD = squash((coupling_BIJ[..., None] * votes_BIJD).sum(1))
        if iteration + 1 < num_iterations:
            logits_BIJ = logits_BIJ + (votes_BIJD * parents_BJD[:, None]).sum(-1)
    return Capsules.from_poses(parents_BJD)
