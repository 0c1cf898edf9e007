"""Image networks of transformers as backbones: ConvNeXt, ResNet, ViT and what else gives maps or patches."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.pretrained import load_network, new_network, reading, shape_of

PREPROCESSOR = "preprocessor_config.json"
NO_MEAN, NO_STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
CONFIG_NAME = "network"
EXPECTED = "give a folder with config.json and model.safetensors, OWNER/NAME on the hub, or the name of a backbone"


class PretrainedImages(nn.Module):
    """The last maps of a network of transformers; patches of a ViT become a map, without its class token.

    Images between 0 and 1 are brought to the mean and deviation that its preprocessor names, if it names any, so the
    scaling of the data is "unit". One channel is repeated three times if the network takes three.

    Args:
        name: folder with config.json and weights as safetensors, or OWNER/NAME on the hub.
        image_shape: (channels, height, width).
        config: what `config` gave: the network is built from that, without weights.
        revision: of the hub.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        image_shape: tuple[int, int, int],
        *,
        config: Mapping[str, Any] | None = None,
        revision: str | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        with reading(f"the image network {name}" if config is None else "the image network of a saved model", EXPECTED):
            if config is None:
                self.network: Any = load_network(name, revision=revision)
                mean, std = _scaling(name, revision)
            else:
                self.network = new_network(config[CONFIG_NAME])
                mean, std = config["mean"], config["std"]
        self._scaling = list(mean), list(std)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def config(self) -> dict[str, Any]:
        """What a saved model keeps of it, as JSON can hold it."""
        mean, std = self._scaling
        return {CONFIG_NAME: shape_of(self.network.config), "mean": mean, "std": std}

    def forward(self, images: Tensor) -> Tensor:
        wanted = getattr(self.network.config, "num_channels", images.shape[1])
        if images.shape[1] == 1 and wanted == 3:
            images = images.expand(-1, 3, -1, -1)
        if images.shape[1] == self.mean.shape[1]:
            images = (images - self.mean) / self.std
        hidden = self.network(images).last_hidden_state
        return hidden if hidden.dim() == 4 else self._as_map(hidden, images)

    def _as_map(self, tokens_BTC: Tensor, images: Tensor) -> Tensor:
        """Patches row by row, those before them (class token, registers) left out: (B, C, h, w)."""
        patch = getattr(self.network.config, "patch_size", None)
        sides = (patch, patch) if isinstance(patch, int) else tuple(patch or (0, 0))
        if 0 in sides:
            raise ValueError(f"{type(self.network).__name__} gives tokens that are no patches of an image")
        height, width = (size // side for size, side in zip(images.shape[2:], sides, strict=True))
        patches_BNC = tokens_BTC[:, tokens_BTC.shape[1] - height * width :]
        return patches_BNC.mT.unflatten(2, (height, width)).contiguous()


def _scaling(name: str, revision: str | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel as the preprocessor of a network names them; 0 and 1 where it names none."""
    path = Path(name) / PREPROCESSOR
    if not Path(name).is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            path = Path(hf_hub_download(name, PREPROCESSOR, revision=revision))
        except EntryNotFoundError:
            return NO_MEAN, NO_STD
    if not path.is_file():
        return NO_MEAN, NO_STD
    named = json.loads(path.read_text(encoding="utf-8"))
    if not named.get("do_normalize", True):
        return NO_MEAN, NO_STD
    return tuple(named.get("image_mean") or NO_MEAN), tuple(named.get("image_std") or NO_STD)
