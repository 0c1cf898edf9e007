"""What the pose of a toy's class tells of the side, the height and the light it is seen in, by linear maps."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data import ImageSet
from torchcaps.environment import environment
from torchcaps.experiments.harness import Row, Scale
from torchcaps.experiments.hinton2018 import CNN_SETTINGS, norb_run
from torchcaps.experiments.viewpoints import view_parts
from torchcaps.inspection import read_features
from torchcaps.inspection.probes import fit_map
from torchcaps.inspection.views import azimuth_of, degrees_between, view_factors
from torchcaps.models import Model
from torchcaps.predictor import load
from torchcaps.runs import CONFIG, ENVIRONMENT, RESULT, RunConfig, new_model, save_model
from torchcaps.storage import lock_folder, write_json
from torchcaps.training import Event
from torchcaps.training.engine import Trainer

GROUP = "toys from new sides"
VIEWS: Mapping[str, slice] = {"azimuth": slice(0, 2), "elevation": slice(2, 3), "light": slice(3, None)}
SIDES = ("known", "between", "new")
NUM_ENTRIES = 16  # of a pose; of features as many principal directions within each class
EPOCHS: Mapping[Scale, int] = {"full": 8, "quick": 1}
WRONG = "error, new sides, %"


def entries_of(model: Model) -> int | None:
    """How many principal directions are read; poses are read whole."""
    return None if model.is_routed else NUM_ENTRIES


def told(view: str, side: str) -> str:
    """The name of a share that is told."""
    return f"{view}, {side} sides, % told"


def shares_told(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """R² of each of VIEWS, of sine and cosine and of all lightings together: (n, 9) and (n, 9) -> (3,)."""
    left, all_of_it = ((found - true) ** 2).mean(0), true.var(0)
    return np.array([1 - left[part].sum() / all_of_it[part].sum() for part in VIEWS.values()])


def tell_views(folder: Path) -> dict[str, float]:
    """How well maps fitted to pictures of the test toys tell the views of other pictures of them, class by class.

    Known sides: fitted to half of the pictures from sides that training saw, told of the other half. New sides: the
    same maps, told of all other sides. Sides between: fitted to every second side of all, told of those between them.
    """
    model, parts = load(folder).model, view_parts("azimuth", RunConfig.read(folder))
    familiar, novel = parts.tests["familiar azimuth"], parts.tests["novel azimuth"]
    features = {part: read_features(model, images.images, images.labels) for part, images in parts.tests.items()}
    shares: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    degrees: dict[str, list[float]] = {side: [] for side in SIDES}
    for index in range(model.num_classes):
        known, new = (features[name][part.labels == index] for name, part in parts.tests.items())
        views, new_views = (view_factors(part)[part.labels == index] for part in (familiar, novel))
        is_first = np.random.default_rng(0).permutation(len(known)) % 2 == 0
        every, every_view = np.concatenate([known, new]), np.concatenate([views, new_views])
        is_second = np.round(azimuth_of(every_view) / 20) % 2 == 0
        cuts = {
            "known": (known[is_first], views[is_first], known[~is_first], views[~is_first]),
            "between": (every[is_second], every_view[is_second], every[~is_second], every_view[~is_second]),
            "new": (known[is_first], views[is_first], new, new_views),
        }
        for side, (rows, targets, others, truth) in cuts.items():
            found = fit_map(rows, targets, entries_of(model))(others)
            shares[side].append(shares_told(found, truth))
            degrees[side].append(float(degrees_between(azimuth_of(found), azimuth_of(truth)).mean()))
    figures = {
        told(view, side): 100 * float(value)
        for side, values in shares.items()
        for view, value in zip(VIEWS, np.mean(values, axis=0), strict=True)
    }
    figures |= {f"azimuth, {side} sides, degrees off": float(np.mean(values)) for side, values in degrees.items()}
    answers = load(folder).predict(novel.images)
    return figures | {WRONG: 100 * float((answers != novel.labels).mean())}


def train_views(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None) -> None:
    """Train on toys from known sides; the last weights are kept."""
    with lock_folder(folder):
        parts = view_parts("azimuth", config)
        torch.manual_seed(config.training.seed)
        model = new_model(replace(config, validation_instances=0), parts.data)
        write_json(folder / CONFIG, asdict(config))
        write_json(folder / ENVIRONMENT, environment())
        assert isinstance(parts.data.train, ImageSet)
        progress = Trainer(model, parts.data.train, None, config.training, folder=folder, on_event=on_event).run()
        save_model(model, folder)
        size = sum(parameter.numel() for parameter in model.parameters())
        write_json(folder / RESULT, {"seconds": round(progress.seconds, 1), "parameters": size})


def rows(scale: Scale, data: str) -> list[Row]:
    """Matrix capsules, the same network without routing, and a CNN."""
    size = {"num_test": 3000} if scale == "full" else {"num_test": 200, "num_train": 400}
    networks: list[tuple[str, str, dict[str, Any]]] = [
        ("toys: matrix capsules, EM with t = 3", "matrix-capsnet-small", {"routing_options": {"num_iterations": 3}}),
        ("toys: matrix capsules, EM with t = 1", "matrix-capsnet-small", {"routing_options": {"num_iterations": 1}}),
        ("toys: no routing", "matrix-no-routing", {"training": CNN_SETTINGS}),
        ("toys: CNN, small", "cnn-small", {"training": CNN_SETTINGS}),
    ]
    return [
        Row(
            name=name,
            config=norb_run(scale, data, model, epochs=EPOCHS[scale], run=size, **options),
            group=GROUP,
            measure=tell_views,
            run=train_views,
        )
        for name, model, options in networks
    ]
