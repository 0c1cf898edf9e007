"""Shared maps of tokens for sets of capsules: none, random, or learned without labels from the halves of training news.

TORCHCAPS_DATA=... python tools/learned_map.py results/sts/learned-map.json

Learned from 500 training news of Reuters; then the halves of 150 others are to find each other among 300, and 100 times
Spearman's correlation is taken on training pairs of STS 2012 (at most 400 of a set). No test data. Rows that are in the
file are not done again.
"""

import json
import time
from pathlib import Path
from typing import Any

import tyro
from scipy.stats import spearmanr

from torchcaps.data.text.pairs import read_pairs
from torchcaps.environment import environment
from torchcaps.experiments.sts import ENCODER, found_first, news_halves
from torchcaps.storage import write_json
from torchcaps.text import CapsuleSentenceEncoder

NUM_LEARNED, NUM_HELD, MOST_PAIRS = 500, 150, 400
PAIRS = ("2012.MSRpar", "2012.SMTeuroparl")
WAYS: dict[str, dict[str, Any]] = {
    "8 capsules, no map": {},
    "8 capsules, random map": {"shared_map": 384},
    "8 capsules, learned map": {"learn": True},
    "one capsule, no map": {"num_capsules": 1},
    "one capsule, random map": {"num_capsules": 1, "shared_map": 384},
    "one capsule, learned map": {"num_capsules": 1, "learn": True},
}


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """One way to compare texts."""
    options, started = dict(options), time.process_time()
    learns = options.pop("learn", False)
    texts = news_halves("train", NUM_LEARNED + NUM_HELD)
    first, second = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    encoder = CapsuleSentenceEncoder(ENCODER, keep=True, **options)
    losses = encoder.learn_map(first[:NUM_LEARNED], second[:NUM_LEARNED]) if learns else []
    sets = encoder.encode([*first[NUM_LEARNED:], *second[NUM_LEARNED:]])
    found = {"halves that find each other, %": 100 * found_first(encoder.compare_all(sets, sets))}
    for pairs in read_pairs("train"):
        if pairs.name in PAIRS:
            similarity = encoder.similarity(pairs.first[:MOST_PAIRS], pairs.second[:MOST_PAIRS])
            found[pairs.name] = 100 * float(spearmanr(similarity, pairs.scores[:MOST_PAIRS]).statistic)
    return {"figures": found, "losses": losses, "seconds": round(time.process_time() - started)}


def main(out: tyro.conf.Positional[Path]) -> None:
    """Write all rows into one JSON file."""
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else {}
    for name, options in WAYS.items():
        if name not in rows:
            rows[name] = measure(options)
            write_json(out, {"rows": rows, "environment": environment()})
            print(name, rows[name], flush=True)


if __name__ == "__main__":
    tyro.cli(main)
