"""Which models there are, and what each can do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcaps import __version__
from torchcaps.attacks.perturb import why_not_attack
from torchcaps.inspection.routes import capsule_layers
from torchcaps.inspection.words import why_no_reasons
from torchcaps.models import ImageModel, Model, Recommender, TextModel
from torchcaps.models.saving import SHIPPED
from torchcaps.nn import CapsuleLayer, ConvCaps2d
from torchcaps.nn.decoder import Decoder
from torchcaps.predictor import Predictor, load
from torchcaps.service.questions import QUESTIONS
from torchcaps.service.requests import MAX_ITERATIONS, offered_routings
from torchcaps.service.results import (
    Ability,
    Label,
    MissingModel,
    ModelCard,
    ModelList,
    RoutingOffer,
)
from torchcaps.service.tracing import describe


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
            QUESTIONS[predictor.kind].try_out(predictor.model.preprocessing)
            predictors[folder.name] = predictor
        except (ValueError, OSError) as error:
            unavailable[folder.name] = str(error)
    return predictors, unavailable


def abilities(predictor: Predictor) -> list[Ability]:
    """What can be asked of a model."""
    model = predictor.model
    if isinstance(model, Recommender):
        return ["recommend", "interests"] if model.is_routed else ["recommend"]
    able: list[Ability] = ["predict"]
    layers = routed_layers(model)
    if layers or why_no_reasons(model) is None:
        able.append("explain")
    if layers:
        able.append("trace")
    if isinstance(getattr(model, "decoder", None), Decoder):
        able.append("reconstruct")
    if len(layers) > 1 and all(isinstance(layer, ConvCaps2d) for layer in layers[:-1]):
        able.append("tree")
    if why_not_attack(model) is None:
        able.append("attack")
    if isinstance(model, TextModel) and model.encoder is not None:
        able.append("match")
    return able


def routed_layers(model: Model) -> list[CapsuleLayer]:
    """The capsule layers of a model of images that tells how they were routed."""
    return capsule_layers(model) if model.is_routed and isinstance(model, ImageModel) else []


def list_models(predictors: Mapping[str, Predictor], unavailable: Mapping[str, str]) -> ModelList:
    """All models with what is known of them."""
    return ModelList(
        version=__version__,
        models=[card(name, predictor) for name, predictor in predictors.items()],
        routings=[
            RoutingOffer(
                algorithm=entry.name,
                label=Label(en=entry.english, zh=entry.chinese),
                by_any_network=entry.unlearned is not None,
                min_iterations=entry.least_iterations if entry.iterates else None,
                max_iterations=MAX_ITERATIONS if entry.iterates else None,
            )
            for entry in offered_routings().values()
        ],
        unavailable=[MissingModel(id=name, reason=reason) for name, reason in unavailable.items()],
    )


def card(name: str, predictor: Predictor) -> ModelCard:
    """What is known of a model."""
    model, able = predictor.model, abilities(predictor)
    classes = layers[-1] if (layers := routed_layers(model)) else None
    known: dict[str, Any] = {"labels": list(model.labels)} | QUESTIONS[predictor.kind].card(model.preprocessing)
    return ModelCard(
        id=name,
        title=str(model.card.get("title", name)),
        architecture=model.name,
        multi_label=model.task.multi_label,
        threshold=model.task.threshold,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        dataset=model.card.get("dataset"),
        accuracy=model.card.get("accuracy"),
        scores="activations" if model.gives_activations else "probabilities",
        routing=None if classes is None else describe(classes.routing),
        pose_size=None if classes is None else classes.out_size,
        abilities=able,
        **known,
    )
