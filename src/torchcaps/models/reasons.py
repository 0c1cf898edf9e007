r"""Why a text got its class: the part of each word in the class's pose, couplings times vote agreement.

With the couplings as they were routed a parent is a weighted sum of its votes, :math:`s_j = \sum_i c_{ij} \hat u_{ij}`,
so that the length of a class's pose is a sum over the capsules below it of coupling times agreement of vote and class,
:math:`c_{ij} \langle \hat u_{ij}, s_j / |s_j| \rangle`. The same holds one layer further down, and an n-gram's
features are a sum over its words. Carried down to the words, with couplings, directions, the shrinking of lengths by
squash and the gates of ReLU as they were, the class's length is one number per word plus what the biases say.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, length, normalise
from torchcaps.checks import check_choice
from torchcaps.models.base import Model
from torchcaps.models.text import TextBranch, TextCapsules
from torchcaps.nn import CapsuleLayer, NgramCaps
from torchcaps.routing import RoutingResult


class Reason(NamedTuple):
    """A word and what it says for the class; what speaks against it is negative."""

    word: str
    value: float


def explain(model: Model, texts: Sequence[str], classes: Sequence[int | str] | None = None) -> list[list[Reason]]:
    """What each word of each text says for a class: the one with the given number or name, or the most active.

    The values of a text are shares of the length of the class's pose: with those of the biases, and with context those
    of the empty words at its edges, they add up to it.
    """
    if not isinstance(model, TextCapsules):
        raise ValueError(f"{model.name} has no capsules whose routing could tell reasons; use text-capsule-a or -b")
    if not model.class_routing.activations_are_lengths:
        raise ValueError(
            "reasons are shares of the length of a class's pose, which says nothing with this routing (EM)"
        )
    encoding, device = model.preprocessing, next(model.parameters()).device
    answers, was_training = [], model.training
    model.eval()
    for index, text in enumerate(texts):
        tokens = encoding([text]).to(device)
        with torch.no_grad():
            chosen = int(model(tokens).scores.argmax()) if classes is None else classes[index]
        if isinstance(chosen, str):
            chosen = model.labels.index(check_choice("a class", chosen, model.labels))
        words = encoding.tokens(text)
        values = word_values(model, tokens, torch.tensor([chosen], device=device))[0]
        answers.append([Reason(word, value) for word, value in zip(words, values.tolist(), strict=False)])
    model.train(was_training)
    return answers


def word_values(model: TextCapsules, tokens: Tensor, classes: Tensor) -> Tensor:
    """The part of each word in the length of the class's pose; the model is in evaluation mode.

    Shapes:
        tokens: (B, T); classes: (B,) -> (B, T)
    """
    with torch.enable_grad():
        words, lengths = model.embed(tokens)
        words = words.detach().requires_grad_()
        branches = [branch for branch in model.branches if isinstance(branch, TextBranch)]
        poses = torch.stack([linear_classes(branch, words, lengths) for branch in branches]).mean(0)
        chosen = poses[torch.arange(len(poses), device=poses.device), classes]
        total = (chosen * normalise(chosen.detach())).sum()
        (gradient,) = torch.autograd.grad(total, words)
    values = (gradient * words.detach()).sum(-1)
    return values[:, model.edges : model.edges + tokens.shape[1]]


def linear_classes(branch: TextBranch, words: Tensor, lengths: Tensor) -> Tensor:
    """Poses of the classes, as a linear function of the words about them: (B, J, d)."""
    with torch.no_grad():
        ngrams, windows, classes = branch.route(words, lengths)
    linear = linear_ngrams(branch.ngrams, words)
    linear = linear_parents(branch.windows, linear, ngrams, windows, branch.ngram_mask(lengths, linear))
    children, mask = branch.evidence(Capsules(linear, windows.capsules.activations), lengths)
    return linear_parents(branch.classes, children.poses, children, classes, mask)


def linear_ngrams(layer: NgramCaps, words: Tensor) -> Tensor:
    """The poses of an n-gram layer with its gates and the shrinking of its squash held fixed."""
    before = layer.conv(words.transpose(1, 2))
    features = (before * (before.detach() > 0)).transpose(1, 2)
    poses = layer.to_poses(features).unflatten(-1, (layer.out_types, layer.out_size))
    norm = length(poses.detach(), keepdim=True)
    return poses * (norm / (layer.squash_k + norm * norm))


def linear_parents(
    layer: CapsuleLayer, poses: Tensor, children: Capsules, result: RoutingResult, mask: Tensor
) -> Tensor:
    """The parents of a layer with its couplings and the shrinking of its outputs held fixed."""
    votes = layer.votes(Capsules(poses, children.activations.detach()), mask=mask)
    sums = (result.coupling.unsqueeze(-1) * votes.materialise()).sum(-3)
    before, after = length(sums.detach(), keepdim=True), length(result.capsules.poses, keepdim=True)
    return sums * torch.where(before > 0, after / before.clamp_min(1e-30), 0.0)
