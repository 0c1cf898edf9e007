r"""Losses on the activations of class capsules, and on reconstructions; each a function and a module.

Every loss is a sum over the classes (or pixels) of one example; ``reduction`` then takes the mean over the
batch ("mean"), the sum ("sum"), or neither ("none", shape (B,)). Activations have shape (B, J); for vector
capsules they are the lengths. Only shapes and dtypes are checked, never values, so that every loss compiles
into one graph.
"""

from torchcaps.losses.functions import (
    activation_cross_entropy,
    combined_loss,
    margin_loss,
    reconstruction_loss,
    softmax_cross_entropy,
    spread_loss,
)
from torchcaps.losses.modules import (
    ActivationCrossEntropy,
    CombinedLoss,
    MarginLoss,
    ReconstructionLoss,
    SoftmaxCrossEntropy,
    SpreadLoss,
)
from torchcaps.losses.sampled import sampled_logits

__all__ = [
    "ActivationCrossEntropy",
    "CombinedLoss",
    "MarginLoss",
    "ReconstructionLoss",
    "SoftmaxCrossEntropy",
    "SpreadLoss",
    "activation_cross_entropy",
    "combined_loss",
    "margin_loss",
    "reconstruction_loss",
    "sampled_logits",
    "softmax_cross_entropy",
    "spread_loss",
]
