"""Models by name: those of the package, those that other packages bring, and those of one's own."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torchcaps.checks import check_choice
from torchcaps.trust import check_trusted, import_class
from torchcaps.votes.sharing import NAME, OLD_NAME, warned

if TYPE_CHECKING:
    from torchcaps.models.base import Model
    from torchcaps.models.saving import SavedModel

PLUGINS = "torchcaps.models"  # the group of entry points

MODELS: "dict[str, type[Model]]" = {}
_tried: dict[str, str | None] = {}  # plug-ins by the name of their entry point, with the reason if one cannot be used

ModelT = TypeVar("ModelT", bound="type[Model]")


@overload
def register_model(name: ModelT) -> ModelT: ...


@overload
def register_model(name: str) -> Callable[[ModelT], ModelT]: ...


def register_model(name: Any) -> Any:
    """Give a subclass of Model a name that `create_model`, the command line and saved folders know.

    Args:
        name: of the model; without one, `@register_model` alone, it is the class's own `name`.

    Example:
        >>> from torchcaps.models import ImageModel
        >>> @register_model("tiny")
        ... class Tiny(ImageModel):
        ...     pass
        >>> Tiny.name, find_model("tiny") is Tiny
        ('tiny', True)
        >>> del MODELS["tiny"]
    """
    if isinstance(name, str):
        return lambda model_class: _register(model_class, name)
    return _register(name, getattr(name, "name", None))


def _register(model_class: ModelT, name: str | None) -> ModelT:
    from torchcaps.models.base import Model

    if not (isinstance(model_class, type) and issubclass(model_class, Model)):
        raise TypeError(f"a subclass of torchcaps.models.Model can be registered, got {model_class!r}")
    if not name or any(character in name for character in ":/\\ "):
        raise ValueError(f"a model's name has no colons, slashes and spaces, such as 'my-capsnet', got {name!r}")
    known = MODELS.get(name)
    if known is not None and class_path(known) != class_path(model_class):  # a cell of a notebook may run again
        raise ValueError(f"the name {name!r} belongs to {class_path(known)}; choose another for {model_class.__name__}")
    model_class.name = name
    MODELS[name] = model_class
    return model_class


def class_path(model_class: type) -> str:
    """Where a class can be imported from, as "package.module:Class"."""
    return f"{model_class.__module__}:{model_class.__qualname__}"


def identity(model_class: "type[SavedModel]") -> dict[str, str]:
    """What a file says of a model's class: its name, and where it can be imported from if it is not the package's."""
    path = class_path(model_class)
    if MODELS.get(model_class.name) is not model_class:
        return {"model": path}
    return {"model": model_class.name} | ({} if path.startswith("torchcaps.") else {"class": path})


def find_model(name: str) -> "type[Model]":
    """The class of a name, or of "package.module:Class" for code of one's own."""
    from torchcaps.models.base import Model

    if not isinstance(name, str):
        raise TypeError(
            f"a model is known by its name, such as 'capsnet-small' or 'package.module:Class', got {name!r}"
        )
    if ":" in name:
        return import_class(name, Model, what="model", public_name="torchcaps.models.Model")
    if name not in MODELS:
        _load_plugins()
    if reason := _tried.get(name):
        raise ValueError(reason)
    return MODELS[check_choice("model", name, MODELS)]


def find_saved(config: Mapping[str, Any], source: str) -> "type[Model] | None":
    """The class that a file describes, as `identity` gave it; None if there is no such model.

    A file can choose among what is registered and what is installed as a plug-in, and cannot make other code run.

    Args:
        config: what the file says.
        source: its name, for messages.
    """
    name, path = str(config.get("model")), config.get("class")
    if ":" in name:
        path = name
    elif name not in MODELS:
        _load_plugins(name)
    if name in MODELS:
        return MODELS[name]
    if path is None:
        if reason := _tried.get(name):
            raise ValueError(f"{source} describes {name!r}, and {reason}")
        return None
    check_trusted(path, source, what="model")
    try:
        return find_model(str(path)) if ":" in str(path) else None
    except TypeError as error:
        raise ValueError(f"{source} describes no model: {error}") from error


def _load_plugins(only: str | None = None) -> None:
    """Load plug-ins that were not loaded yet, all of them or one; a broken one is told in a sentence, once."""
    for entry in entry_points(group=PLUGINS):
        if entry.name in _tried or only not in (None, entry.name):
            continue
        _tried[entry.name] = None
        try:
            found = entry.load()
            if isinstance(found, type) and found not in MODELS.values():
                _register(found, entry.name)  # pyrefly: ignore[bad-specialization]
        except Exception as error:  # it is other people's code
            reason = f"the plug-in {entry.name!r} ({entry.value}) cannot be used: {type(error).__name__}: {error}"
            warnings.warn(reason, RuntimeWarning, stacklevel=3)
            if entry.name not in MODELS:
                _tried[entry.name] = reason


