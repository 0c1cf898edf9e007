"""What the reference and the kernels of EM routing share."""

from torch import Tensor

ACTIVATIONS = ("mdl", "mixing", "entropy")
KAPPA = {"mass": 100.0, "paper": 1.0}  # by the scale of the cost


def of_existing(values: Tensor, window_mask: Tensor | None) -> Tensor:
    """Values of parents, 0 at positions that do not exist: (B, ..., J)."""
    return values if window_mask is None else values * window_mask.unsqueeze(-1)
