"""Networks in front of capsules: what gives a feature map, by name, from transformers, or as a module of one's own."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from torchcaps.checks import check_choice
from torchcaps.models.resnet import ResNetStem
from torchcaps.trust import check_trusted

MakeBackbone = Callable[..., nn.Module]
MakeT = TypeVar("MakeT", bound=MakeBackbone)

BACKBONES: dict[str, MakeBackbone] = {
    "resnet-8": lambda in_channels: ResNetStem(in_channels, (16, 32, 64), 1),
    "resnet-8-wide": lambda in_channels: ResNetStem(in_channels, (32, 64, 128), 1),
    "resnet-20": lambda in_channels: ResNetStem(in_channels, (16, 32, 64), 3),
    "resnet-20-wide": lambda in_channels: ResNetStem(in_channels, (32, 64, 128), 3),
    "resnet-32": lambda in_channels: ResNetStem(in_channels, (16, 32, 64), 5),
}


class Backbone(NamedTuple):
    """A network that gives feature maps.

    Attributes:
        module: from images (B, C, H, W) to maps (B, channels, h, w).
        channels: of its maps.
        config: what a folder must keep so that it can be built without the one it came from; None if nothing.
    """

    module: nn.Module
    channels: int
    config: dict[str, Any] | None = None


def register_backbone(name: str) -> Callable[[MakeT], MakeT]:
    """Give a function that makes a backbone a name, which models, files and the command line know.

    The function takes `in_channels` and whatever `backbone_options` hold; its module gives feature maps
    (B, channels, h, w). Saved models name it: whoever loads them registers it first.

    Example:
        >>> @register_backbone("two-convolutions")
        ... def two_convolutions(in_channels, channels=8):
        ...     return nn.Sequential(nn.Conv2d(in_channels, channels, 3, 2), nn.Conv2d(channels, channels, 3, 2))
        >>> build_backbone("two-convolutions", (1, 28, 28), {"channels": 16}).channels
        16
        >>> del BACKBONES["two-convolutions"]
    """
    if not isinstance(name, str) or not name or any(character in name for character in ":/\\ "):
        raise ValueError(f"a backbone's name has no colons, slashes and spaces, such as 'my-resnet', got {name!r}")

    def register(make: MakeT) -> MakeT:
        known = BACKBONES.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (make.__module__, make.__qualname__):
            raise ValueError(f"there is a backbone {name!r} already; choose another name")
        BACKBONES[name] = make
        return make

    return register


def build_backbone(
    backbone: str | nn.Module,
    image_shape: tuple[int, int, int],
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Backbone:
    """The backbone of a name, and the channels of its maps.

    Args:
        backbone: a registered name such as "resnet-20"; a folder of transformers, or OWNER/NAME on the hub;
            "package.module:function" of one's own; or a module.
        image_shape: (channels, height, width).
        options: of the function that makes it.
        config: of a network of transformers that a saved model describes: built from that, its weights come later.
    """
    options, found = dict(options or {}), None
    if isinstance(backbone, nn.Module):
        if options:
            raise ValueError("backbone_options are for backbones by name; a module has its own")
        module = backbone
    elif not isinstance(backbone, str):
        raise TypeError(f"a backbone is a name or a torch module that gives feature maps, got {backbone!r}")
    elif backbone in BACKBONES:
        module = _made(BACKBONES[backbone], backbone, image_shape[0], options)
    elif config is None and ":" in backbone and not Path(backbone).is_dir():
        module = _made(_imported(backbone), backbone, image_shape[0], options)
    elif config is not None or "/" in backbone or Path(backbone).is_dir():
        from torchcaps.models.pretrained import PretrainedImages

        module = PretrainedImages(backbone, image_shape, config=config, **options)
        found = module.config()
    else:
        check_choice("backbone", backbone, BACKBONES)
    return Backbone(module, _channels(module, backbone, image_shape), found)


def _made(make: MakeBackbone, name: str, in_channels: int, options: dict[str, Any]) -> nn.Module:
    try:
        module = make(in_channels, **options)
    except TypeError as error:
        raise ValueError(f"the backbone {name!r} does not take backbone_options {options}: {error}") from error
    if not isinstance(module, nn.Module):
        raise TypeError(f"the backbone {name!r} must give a torch module, got {type(module).__name__}")
    return module


def _imported(path: str) -> MakeBackbone:
    """The function or class at "package.module:name"."""
    module_name, _, name = path.partition(":")
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"no backbone at {path!r}: {error}; expected 'package.module:function' on the Python path"
        ) from error


def check_backbone_trusted(name: object, source: str) -> None:
    """Raise if a file names a backbone that would run code of its own, as for routings and models."""
    if isinstance(name, str) and name not in BACKBONES:
        check_trusted(name, source, what="backbone")


def _channels(module: nn.Module, name: object, image_shape: tuple[int, int, int]) -> int:
    """Channels of the maps, from a black image; batch statistics stay as they are."""
    was_training = module.training
    place = next(module.parameters(), torch.empty(0))
    with torch.no_grad():
        maps = module.eval()(torch.zeros(1, *image_shape, dtype=place.dtype, device=place.device))
    module.train(was_training)
    if not isinstance(maps, Tensor) or maps.dim() != 4 or 0 in maps.shape:
        came = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise ValueError(
            f"the backbone {name if isinstance(name, str) else type(name).__name__} must give feature maps "
            f"(B, channels, h, w), got {came}; leave out its pooling and its classifier"
        )
    return maps.shape[1]
