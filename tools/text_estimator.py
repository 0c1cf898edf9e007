"""CapsuleTextClassifier as it comes, without word vectors, beside TF-IDF and logistic regression.

TORCHCAPS_DATA=... python tools/text_estimator.py results/text-estimator [SET ...]

Each set is 3,000 to 6,000 texts, drawn with seed 0 where there are more, and cut five times into four fifths for
training and one for the test. The rival takes words and pairs of words (Chinese: one to three characters), as
scikit-learn penalises by default, and with ten times less penalty. One JSON file per set, with seconds of a processor.
Evidence of pairs, edges and wide vectors were chosen on held-out parts of the training texts of the first split of trec
and waimai; the number of steps, and characters for Chinese, on texts of mr, subj and waimai that are not drawn here and
on a held-out part of the training texts of the first split of trec (which the other splits test on, too); the rest on
other sets (CHOSEN_ON).
"""

import json
import os
import time
from pathlib import Path
from statistics import mean

import numpy as np
import tyro
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline

from torchcaps.data import load_data
from torchcaps.environment import environment
from torchcaps.estimators import CapsuleTextClassifier
from torchcaps.inputs.texts import is_chinese
from torchcaps.storage import write_json

MOST = 5000  # texts of a larger set
NUM_SPLITS = 5
CHOSEN_ON = ("movie-snippets", "chinese-reviews", "agnews")
SETS = ("trec", "subj", "waimai", "mr", "sst")
PENALTIES = (1.0, 10.0)  # inverse strengths


def texts_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All texts of a set with their labels, at most MOST."""
    data = load_data(name)
    parts = [part for part in (data.train, data.validation, data.test) if part is not None]
    texts = np.array([text for part in parts for text in part.inputs], dtype=object)
    labels = np.concatenate([part.labels for part in parts])
    if len(texts) <= 6000:
        return texts, labels
    chosen = np.random.default_rng(0).permutation(len(texts))[:MOST]
    return texts[chosen], labels[chosen]


def rival(texts: np.ndarray, penalty: float):
    """TF-IDF and logistic regression."""
    vectoriser = TfidfVectorizer(ngram_range=(1, 2))
    if is_chinese(texts[:1000]):
        vectoriser = TfidfVectorizer(analyzer="char", ngram_range=(1, 3))
    return make_pipeline(vectoriser, LogisticRegression(C=penalty, max_iter=2000))


def compare(name: str, path: Path, num_splits: int = NUM_SPLITS) -> dict:
    """Accuracies of the estimator and its rival on every split of one set; those in the file are not done again."""
    texts, labels = texts_of(name)
    splits = StratifiedShuffleSplit(num_splits, test_size=0.2, random_state=0).split(texts, labels)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    ours, seconds = known.get("capsules", {}).get("accuracies", []), known.get("capsules", {}).get("seconds", [])
    theirs = {row["C"]: row["accuracies"] for row in known.get("tf-idf", [])} or {penalty: [] for penalty in PENALTIES}
    for number, (train, test) in enumerate(splits):
        if number < len(ours):
            continue
        for penalty in PENALTIES:
            model = rival(texts, penalty).fit(texts[train], labels[train])
            theirs[penalty].append(float(model.score(texts[test], labels[test])))
        started = time.process_time()
        classifier = CapsuleTextClassifier(random_state=number).fit(texts[train], labels[train])
        seconds.append(round(time.process_time() - started, 1))
        ours.append(float(classifier.score(texts[test], labels[test])))
        known = {
            "set": name,
            "texts": len(texts),
            "capsules": {"accuracies": ours, "mean": mean(ours), "seconds": seconds},
            "tf-idf": [{"C": c, "accuracies": found, "mean": mean(found)} for c, found in theirs.items()],
            "points ahead": {f"C = {c:g}": 100 * (mean(ours) - mean(found)) for c, found in theirs.items()},
            "environment": environment(),
        }
        write_json(path, known)
        print(name, number, ours[-1], {c: found[-1] for c, found in theirs.items()}, seconds[-1], flush=True)
    return known


def main(out: Path, sets: tyro.conf.Positional[tuple[str, ...]] = SETS, /, *, splits: int = NUM_SPLITS) -> None:
    """Write one JSON file per set; what an interrupted run left is gone on with."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in sets:
        result = compare(name, out / f"{name}.json", splits)
        print(name, result["points ahead"])


if __name__ == "__main__":
    tyro.cli(main)
