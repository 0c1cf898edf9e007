"""Which models there are, and what each can do."""

from collections.abc import Mapping
from pathlib import Path

from torchcaps import __version__
from torchcaps.inputs.texts import is_chinese
from torchcaps.models.base import SHIPPED
from torchcaps.models.capsnet import VectorCapsNet
from torchcaps.models.matrix import MatrixCapsNet
from torchcaps.models.text import TextCapsules
from torchcaps.nn.decoder import Decoder
from torchcaps.predictor import Predictor, load
from torchcaps.service.requests import MAX_ITERATIONS, Algorithm
from torchcaps.service.results import (
    Ability,
    ImageSize,
    MissingModel,
    ModelCard,
    ModelList,
    RoutingOffer,
)
from torchcaps.service.tracing import describe

LEAST_ITERATIONS: dict[Algorithm, int | None] = {"dynamic": 1, "em": 1, "entropy": 1, "kmeans": 0, "uniform": None}


def shipped_models(run: str | Path | None = None) -> tuple[dict[str, Predictor], dict[str, str]]:
    """The models that ship with the package, by name, and of those that cannot be used here the reasons.

    Args:
        run: a run folder or saved model that comes before them, under the name of its folder.
    """
    predictors: dict[str, Predictor] = {}
    unavailable: dict[str, str] = {}
    if run is not None:
        predictors[Path(run).resolve().name] = load(run)
    for folder in sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() else ():
        if folder.name in predictors:
            continue
        try:
            predictor = load(folder)
            if predictor.kind == "text":
                predictor.model.preprocessing(["text"])  # its tokeniser may need another package
            predictors[folder.name] = predictor
        except (ValueError, OSError) as error:
            unavailable[folder.name] = str(error)
    return predictors, unavailable


def abilities(predictor: Predictor) -> list[Ability]:
    """What can be asked of a model."""
    model = predictor.model
    able: list[Ability] = ["predict"]
    if isinstance(model, VectorCapsNet | MatrixCapsNet):
        able.extend(("explain", "trace"))
    if isinstance(model, TextCapsules) and model.class_routing.activations_are_lengths:
        able.append("explain")
    if isinstance(getattr(model, "decoder", None), Decoder):
        able.append("reconstruct")
    if isinstance(model, MatrixCapsNet):
        able.append("tree")
    if model.kind == "image" and not model.task.multi_label:
        able.append("attack")
    return able


def list_models(predictors: Mapping[str, Predictor], unavailable: Mapping[str, str]) -> ModelList:
    """All models with what is known of them."""
    return ModelList(
        version=__version__,
        models=[card(name, predictor) for name, predictor in predictors.items()],
        routings=[
            RoutingOffer(algorithm=name, min_iterations=least, max_iterations=None if least is None else MAX_ITERATIONS)
            for name, least in LEAST_ITERATIONS.items()
        ],
        unavailable=[MissingModel(id=name, reason=reason) for name, reason in unavailable.items()],
    )


def card(name: str, predictor: Predictor) -> ModelCard:
    """What is known of a model."""
    model, able = predictor.model, abilities(predictor)
    size = language = None
    if predictor.kind == "text":
        language = "zh" if is_chinese(model.preprocessing.vocabulary[:1000]) else "en"
    else:
        height, width = model.preprocessing.image_size
        size = ImageSize(channels=model.preprocessing.channels, height=height, width=width)
    classes = getattr(model, "class_capsules", None)
    return ModelCard(
        id=name,
        title=str(model.card.get("title", name)),
        kind=model.preprocessing.kind,
        architecture=model.name,
        labels=list(model.labels),
        multi_label=model.task.multi_label,
        threshold=model.task.threshold,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        dataset=model.card.get("dataset"),
        accuracy=model.card.get("accuracy"),
        input=size,
        language=language,
        scores="activations" if model.gives_activations else "probabilities",
        routing=None if classes is None else describe(classes.routing),
        pose_size=None if classes is None else classes.out_size,
        abilities=able,
    )