def list_models(kind: str | None = None, *, pretrained: bool = False) -> list[str]:
    """Names that `create_model` takes.

    Args:
        kind: of data, "image", "text" or "user"; None for all.
        pretrained: only those that ship trained.

    Example:
        >>> list_models("image", pretrained=True)
        ['capsnet-small', 'cnn-small', 'matrix-capsnet-small']
    """
    _load_plugins()
    return sorted(
        name
        for name, model in MODELS.items()
        if kind in (None, model.kind) and not (pretrained and not list_pretrained(name))
    )


def list_pretrained(name: str) -> dict[str, Path]:
    """The data sets that a model ships trained on, with the folder of each.

    Example:
        >>> sorted(list_pretrained("matrix-capsnet-small"))
        ['smallnorb', 'toys']
    """
    from torchcaps.models.saving import SHIPPED, read_config

    folders = sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() else []
    found = ((folder, read_config(folder)) for folder in folders)
    return {config["card"]["dataset"]: folder for folder, config in found if config["model"] == name}


def create_model(
    name: str,
    *,
    pretrained: str | Path | bool | None = None,
    num_classes: int | None = None,
    multi_label: bool = False,
    **options: Any,
) -> "Model":
    """A model by name, new or trained.

    Args:
        name: see `list_models`; or "package.module:Class" for one of your own.
        pretrained: a trained one: the data set that it ships trained on (True if there is one only), a folder, or
            OWNER/NAME on the hub. Options come from there; what is given must agree.
        num_classes: J; a new model needs it.
        multi_label: several classes may be true at once.
        **options: the model's own arguments: for images `image_shape`, (channels, height, width), for texts
            `num_tokens`, the rows of the embedding; and whatever else it takes, such as `routing="kmeans"`. The
            classes of a recommender are its items.

    Example:
        >>> create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10, routing="kmeans").name
        'capsnet-small'
        >>> create_model("capsnet-small", pretrained="mnist").labels[:3]
        ('0', '1', '2')
    """
    model_class = find_model(name)
    kind = "image" if "image_shape" in options else "text" if "num_tokens" in options else model_class.kind
    if model_class.kind != kind:
        raise ValueError(f"{name} does not take {kind}s; choose one of {', '.join(list_models(kind))}")
    if OLD_NAME in options and NAME in option_names(model_class):
        options = warned(options)
    for option in options:
        check_choice(f"an option of {name}", option, option_names(model_class))
    if pretrained is not None and pretrained is not False:
        given = options | ({} if num_classes is None else {"num_classes": num_classes})
        return _trained(name, model_class, pretrained, given | ({"multi_label": True} if multi_label else {}))
    if num_classes is None:
        raise TypeError(f"a new {name} needs num_classes; for a trained one say pretrained=")
    return model_class(num_classes=num_classes, multi_label=multi_label, **options)


def _trained(name: str, model_class: "type[Model]", where: str | Path | bool, given: dict[str, Any]) -> "Model":
    shipped = list_pretrained(model_class.name)
    choices = f"it ships trained on {', '.join(sorted(shipped))}" if shipped else "it ships untrained"
    if isinstance(where, bool):
        if len(shipped) != 1:
            raise ValueError(f"pretrained=True does not say which {name}: {choices}; give a data set or a folder")
        where = next(iter(shipped))
    if isinstance(where, str) and where not in shipped and not Path(where).is_dir() and "/" not in where:
        if not shipped:
            raise ValueError(f"no {name} for {where!r}: {choices}; give pretrained a folder or OWNER/NAME")
        check_choice(f"pretrained of {name}", where, shipped)
    model = load_model(shipped.get(str(where), where))
    if type(model) is not model_class:
        raise ValueError(f"{where} holds a {model.name}, not a {name}")
    saved = model.config()["arguments"]
    for option, value in given.items():
        value = list(value) if isinstance(value, tuple) else value
        if saved.get(option) != value:
            raise ValueError(
                f"the {name} of {where} has {option}={saved.get(option)!r}, not {value!r}; leave {option} out, or "
                "pretrained, and train it"
            )
    return model


def option_names(model_class: "type[Model]") -> list[str]:
    """The arguments of a model beside its classes, also those that it hands on to the class it is derived from."""
    names: dict[str, None] = {}
    for base in model_class.__mro__:
        parameters = inspect.signature(base.__init__).parameters.values() if "__init__" in vars(base) else ()
        names |= dict.fromkeys(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
        if parameters and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return [name for name in names if name not in ("num_classes", "multi_label")]


def load_model(name: str | Path, **hub_options: Any) -> "Model":
    """A saved model: a folder, the name of a shipped model, or OWNER/NAME on the hub."""
    from torchcaps.models.base import Model

    return Model.from_pretrained(name, **hub_options)
