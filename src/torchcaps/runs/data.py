"""The data of a run: what is trained on, what choices are made on, what is tested."""

from dataclasses import replace

import numpy as np

from torchcaps.data import (
    DataSet,
    ImageSet,
    LabelledSet,
    choose_some,
    load_data,
    split_validation,
    validation_by_instance,
)
from torchcaps.data.interactions import load_histories
from torchcaps.data.load import is_image_folder
from torchcaps.runs.configuration import RunConfig


def load_run_data(config: RunConfig) -> DataSet:
    """The data of a run, cut to what it uses; every seed is tested on the same examples, unless there are folds."""
    return {"classify": _labelled, "recommend": _histories}[config.task](config)


def _histories(config: RunConfig) -> DataSet:
    """What people used, and what is asked for."""
    for name in ("folds", "num_train", "num_test", "validation_instances"):
        if getattr(config, name):
            raise ValueError(f"{name} is for classes of images and texts; of interactions leave it out")
    return load_histories(config.data, config.interactions)


def _labelled(config: RunConfig) -> DataSet:
    """Images or texts with labels."""
    image_size = config.image_size if is_image_folder(config.data) else None
    data = load_data(config.data, image_size=image_size, columns=config.text.columns())
    train, test = data.train, data.test
    if config.folds and test is None:
        fold = np.random.default_rng(0).permutation(len(train)) % config.folds == config.training.seed % config.folds
        train, test = (train.subset(np.flatnonzero(part)) for part in (~fold, fold))
    if config.num_train is not None:
        train = choose_some(train, config.num_train, config.training.seed)
    if config.num_test is not None and test is not None:
        test = choose_some(test, config.num_test, 0) if config.num_test else None
    return replace(data, train=train, test=test)


def training_parts(config: RunConfig, data: DataSet) -> tuple[LabelledSet, LabelledSet | None]:
    """What is trained on, and what choices are made on: the data's own validation part, or what is held out."""
    if data.validation is not None and config.validation > 0:
        return data.train, data.validation
    return hold_out(config, data.train)


def hold_out(config: RunConfig, train: LabelledSet) -> tuple[LabelledSet, LabelledSet | None]:
    """What is trained on, and what is held out for choices."""
    if config.validation_instances:
        if not isinstance(train, ImageSet):
            raise ValueError(f"validation_instances is for images that show instances; {config.data} holds texts")
        return validation_by_instance(
            train, config.validation_instances, seed=config.training.seed, in_turn=config.validation_in_turn
        )
    if config.validation == 0:
        return train, None
    return split_validation(train, config.validation, config.training.seed)
