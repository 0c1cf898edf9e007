r"""Why a text got its class: the part of each word in the class's pose, couplings times vote agreement.

With the couplings as they were routed a parent is a weighted sum of its votes, :math:`s_j = \sum_i c_{ij} \hat u_{ij}`,
so that the length of a class's pose is a sum over the capsules below it of coupling times agreement of vote and class,
:math:`c_{ij} \langle \hat u_{ij}, s_j / |s_j| \rangle`. The same holds one layer further down, and an n-gram's
features are a sum over its words. Carried down to the words, with couplings, directions, the shrinking of lengths by
squash and the gates of ReLU as they were, the class's length is one number per word plus what the biases say.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, length, normalise
from torchcaps.checks import check_choice
from torchcaps.inspection.routes import evaluating
from torchcaps.models import Model
from torchcaps.models.text import TextBranch, TextCapsules
from torchcaps.nn import CapsuleLayer, NgramCaps
from torchcaps.routing import RoutingResult


class Reason(NamedTuple):
    """A word and what it says for the class; what speaks against it is negative."""

    word: str
    value: float


class WordRouting:
    """Texts on their way into the classes, whose poses are here a linear function of the words; routed once.

    Args:
        model: text-capsule-a or -b, with a routing whose activations are lengths of poses.
        tokens: as the model takes them.

    Attributes:
        output: what the model says about the texts.

    Shapes:
        tokens: (B, T)

    Example:
        >>> from torchcaps.models import create_model
        >>> model = create_model("text-capsule-a", num_tokens=50, num_classes=2)
        >>> WordRouting(model, torch.randint(1, 50, (4, 9))).values([0, 1, 1, 0]).shape
        torch.Size([4, 9])
    """

    def __init__(self, model: Model, tokens: Tensor) -> None:
        if (reason := why_no_reasons(model)) is not None:
            raise ValueError(reason)
        assert isinstance(model, TextCapsules)
        with evaluating(model):
            with torch.no_grad():
                words, lengths = model.embed(tokens.to(next(model.parameters()).device))
                results = model.route_words(words, lengths)
                self.output = model.conclude(results)
            with torch.enable_grad():
                self._words = words.detach().requires_grad_()
                poses = [
                    linear_classes(branch, self._words, lengths, results, f"branches.{number}")
                    for number, branch in enumerate(model.text_branches)
                ]
                self._poses_BJD = torch.stack(poses).mean(0)
        self._shown = slice(model.edges, model.edges + tokens.shape[1])

    def values(self, classes: Sequence[int] | Tensor) -> Tensor:
        """The part of each word in the length of the pose of a class, one class for each text.

        Shapes:
            classes: (B,) -> (B, T)
        """
        poses_BJD = self._poses_BJD
        with torch.enable_grad():
            examples = torch.arange(len(poses_BJD), device=poses_BJD.device)
            chosen = poses_BJD[examples, torch.as_tensor(classes, device=poses_BJD.device)]
            total = (chosen * normalise(chosen.detach())).sum()
            (gradient,) = torch.autograd.grad(total, self._words, retain_graph=True)
        return (gradient * self._words.detach()).sum(-1)[:, self._shown]


def why_no_reasons(model: Model) -> str | None:
    """Why the words of a text cannot tell what they say for a class; None if they can."""
    if not isinstance(model, TextCapsules):
        return f"{model.name} has no capsules whose routing could tell reasons; use text-capsule-a or -b"
    if not model.class_routing.activations_are_lengths:
        return "reasons are shares of the length of a class's pose, which says nothing with this routing (EM)"
    return None


def word_reasons(model: Model, texts: Sequence[str], classes: Sequence[int | str] | None = None) -> list[list[Reason]]:
    """What each word of each text says for a class: the one with the given number or name, or the most active.

    The values of a text are shares of the length of the class's pose: with those of the biases, and with context those
    of the empty words at its edges, they add up to it.
    """
    answers = []
    for index, text in enumerate(texts):
        routed = WordRouting(model, model.preprocessing([text]))
        chosen = int(routed.output.scores.argmax()) if classes is None else classes[index]
        if isinstance(chosen, str):
            chosen = model.labels.index(check_choice("a class", chosen, model.labels))
        answers.append(named(model, text, routed.values([chosen])[0]))
    return answers


def named(model: Model, text: str, values: Tensor) -> list[Reason]:
    """The words of a text with their values (T,)."""
    return [Reason(word, value) for word, value in model.preprocessing.by_word(text, values.tolist())]


def linear_classes(
    branch: TextBranch, words: Tensor, lengths: Tensor, results: Mapping[str, RoutingResult], prefix: str
) -> Tensor:
    """Poses of the classes of a branch, as a linear function of the words about them: (B, J, d)."""
    linear, classes = linear_ngrams(branch.ngrams, words), results[f"{prefix}.classes"]
    activations = length(linear.detach())
    if branch.windows is not None:
        windows = results[f"{prefix}.windows"]
        linear = linear_parents(branch.windows, linear, windows, branch.ngram_mask(lengths, linear))
        activations = windows.capsules.activations
    children, mask = branch.evidence(Capsules(linear, activations), lengths)
    return linear_parents(branch.classes, children.poses, classes, mask)


def linear_ngrams(layer: NgramCaps, words: Tensor) -> Tensor:
    """The poses of an n-gram layer with its gates and the shrinking of its squash held fixed."""
    before = layer.conv(words.transpose(1, 2))
    features = (before * (before.detach() > 0)).transpose(1, 2)
    poses = layer.to_poses(features).unflatten(-1, (layer.out_types, layer.out_size))
    norm = length(poses.detach(), keepdim=True)
    return poses * (norm / (layer.squash_k + norm * norm))


def linear_parents(layer: CapsuleLayer, poses: Tensor, result: RoutingResult, mask: Tensor) -> Tensor:
    """The parents of a layer with its couplings and the shrinking of its outputs held fixed."""
    assert result.children is not None
    votes = layer.votes(Capsules(poses, result.children.activations), mask=mask)
    sums = (result.coupling.unsqueeze(-1) * votes.materialise()).sum(-3)
    before, after = length(sums.detach(), keepdim=True), length(result.capsules.poses, keepdim=True)
    return sums * torch.where(before > 0, after / before.clamp_min(1e-30), 0.0)
