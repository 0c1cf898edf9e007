"""Train every model with hostile settings: each run must stay finite, or end with a diagnosis that names the layer.

    python tools/hostile_training.py --out results/reliability/hostile.json

Small data, few steps. Every model goes through all settings; models that route go through some of them with every
routing. A run is "finite" if all losses, weights and statistics and the probabilities it answers with are; "diagnosed"
if it ended with `Diverged` and the name of a layer; "refused" if inputs that are no pictures were, with a ValueError.
All else is a bug.
"""

import argparse
import json
import math
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data.text import TextOptions
from torchcaps.environment import environment
from torchcaps.inputs.texts import TextNotice
from torchcaps.models import Model, create_model, list_models
from torchcaps.predictor import Predictor
from torchcaps.routing import routing_names
from torchcaps.storage import write_json
from torchcaps.training import Diverged, TrainingConfig, fit
from torchcaps.training.text import new_text_model

NUM_EXAMPLES, NUM_CLASSES, IMAGE_SIZE = 12, 3, 19
RATE = TrainingConfig().learning_rate
CLASSIFIERS = [*list_models("image"), *list_models("text")]
SIZES: dict[str, dict[str, Any]] = {
    "matrix-capsnet": {"channels": 8, "types": (4, 4, 4)},
    "matrix-capsnet-small": {"channels": 8, "types": (2, 4, 4)},
    "matrix-no-routing": {"channels": 8, "types": 4},
}
WORDS = ("good", "bad", "dull", "bright", "film", "plot", "the", "a", "of", "never")


@dataclass(frozen=True)
class Setting:
    """What is hostile: the data (see `examples`), how they are learned, or the vector that a word starts from."""

    data: str = "ordinary"
    training: dict[str, Any] = field(default_factory=dict)
    vectors: float | None = None
    multi_label: bool = False


SETTINGS = {
    "learning rate x 10": Setting(training={"learning_rate": 10 * RATE}),
    "learning rate x 1000": Setting(training={"learning_rate": 1000 * RATE}),
    "learning rate x 1000, no clipping": Setting(training={"learning_rate": 1000 * RATE, "clip_norm": None}),
    "SGD, learning rate 1e6, no clipping": Setting(
        training={"learning_rate": 1e6, "optimizer": "sgd", "clip_norm": None}
    ),
    "inputs without variance": Setting("constant"),
    "inputs without variance, learning rate x 1000": Setting("constant", {"learning_rate": 1000 * RATE}),
    "constant labels": Setting("one class"),
    "a class is missing, balanced weights": Setting("a class missing", {"class_weights": "balanced"}),
    "class weights 0 and 1e6": Setting(training={"class_weights": (0.0, 1.0, 1e6)}),
    "bf16": Setting(training={"precision": "bf16"}),
    "bf16, learning rate x 1000": Setting(training={"precision": "bf16", "learning_rate": 1000 * RATE}),
    "batch size 1": Setting(training={"batch_size": 1, "epochs": 1}),
    "one example": Setting("one example"),
    "extreme inputs": Setting("extreme"),
    "several labels or none": Setting("nothing true", multi_label=True),
    "NaN in the inputs": Setting("NaN", vectors=math.nan),
    "inputs of 1e30": Setting("huge", vectors=1e30),
}
ROUTED = ("inputs without variance", "learning rate x 1000")
SHARP = Setting(training={"inverse_temperature": (1.0, 1e6), "learning_rate": 10 * RATE})


Examples = list[tuple[Any, Any]]


def examples(kind: str, data: str) -> Examples:
    """Twelve images or texts of three classes and their labels, or what a user may have instead."""
    draws = np.random.default_rng(0)
    labels: list[Any] = [index % NUM_CLASSES for index in range(NUM_EXAMPLES)]
    if data == "one class":
        labels = [0] * NUM_EXAMPLES
    elif data == "a class missing":
        labels = [index % (NUM_CLASSES - 1) for index in range(NUM_EXAMPLES)]
    elif data == "nothing true":
        labels = [np.zeros(NUM_CLASSES, bool)] * NUM_EXAMPLES
    inputs = texts(data, labels, draws) if kind == "text" else images(data, labels, draws)
    pairs = list(zip(inputs, labels, strict=True))
    return pairs[:1] if data == "one example" else pairs


def images(data: str, labels: list[Any], draws: np.random.Generator) -> list[np.ndarray]:
    """Noise that is brighter in one third of the picture."""
    shape = (IMAGE_SIZE, IMAGE_SIZE)
    if data == "constant":
        return [np.full(shape, 77, np.uint8) for _ in labels]
    if data == "extreme":
        return [np.full(shape, 255 * (index % 2), np.uint8) for index in range(len(labels))]
    made = []
    for index in range(len(labels)):
        image = draws.integers(0, 120, shape).astype(np.uint8)
        image[:, 6 * (index % NUM_CLASSES) : 6 * (index % NUM_CLASSES) + 6] += 130
        made.append(image)
    if data in ("NaN", "huge"):
        made = [(image / 255).astype(np.float32) for image in made]
        made[5][3, 3] = math.nan if data == "NaN" else 1e30
    return made


