"""What the poses of a trained model say about the test digits: error of its drawings, what
linear maps tell, and how poses follow digits that are moved.

python tools/pose_properties.py MODEL RIVAL FILE
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

import torchcaps
from torchcaps.data import ImageSet, load_data
from torchcaps.environment import environment
from torchcaps.inspection import (
    PROPERTIES,
    Followed,
    class_means,
    class_principal_pictures,
    follow,
    picture_errors,
    probe_poses,
)
from torchcaps.models import Model
from torchcaps.storage import write_json

NUM_DIRECTIONS = 15
NUM_FOLLOWED = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("rival")
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", default="mnist")
    arguments = parser.parse_args()
    predictor, rival, data = torchcaps.load(arguments.model), torchcaps.load(arguments.rival), load_data(arguments.data)
    train, test = data.train, data.test
    drawn = [predictor.run(test.images[start : start + 500]).reconstruction for start in range(0, len(test), 500)]
    pictures, fitted = test.images / 255.0, train.images / 255.0
    known = (fitted, train.labels, pictures, test.labels)
    probes = probe_poses(predictor.model, test.images, test.labels)
    others = probe_poses(rival.model, test.images, test.labels, num_entries=probes.num_entries)
    found = {
        "model": arguments.model,
        "rival": arguments.rival,
        "data": arguments.data,
        "images": len(test),
        "error of reconstruction": float(picture_errors(torch.cat(drawn)[:, 0].double().numpy(), pictures).mean()),
        "error of class means": float(picture_errors(class_means(*known), pictures).mean()),
        f"error of {NUM_DIRECTIONS} principal directions of each class": float(
            picture_errors(class_principal_pictures(*known, num_directions=NUM_DIRECTIONS), pictures).mean()
        ),
        "properties": PROPERTIES,
        "r_squared of poses": _listed(probes.r_squared),
        "r_squared of as many principal directions of the rival": _listed(others.r_squared),
        "means over classes": {
            name: [round(found.mean(name), 4) for found in (probes, others)]
            for name in PROPERTIES
            if np.isfinite(probes.mean(name))
        },
        "followed": {name: asdict(one) for name, one in _follow(predictor.model, test, None).items()},
        "followed by the rival": {
            name: asdict(one) for name, one in _follow(rival.model, test, probes.num_entries).items()
        },
        "environment": environment(),
    }
    write_json(arguments.file, found)
    print({name: value for name, value in found.items() if name.startswith(("error", "means", "followed"))})


def _follow(model: Model, test: ImageSet, num_entries: int | None) -> dict[str, Followed]:
    some = slice(0, NUM_FOLLOWED)
    known = (test.images, test.labels)
    return follow(model, test.images[some], test.labels[some], num_entries=num_entries, fitted=known)


def _listed(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(value, 4) for value in row] for row in values.tolist()]


if __name__ == "__main__":
    main()
