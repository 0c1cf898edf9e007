"""What every backend makes of the weighted sums."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from torchcaps.capsules import Capsules, length, squash
from torchcaps.routing.problem import Problem


def parents(problem: Problem, sums_BJD: Tensor) -> Capsules:
    """Poses of equal length, and activations that are the lengths of the squashed sums."""
    options = problem.options
    poses_BJD = layer_norm(sums_BJD, sums_BJD.shape[-1:], eps=options.eps)
    # Scale and shift by themselves: layer_norm adds up their gradients thread by thread.
    if options.scale is not None:
        poses_BJD = poses_BJD * options.scale
    if options.shift is not None:
        poses_BJD = poses_BJD + options.shift
    if (exists := problem.votes.window_mask) is not None:  # the shift gives poses to what is not there
        poses_BJD = torch.where(exists[..., None, None], poses_BJD, torch.zeros_like(poses_BJD))
    return Capsules(poses_BJD, length(squash(sums_BJD, options.squash_k)))