def texts(data: str, labels: list[Any], draws: np.random.Generator) -> list[str]:
    """Words, of which one tells the class."""
    if data == "constant":
        return ["film film film"] * len(labels)
    if data == "extreme":
        return ["" if index % 2 else "film " * 3000 for index in range(len(labels))]
    return [
        " ".join([WORDS[index % NUM_CLASSES], *draws.choice(WORDS[NUM_CLASSES:], 6)]) for index in range(len(labels))
    ]


def new_model(name: str, setting: Setting, pairs: Examples, routing: str | None) -> Model:
    """The model at its smallest."""
    options = SIZES.get(name, {}) | ({} if routing is None else {"routing": routing})
    torch.manual_seed(0)
    if name in list_models("image"):
        return create_model(
            name,
            image_shape=(1, IMAGE_SIZE, IMAGE_SIZE),
            num_classes=NUM_CLASSES,
            multi_label=setting.multi_label,
            **options,
        )
    model = new_text_model(
        name,
        [text for text, _ in pairs],
        class_names=tuple(map(str, range(NUM_CLASSES))),
        multi_label=setting.multi_label,
        options=TextOptions(tokeniser="words"),
        **options,
    )
    if setting.vectors is not None:
        last = model.embedding.num_embeddings - 1
        model.set_vectors(torch.tensor([last]), torch.full((1, model.embedding.embedding_dim), setting.vectors))
    return model


def train(name: str, setting: Setting, routing: str | None = None) -> tuple[str, str]:
    """How a run ends, and what it says."""
    kind = kind_of(name)
    pairs = examples(kind, setting.data)
    losses: list[float] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", TextNotice)
            model = new_model(name, setting, pairs, routing)
            options = {"epochs": 2, "batch_size": 4} | setting.training
            if setting.multi_label and model.default_loss == "spread":
                options["loss"] = "margin"
            config = TrainingConfig(**options)
            fit(model, pairs, pairs, config, on_event=lambda event: losses.append(event.loss))
            inputs = [given for given, _ in pairs]
            probabilities = Predictor(model).predict_proba(inputs if kind == "text" else np.stack(inputs))
    except Diverged as error:
        is_named = any(part and part in str(error) for part, _ in model.named_modules())
        return ("diagnosed" if is_named else "BUG: names no layer"), str(error)
    except ValueError as error:
        return ("refused" if setting.vectors is not None else "BUG: refused"), str(error)
    except Exception:
        return "BUG: another error", traceback.format_exc()
    broken = [name for name, tensor in model.state_dict().items() if not bool(torch.isfinite(tensor).all())]
    if broken or not np.isfinite(losses).all():
        return "BUG: not finite", f"{broken} {losses}"
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and (probabilities <= 1 + 1e-6).all()):
        return "BUG: no probabilities", str(probabilities)
    return "finite", f"loss {losses[0]:.3g} to {losses[-1]:.3g}"


def cases(names: list[str]) -> list[tuple[str, str | None, str, Setting]]:
    """(model, routing, name of the setting, setting)."""
    found = []
    for name in names:
        found += [(name, None, title, setting) for title, setting in SETTINGS.items()]
        if takes_routing(name):
            found += [(name, routing, title, SETTINGS[title]) for routing in routing_names() for title in ROUTED]
            found.append((name, "kmeans", "inverse temperature to 1e6", SHARP))
    return found


def takes_routing(name: str) -> bool:
    """Whether a model routes."""
    return "routing" in new_model(name, Setting(), examples(kind_of(name), "ordinary"), None).options


def kind_of(name: str) -> str:
    """What a model takes."""
    return "text" if name in list_models("text") else "image"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=CLASSIFIERS, choices=CLASSIFIERS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name, routing, title, setting in cases(arguments.models):
        started = time.monotonic()
        outcome, message = train(name, setting, routing)
        rows.append({"model": name, "routing": routing, "setting": title, "outcome": outcome, "message": message})
        print(f"{name:22s} {routing or '':8s} {title:48s} {time.monotonic() - started:5.1f} s  {outcome}", flush=True)
        if "BUG" in outcome:
            print(message, flush=True)
    if arguments.out and arguments.out.exists():  # what other models did there is kept
        others = json.loads(arguments.out.read_text())["rows"]
        rows = sorted(rows + [row for row in others if row["model"] not in arguments.models], key=itemgetter("model"))
    counts = Counter(row["outcome"] for row in rows)
    print(dict(counts))
    if arguments.out:
        result = {
            "environment": environment(),
            "seed": 0,
            "num_runs": len(rows),
            "outcomes": dict(counts),
            "rows": rows,
        }
        write_json(arguments.out, result)
    if any("BUG" in outcome for outcome in counts):
        sys.exit("there are bugs")


if __name__ == "__main__":
    main()
