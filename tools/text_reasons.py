"""Do the reasons of a text model matter? Deletion of words from test texts.

python tools/text_reasons.py RUN_OR_MODEL results/text-reasons/NAME.json [--data SET]

Of every test text of at least five words the fifth of the words that say most for the class is taken out (at least one
word), and ten times as many words at random. Counted is how often the activation of the class falls by more than it
does in the mean over the ten draws.
"""

import json
from pathlib import Path

import numpy as np
import torch
import tyro

from torchcaps.data import load_data
from torchcaps.environment import environment
from torchcaps.inputs.texts import pad
from torchcaps.inspection import WordRouting
from torchcaps.models.text import TextCapsules
from torchcaps.predictor import load
from torchcaps.runs import RunConfig, load_run_data
from torchcaps.storage import write_json

LEAST_WORDS, SHARE, NUM_DRAWS = 5, 0.2, 10


def without(row: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """The tokens that are left."""
    return np.delete(row, removed)


def falls(model: TextCapsules, row: np.ndarray, draws: np.random.Generator) -> tuple[float, float]:
    """By how much the class's activation falls without its best words, and without random ones in the mean."""
    num_removed = max(1, round(SHARE * len(row)))
    whole = pad([row])
    routed = WordRouting(model, whole)
    before = routed.output.scores[0]
    chosen = int(before.argmax())
    values = routed.values([chosen])[0].numpy()
    best = np.argsort(-values, kind="stable")[:num_removed]
    random = [draws.choice(len(row), num_removed, replace=False) for _ in range(NUM_DRAWS)]
    rows = pad([without(row, removed) for removed in (best, *random)])
    with torch.inference_mode():
        after = model(rows).scores[:, chosen]
    fall = (before[chosen] - after).tolist()
    return fall[0], float(np.mean(fall[1:]))


def main(
    model: tyro.conf.Positional[str], out: tyro.conf.Positional[Path], /, *, data: str | None = None, most: int = 2000
) -> None:
    """Check the reasons of a run's model, or of a shipped one on `data`, on at most `most` test texts."""
    network = load(model).model
    if not isinstance(network, TextCapsules):
        raise SystemExit(f"{model} has no text capsules")
    found = load_data(data).test if data else load_run_data(RunConfig.read(Path(model))).test
    assert found is not None
    rows = [row for row in network.preprocessing.encode(found.inputs) if len(row) >= LEAST_WORDS][:most]
    draws = np.random.default_rng(0)
    pairs = np.array([falls(network, row, draws) for row in rows])
    result = {
        "model": model,
        "data": data or RunConfig.read(Path(model)).data,
        "texts": len(rows),
        "share of texts where the reasons matter more than chance": float((pairs[:, 0] > pairs[:, 1]).mean()),
        "mean fall without the best fifth of the words": float(pairs[:, 0].mean()),
        "mean fall without a random fifth": float(pairs[:, 1].mean()),
        "environment": environment(),
    }
    write_json(out, result)
    print(json.dumps({key: value for key, value in result.items() if key != "environment"}, indent=2))


if __name__ == "__main__":
    tyro.cli(main)
