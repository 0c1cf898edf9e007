"""Capsule networks for texts (Zhao et al. 2018): Capsule-A and Capsule-B, with any routing."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, length
from torchcaps.checks import check_count, check_positive
from torchcaps.models.base import ModelOutput
from torchcaps.models.registry import register_model
from torchcaps.models.text_base import TextModel
from torchcaps.nn import ClassCaps, ConvCaps1d, NgramCaps, Routing, create_routing
from torchcaps.nn.text import TextLSTM, window_mask
from torchcaps.routing import RoutingResult
from torchcaps.votes.sharing import takes_old_name

PARTIAL_SHARE = 0.5
# The pose of a class is this times the mean of the votes for it. A sum over the hundreds of windows of a text leaves
# every class fully active from the start and moves by its whole length in one step of the optimiser (tried: it learns
# nothing).
EVIDENCE = 20.0
# Vectors of an encoder are long: with 20 all classes are fully active after some steps, and nothing more is learned.
EVIDENCE_OF_TOKENS = 2.0
# Capsules learn at a multiple of the learning rate: their lengths are squashed and their votes averaged, so that little
# of a gradient arrives. (Tried on TREC: six epochs at 0.002 give 70 % on validation, at 0.008 79 %.)
RATE = 3.0
PAPER_SIZES: dict[str, Any] = {"channels": 32, "types": (32, 16), "pose_size": 16, "window": 3}


class TextBranch(nn.Module):
    """Capsules of n-grams, of windows of n-grams, and of classes.

    A window of K2 n-grams of K1 words covers K1 + K2 - 1 words and takes part iff they all belong to the text.

    Args:
        ngrams: from words to the first capsules.
        windows: routes the n-grams of a window, window by window; None leaves that out.
        classes: routes the capsules of all windows to the classes.
        evidence: the pose of a class is this times the mean of the votes for it.
    """

    def __init__(
        self, ngrams: NgramCaps, windows: ConvCaps1d | None, classes: ClassCaps, evidence: float = EVIDENCE
    ) -> None:
        super().__init__()
        self.strength = evidence
        self.ngrams, self.windows, self.classes = ngrams, windows, classes

    @property
    def num_words(self) -> int:
        """Words that a window covers."""
        return self.ngrams.ngram_size + (0 if self.windows is None else self.windows.kernel_size[0] - 1)

    def route(self, words_BTE: Tensor, lengths_B: Tensor, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        """How n-grams were routed to windows, and these to classes.

        Shapes:
            words: (B, T, E); lengths: (B,); results: windows (B, T - K1 - K2 + 2, D, d), classes (B, J, d)
        """
        capsules, results = self.ngrams(words_BTE), {}
        if self.windows is not None:
            mask = self.ngram_mask(lengths_B, capsules.poses)
            results["windows"] = self.windows.route(capsules, mask=mask, return_trace=return_trace)
            capsules = results["windows"].capsules
        evidence, mask = self.evidence(capsules, lengths_B)
        return results | {"classes": self.classes.route(evidence, mask=mask, return_trace=return_trace)}

    def ngram_mask(self, lengths_B: Tensor, ngrams: Tensor) -> Tensor:
        """Which n-grams lie within their text: (B, positions)."""
        return window_mask(lengths_B.clamp_min(self.num_words), ngrams.shape[1], self.ngrams.ngram_size)

    def evidence(self, windows: Capsules, lengths_B: Tensor) -> tuple[Capsules, Tensor]:
        """The windows as classes see them, scaled so that sums of votes are means, and which lie within their text."""
        mask_BT = window_mask(lengths_B.clamp_min(self.num_words), windows.poses.shape[1], self.num_words)
        if self.classes.routing.parents_are_means:
            return windows, mask_BT
        num_capsules_B = mask_BT.sum(1) * windows.poses.shape[2]
        scale_B111 = (self.strength / num_capsules_B)[:, None, None, None].to(windows.poses.dtype)
        return Capsules(windows.poses * scale_B111, windows.activations), mask_BT


class TextCapsules(TextModel):
    """One branch of capsules per n-gram size; the poses of the classes are averaged over the branches.

    The paper has B = 32 features, (C, D) = (32, 16) types, d = 16 and windows of K2 = 3 (`PAPER_SIZES`). More features,
    fewer and smaller capsules and windows of one n-gram were better on the validation parts of TREC and MR, and faster.

    Args:
        word_dropout, **text_options: see TextModel.
        context: features of an LSTM, in each direction, that every word is given beside its vector; 0 for none. The
            words that reasons then name are the places where it says something, which may be what it read elsewhere.
        ngram_sizes: K1 of each branch.
        channels: B, features of an n-gram.
        types: (C, D), capsule types of n-grams and of windows.
        pose_size: d.
        window: K2, n-grams of a window; 0: n-grams vote for the classes themselves.
        evidence: the pose of a class is this times the mean of the votes for it.
        sharing: "full" (one transformation per place in the window and type) or "shared" (one per parent type).
        routing, routing_options: of windows and classes.
        noise_class: one more class, outside loss and answer, that may catch words which say nothing.
        leaky: an extra parent with logit 0 joins every softmax and its share is dropped.
        partial: partial normalisation: in training only a random half of the window types takes part in a softmax.
        amend: multiply couplings by the activation of the child.
    """

    @takes_old_name
    def __init__(
        self,
        *,
        word_dropout: float = 0.2,
        context: int = 0,
        ngram_sizes: tuple[int, ...],
        channels: int = 128,
        types: tuple[int, int] = (16, 8),
        pose_size: int = 8,
        window: int = 1,
        evidence: float = EVIDENCE,
        sharing: str = "full",
        routing: str = "dynamic",
        routing_options: dict[str, Any] | None = None,
        noise_class: bool = False,
        leaky: bool = False,
        partial: bool = False,
        amend: bool = False,
        **text_options: Any,
    ) -> None:
        super().__init__(
            word_dropout=word_dropout,
            context=context,
            ngram_sizes=list(ngram_sizes),
            channels=channels,
            types=list(types),
            pose_size=pose_size,
            window=window,
            evidence=check_positive("evidence", evidence),
            sharing=sharing,
            routing=routing,
            routing_options=routing_options,
            noise_class=noise_class,
            leaky=leaky,
            partial=partial,
            amend=amend,
            **text_options,
        )
        if not ngram_sizes:
            raise ValueError("ngram_sizes must name at least one size, such as (3,)")
        switches = {name: True for name, is_on in (("leaky", leaky), ("amend", amend)) if is_on}
        options = (routing_options or {}) | switches
        window_options = options | ({"partial": PARTIAL_SHARE} if partial else {})
        ngram_types, window_types = types
        has_windows = check_count("window", window, least=0) > 0
        class_children = window_types if has_windows else ngram_types
        self.context = TextLSTM(self.word_size, context) if check_count("context", context, least=0) else None
        branches = [
            TextBranch(
                NgramCaps(
                    self.word_size + 2 * context, channels, ngram_types, pose_size, check_count("n-gram size", size)
                ),
                ConvCaps1d(
                    ngram_types,
                    window_types,
                    pose_size,
                    pose_size,
                    window,
                    sharing=sharing,
                    weight_std=0.3,
                    routing=create_routing(routing, **window_options),
                )
                if has_windows
                else None,
                ClassCaps(
                    class_children,
                    self.num_classes + noise_class,
                    pose_size,
                    pose_size,
                    sharing=sharing,
                    coordinates=False,
                    routing=create_routing(routing, **options),
                ),
                evidence,
            )
            for size in ngram_sizes
        ]
        self.branches = nn.ModuleList(branches)
        self.learning_rates |= {f"branches.{name}": RATE for name, _ in self.branches.named_parameters()}
        self.default_loss = "margin" if self.multi_label else "cross_entropy"
        self.least_length = max(branch.num_words for branch in branches)

    def embed(self, tokens: Tensor, classes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Vectors of the words, with what their context says where that is asked for, and the length of each text."""
        words, lengths = super().embed(tokens, classes)
        if self.context is not None:
            words = torch.cat([words, self.context(words, lengths).to(words.dtype)], -1)
        return words, lengths

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        return self.conclude(self.route_words(*self.embed(tokens, classes)))

    def route(self, tokens: Tensor, /, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        return self.route_words(*self.embed(tokens), return_trace=return_trace)

    def route_words(self, words: Tensor, lengths: Tensor, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        """How the layers of all branches route texts that `embed` has read."""
        return {
            f"branches.{number}.{name}": result
            for number, branch in enumerate(self.text_branches)
            for name, result in branch.route(words, lengths, return_trace=return_trace).items()
        }

    @property
    def text_branches(self) -> list[TextBranch]:
        """One for each size of n-grams."""
        return [branch for branch in self.branches if isinstance(branch, TextBranch)]

    @property
    def class_routing(self) -> Routing:
        """That of the classes, of the same kind in all branches."""
        return self.text_branches[0].classes.routing

    def conclude(self, results: Mapping[str, RoutingResult], classes: Tensor | None = None) -> ModelOutput:
        """The means of the classes of all branches, without the noise class."""
        found = [results[f"branches.{number}.classes"].capsules for number in range(len(self.branches))]
        if len(found) == 1:
            poses, activations = found[0]
        else:
            poses, activations = (torch.stack(parts).mean(0) for parts in zip(*found, strict=True))
            if self.class_routing.activations_are_lengths:
                activations = length(poses)
        return ModelOutput(activations[:, : self.num_classes], poses[:, : self.num_classes])


@register_model("text-capsule-a")
class TextCapsuleA(TextCapsules):
    """Capsule-A of Zhao et al. (2018): one size of n-grams.

    Example:
        >>> model = TextCapsuleA(num_tokens=50, num_classes=2)
        >>> model(torch.randint(1, 50, (4, 9))).scores.shape
        torch.Size([4, 2])
    """

    @takes_old_name
    def __init__(self, *, ngram_sizes: tuple[int, ...] = (3,), **options: Any) -> None:
        super().__init__(ngram_sizes=ngram_sizes, **options)


@register_model("text-capsule-b")
class TextCapsuleB(TextCapsules):
    """Capsule-B of Zhao et al. (2018): n-grams of 3, 4 and 5 words, class poses averaged."""

    @takes_old_name
    def __init__(self, *, ngram_sizes: tuple[int, ...] = (3, 4, 5), **options: Any) -> None:
        super().__init__(ngram_sizes=ngram_sizes, **options)


@register_model("text-capsules")
class TokenCapsules(TextCapsules):
    """Capsules of single tokens that vote for the classes with shared transformations; made for pretrained encoders.

    Example:
        >>> model = TokenCapsules(num_tokens=50, num_classes=2)
        >>> model(torch.randint(1, 50, (4, 9))).scores.shape
        torch.Size([4, 2])
    """

    @takes_old_name
    def __init__(
        self,
        *,
        ngram_sizes: tuple[int, ...] = (1,),
        types: tuple[int, int] = (8, 8),
        pose_size: int = 16,
        window: int = 0,
        evidence: float = EVIDENCE_OF_TOKENS,
        sharing: str = "shared",
        **options: Any,
    ) -> None:
        super().__init__(
            ngram_sizes=ngram_sizes,
            types=types,
            pose_size=pose_size,
            window=window,
            evidence=evidence,
            sharing=sharing,
            **options,
        )
