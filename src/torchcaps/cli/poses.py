"""`torchcaps show RUN poses`: what the poses of a test set know."""

from typing import TYPE_CHECKING

import numpy as np

from torchcaps.inspection import pose_space, probe_poses, read_features, sweeps
from torchcaps.inspection.probes import seen_properties
from torchcaps.models.saving import SHIPPED, read_config
from torchcaps.predictor import load
from torchcaps.viz.poses import direction_page, probe_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchcaps.data import LabelledSet
    from torchcaps.models import Model


def beside(model: "Model", name: str | None) -> "Model | None":
    """The model that was asked for, or a shipped one without capsules for the same pictures and classes."""
    if name is not None:
        return load(name).model
    for folder in sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() else ():
        config = read_config(folder)
        is_same = (tuple(config["labels"]), config["preprocessing"]) == (model.labels, model.preprocessing.to_dict())
        if is_same and str(config["model"]).startswith("cnn"):
            return load(folder).model
    return None


def told_pages(model: "Model", rival: "Model | None", part: "LabelledSet") -> "tuple[dict[str, Figure], list[str]]":
    """How well linear maps tell properties, as a page and as lines; beside the rival with as many entries."""
    if part.is_multi_label:
        raise ValueError("poses are told apart by the true class of an image; here some images have several")
    images, labels = np.asarray(part.inputs), np.asarray(part.labels)
    probes = probe_poses(model, images, labels)
    lines = [f"{model.name}, poses of {len(images):,} images, mean over classes:", *probes.lines()]
    if rival is None:
        return {"poses": probe_page(probes, name=f"{model.name}, poses")}, lines
    others = probe_poses(rival, images, labels, num_entries=probes.num_entries)
    lines += [f"{rival.name}, principal directions of its features:", *others.lines()]
    page = probe_page(probes, others, name=f"{model.name}, poses", rival_name=f"{rival.name}, principal directions")
    return {"poses": page}, lines


def direction_pages(model: "Model", part: "LabelledSet", number: int) -> "dict[str, Figure]":
    """What moves when the pose of the image with this number does; nothing where there is no decoder."""
    if getattr(model, "decoder", None) is None:
        return {}
    labels = np.asarray(part.labels)
    is_member = labels == labels[number]
    images = np.asarray(part.inputs)[is_member]
    poses = read_features(model, images, labels[is_member])
    space = pose_space(model, int(labels[number]), poses, seen_properties(model, images))
    own = poses[int(is_member[:number].sum())]
    names = {"told": "poses-properties", "principal": "poses-directions", "entries": "poses-entries"}
    there = {kind: name for kind, name in names.items() if getattr(space, kind)}  # an untrained network tells nothing
    return {name: direction_page(sweeps(model, space, pose=own, kind=kind)) for kind, name in there.items()}
