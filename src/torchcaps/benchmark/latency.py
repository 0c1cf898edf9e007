"""Whole models, one image at a time: eager, with fused layers, and exported to onnxruntime."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.benchmark.cases import FASTEST
from torchcaps.benchmark.settings import Settings
from torchcaps.benchmark.timing import time_calls
from torchcaps.export import FORMATS, export_model, load_onnx
from torchcaps.models import create_model
from torchcaps.native import library
from torchcaps.routing import use_backend
from torchcaps.routing.backend import AUTO, REFERENCE

TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """A model as it answers one image, as plain values that fit into JSON."""

    name: str
    model: str
    image_shape: tuple[int, int, int]
    num_classes: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """Shapes in a few words."""
        return f"{self.model}, one image of {'x'.join(map(str, self.image_shape))}, {self.num_classes} classes"


WITHOUT_DECODER = {"reconstruct": False}  # which an exported file does not have either
MODEL_CASES = (
    ModelCase(name="model-capsnet", model="capsnet", image_shape=(1, 28, 28), num_classes=10, options=WITHOUT_DECODER),
    ModelCase(
        name="model-capsnet-small",
        model="capsnet-small",
        image_shape=(1, 28, 28),
        num_classes=10,
        options=WITHOUT_DECODER,
    ),
    ModelCase(name="model-matrix-small", model="matrix-capsnet-small", image_shape=(2, 32, 32), num_classes=5),
)


def measure_model(case: ModelCase, settings: Settings) -> dict[str, Any]:
    """Milliseconds of one image for each variant that agrees with the eager reference."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = create_model(
            case.model, image_shape=case.image_shape, num_classes=case.num_classes, **case.options
        ).eval()
    image = np.random.default_rng(0).random((1, *case.image_shape), dtype=np.float32)

    def scores(backend: str) -> np.ndarray:
        with torch.inference_mode(), use_backend(backend):
            return model(torch.from_numpy(image)).scores.numpy()

    calls: dict[str, Callable[[], np.ndarray]] = {"eager": lambda: scores(REFERENCE)}
    refused: dict[str, str] = {}
    if (reason := library.why_not()) is not None:
        refused[FASTEST] = reason
    else:
        calls[FASTEST] = lambda: scores(AUTO)
    if (reason := FORMATS["onnx"].why_not()) is not None:
        refused["onnxruntime"] = reason
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export_model(model, path)
            run = load_onnx(path, num_threads=torch.get_num_threads())
        calls["onnxruntime"] = lambda: run(image)[1]
    for name, call in calls.items():
        difference = float(np.abs(call() - calls["eager"]()).max())
        if not difference <= TOLERANCE:
            raise RuntimeError(f"refusing to time: {name} on {case.name} differs from eager by {difference:.1e}")
    timings = time_calls(calls, settings)
    variants: dict[str, Any] = {name: {"refused": reason} for name, reason in refused.items()}
    for name, timing in timings.items():
        speedup = timings["eager"].seconds / timing.seconds
        variants[name] = asdict(timing) | {"is_quiet": timing.is_quiet, "speedup": speedup}
    return {"threads": torch.get_num_threads(), "variants": variants}
