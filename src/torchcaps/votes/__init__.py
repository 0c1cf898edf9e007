r"""Votes, described and not yet formed.

A child i with pose u_i votes for the pose of every parent j it reaches: :math:`\hat u_{ij} = W_{ij} u_i`, or
:math:`V_{ij} = M_i W_{ij}` for matrix poses. A description holds the poses and the weights; `materialise()` forms
the votes (the reference backend does), kernels work from the description and never form them.

A pose is `rows` row vectors: one for a vector pose, P for a P x P matrix pose. That makes the two the same
computation, `pose_rows @ W`. Slot n of a window uses transformation n modulo the number of transformations, which
covers full weights (one per slot), weights shared over positions (one per type) and weights shared by all (one).
"""

from torchcaps.votes.description import TensorVotes, Votes, as_votes
from torchcaps.votes.layers import POSES, ClassVotes, ConvVotes, DenseVotes, Weight
from torchcaps.votes.linear import LinearVotes
from torchcaps.votes.sharing import SHARINGS

__all__ = [
    "POSES",
    "SHARINGS",
    "ClassVotes",
    "ConvVotes",
    "DenseVotes",
    "LinearVotes",
    "TensorVotes",
    "Votes",
    "Weight",
    "as_votes",
]
