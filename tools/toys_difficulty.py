"""How hard the toys are for a linear classifier: `python tools/toys_difficulty.py FOLDER > linear.json`.

Logistic regression on the pixels of both cameras, means of 2 x 2 blocks, trained on the training instances and tested
on the others. FOLDER is what `torchcaps data fetch toys --out FOLDER` made.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from torchcaps.data import load_data
from torchcaps.environment import environment

PENALTIES = (0.001, 0.01, 0.1, 1.0)  # inverse strengths; the best on the test toys is reported, in favour of the rival


def features(images: np.ndarray) -> np.ndarray:
    """uint8 (n, 48, 48, 2) to standardised float32 (n, 1152)."""
    blocks = images.reshape(len(images), 24, 2, 24, 2, 2).mean((2, 4), dtype=np.float32).reshape(len(images), -1)
    blocks -= blocks.mean(1, keepdims=True)
    return blocks / blocks.std(1, keepdims=True)


def main() -> None:
    data = load_data(Path(sys.argv[1]))
    assert data.test is not None
    train, test, started = features(data.train.images), features(data.test.images), time.process_time()
    rows = []
    for penalty in PENALTIES:
        model = LogisticRegression(C=penalty, max_iter=100).fit(train, data.train.labels)
        scores = [float(model.score(train, data.train.labels)), float(model.score(test, data.test.labels))]
        rows.append({"C": penalty, "training accuracy": scores[0], "test accuracy": scores[1]})
    best = max(row["test accuracy"] for row in rows)
    result = {"best test accuracy": best, "rows": rows, "num_train": len(train), "num_test": len(test)}
    result |= {"seconds": round(time.process_time() - started), "environment": environment()}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
