"""The model of a run: untrained, with the inputs and the task that its data ask for."""

from collections.abc import Callable
from dataclasses import dataclass

from torchcaps.data import DataSet
from torchcaps.inputs.histories import HistoryEncoding
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.texts import TextEncoding
from torchcaps.models import Model, create_model
from torchcaps.runs.configuration import RunConfig
from torchcaps.training.recommend import new_recommender
from torchcaps.training.text import new_text_model

FROM_DATA = {
    "image_shape",
    "num_classes",
    "num_tokens",
    "multi_label",
    "num_features",
    "features_per_item",
    "encoder_files",
}


def new_model(config: RunConfig, data: DataSet) -> Model:
    """An untrained model for the data, with its preprocessing and labels."""
    kind = KINDS[data.train.kind]
    if taken := sorted(FROM_DATA & config.model_options.keys()):
        raise ValueError(f"{taken[0]} is no option of the model: it comes from the data")
    _check_options(config, data.train.kind)
    model = kind.build(config.model or kind.model, config, data)
    model.labels = data.class_names
    return model


def _image_model(name: str, config: RunConfig, data: DataSet) -> Model:
    train, images = data.train, data.train.inputs
    if len(data.class_names) < 2 and not train.is_multi_label:
        raise ValueError(f"{config.data} has only the class {data.class_names[0]!r}; a classifier needs at least two")
    preprocessing = Preprocessing(
        image_size=config.image_size or images.shape[1:3],
        channels=images.shape[3] if images.ndim == 4 else 1,
        scaling=config.scaling,
        crop=config.training.augmentation.crop,
    )
    model = create_model(
        name,
        image_shape=preprocessing.output_shape,
        num_classes=len(data.class_names),
        multi_label=train.is_multi_label,
        **config.model_options,
    )
    model.preprocessing = preprocessing
    return model


def _text_model(name: str, config: RunConfig, data: DataSet) -> Model:
    return new_text_model(
        config.model,
        data.train.inputs,
        class_names=data.class_names,
        multi_label=data.train.is_multi_label,
        options=config.text,
        others=[text for part in (data.validation, data.test) if part is not None for text in part.inputs],
        **config.model_options,
    )


def _recommender(name: str, config: RunConfig, data: DataSet) -> Model:
    return new_recommender(name, data.train.interactions, **config.model_options)


@dataclass(frozen=True)
class Kind:
    """What a run does for one kind of data.

    Attributes:
        model: the model that is taken when none is named; texts on an encoder have another.
        options: those of a run that are about this kind alone.
        build: makes the model.
    """

    model: str
    options: tuple[str, ...]
    build: Callable[[str, RunConfig, DataSet], Model]


KINDS = {
    Preprocessing.kind: Kind("capsnet-small", ("image_size", "scaling"), _image_model),
    TextEncoding.kind: Kind("text-capsule-a", ("text",), _text_model),
    HistoryEncoding.kind: Kind("mind", ("interactions",), _recommender),
}


def _check_options(config: RunConfig, kind: str) -> None:
    """Raise if the run was told something about data of another kind."""
    usual = RunConfig()
    for other, theirs in KINDS.items():
        changed = [name for name in theirs.options if getattr(config, name) != getattr(usual, name)]
        if other != kind and changed:
            raise ValueError(
                f"{config.data} holds {kind}s, and the options of {changed[0]} are for {other}s; leave them out"
            )
