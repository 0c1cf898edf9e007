"""Feature maps of a frozen network, kept by the images they were made of."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOST_BYTES = 2**30


class FeatureCache:
    """Gives a frozen network's maps of images that it has seen before, and lets it see the others.

    Images are known by a digest of their numbers. As long as training pictures are not changed at random every epoch
    but the first finds its maps here; where each picture is new, nothing is ever found, and what was kept is dropped
    as soon as the memory is full. Maps of other weights are forgotten. Copies of a network share one cache.

    Args:
        most_bytes: of all maps together.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.maps: dict[bytes, Tensor] = {}
        self.hits = self.num_bytes = 0
        self.is_useless = False
        self._seen: tuple[tuple[int, int], ...] = ()
        self._weights: tuple[float, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> "FeatureCache":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureCache, (self.most_bytes,)

    def __call__(self, network: nn.Module, images: Tensor) -> Tensor:
        """The maps of images, in their order."""
        if self.is_useless or torch.compiler.is_compiling():
            return network(images)
        self._check_weights(network)
        keys = _keys(images)
        missing = [number for number, key in enumerate(keys) if key not in self.maps]
        self.hits += len(keys) - len(missing)
        fresh = network(images[missing]) if missing else None
        found: list[Tensor] = [self.maps.get(key) for key in keys]  # pyrefly: ignore[bad-assignment] (filled below)
        for place, number in enumerate(missing):
            assert fresh is not None
            found[number] = fresh[place]
            self._keep(keys[number], fresh[place])
        return torch.stack([each.to(images.device) for each in found])

    def _keep(self, key: bytes, feature_map: Tensor) -> None:
        size = feature_map.numel() * feature_map.element_size()
        if self.is_useless:
            return
        if self.num_bytes + size <= self.most_bytes:
            self.maps[key] = feature_map.detach().cpu().clone()
            self.num_bytes += size
        elif self.hits == 0:
            self.is_useless = True
            self.forget()

    def forget(self) -> None:
        """Drop all maps."""
        self.maps.clear()
        self.num_bytes = 0

    def _check_weights(self, network: nn.Module) -> None:
        """Forget everything if the weights are others; their numbers are read only if something was written there."""
        tensors = [*network.parameters(), *network.buffers()]
        seen = tuple((id(tensor), _version(tensor)) for tensor in tensors)
        if seen == self._seen:
            return
        weights: Callable[[Tensor], float] = lambda tensor: float(tensor.double().abs().sum())  # noqa: E731
        numbers = tuple(weights(tensor) for tensor in tensors)
        if numbers != self._weights:
            self.forget()
        self._seen, self._weights = seen, numbers


def _keys(images: Tensor) -> list[bytes]:
    """A digest of each image; maps under autocast are others than those without it."""
    rows = images.detach().cpu().flatten(1).contiguous().view(torch.uint8).numpy()
    kind = f"{images.dtype} {tuple(images.shape[1:])} {torch.is_autocast_enabled(images.device.type)}".encode()
    return [hashlib.blake2b(row.tobytes(), digest_size=16, key=kind[:64]).digest() for row in rows]


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
