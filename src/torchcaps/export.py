"""A trained model as a file that runs without torchcaps: ONNX, torch.export, or a compiled AOTInductor package.

Routing is exported in its reference form, plain operations of torch, with any number of inputs at a time; texts are
padded to one length. Every file is run before it counts as written, and must agree with the model.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from torchcaps import __version__
from torchcaps.checks import check_choice
from torchcaps.inputs.base import Taken
from torchcaps.models import Model
from torchcaps.routing import use_backend
from torchcaps.routing.backend import REFERENCE
from torchcaps.storage import whole_file

OUTPUTS = ("probabilities", "scores")
RANKED = ("items", "scores", "interests")
TOLERANCE = 1e-4
METADATA = "torchcaps.json"  # of the extra file in a torch.export archive, and the key in the other formats

Run = Callable[[np.ndarray], list[np.ndarray]]


class ExportError(ValueError):
    """The model could not be exported, or the file does not compute what the model does."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a file takes and gives; stored inside it as JSON.

    Attributes:
        model: name of the model.
        version: of torchcaps.
        input_name: "images", "tokens" or, of people, "used".
        input_shape: of one input after the batch axis: images (C, H, W), or (H, W, C) with preprocessing inside; tokens
            and used items (length,), padded with 0 at the end.
        input_largest: of whole numbers, the largest that the model takes.
        input_type: "float32", "uint8" with preprocessing inside, or "int64".
        preprocessing: what has to happen to raw inputs before; None when it happens inside.
        labels: of the columns of the outputs.
        multi_label: several classes may be true at once, those whose probability reaches the threshold.
        at_least_one: the most probable class is there in any case.
        outputs: their names: probabilities and scores, each (batch, classes); of a recommender the numbers of the best
            items from 1 on and their scores, each (batch, 50), and the interests (batch, interests, entries).
    """

    model: str
    version: str
    input_name: str
    input_shape: tuple[int, ...]
    input_type: str
    preprocessing: dict[str, Any] | None
    labels: tuple[str, ...]
    multi_label: bool
    threshold: float
    at_least_one: bool
    outputs: tuple[str, ...] = OUTPUTS
    input_largest: int = 1


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A written file, how far its answers are from the model's at most, and what it says about itself."""

    path: Path
    difference: float
    description: Description


class Classifier(nn.Module):
    """The part of a model that is exported: inputs to probabilities and scores."""

    def __init__(self, model: Model, *, include_preprocessing: bool) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = model.preprocessing if include_preprocessing else None

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The model's inputs, or raw uint8 images (B, H, W, C) -> probabilities and scores, (B, J) each."""
        output = self.model(inputs if self.preprocessing is None else self.preprocessing(inputs))
        return self.model.task.estimate(output), output.scores


class Ranker(nn.Module):
    """The part of a recommender that is exported: items that were used to items that fit, scores and interests."""

    def __init__(self, model: Model, *, include_preprocessing: bool) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T) -> (B, k), (B, k), (B, J, D); nothing, 0, where there are fewer items."""
        output = self.model(inputs)
        assert output.ranking is not None
        assert output.poses is not None
        return output.ranking, torch.where(output.ranking > 0, output.scores, 0.0), output.poses


# What is exported of each kind of model, and the names of what it gives.
HEADS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "image": (Classifier, OUTPUTS),
    "text": (Classifier, OUTPUTS),
    "user": (Ranker, RANKED),
}


def export_model(
    model: Model,
    path: Path,
    *,
    format: str = "onnx",
    include_preprocessing: bool = False,
    input_size: tuple[int, int] | None = None,
) -> Exported:
    """Write a model to a file that needs no torchcaps.

    Args:
        model: a trained model; its decoder is left out.
        path: of the file.
        format: "onnx" (for onnxruntime and others), "torch-export" (for torch.export.load) or "aoti" (compiled for this
            machine, for torch._inductor.aoti_load_package).
        include_preprocessing: the file takes raw uint8 images (n, h, w, c) instead of the model's float32 (n, C, H, W).
        input_size: (h, w) of the raw images; by default the size to which preprocessing brings them.
    """
    kind = FORMATS[check_choice("format", format, FORMATS)]
    if path.suffix != kind.suffix:
        raise ValueError(f"a file of format {format} is called something{kind.suffix}, got {path.name}")
    if input_size is not None and not include_preprocessing:
        raise ValueError("input_size is the size of raw images; it goes together with include_preprocessing")
    inputs = model.preprocessing
    taken = inputs.taken_raw(input_size) if include_preprocessing else inputs.taken()
    if not path.resolve().parent.is_dir():
        raise ValueError(f"the folder of {path} does not exist; create it first")
    if any(isinstance(module, nn.LSTM) for module in model.modules()):
        raise ExportError(f"{model.name} packs its sequences, which torch.export cannot follow; choose another model")
    if (reason := kind.why_not()) is not None:
        raise ExportError(reason)
    model = _without_decoder(model)
    head, outputs = HEADS[model.kind]
    classifier = head(model, include_preprocessing=include_preprocessing).eval()
    description = _describe(model, taken, None if include_preprocessing else inputs.steps(), outputs)
    with whole_file(path) as temporary:
        with torch.no_grad(), use_backend(REFERENCE), _quiet():
            program = torch.export.export(
                classifier, (torch.from_numpy(_inputs(description, 2)),), dynamic_shapes=({0: Dim("batch")},)
            )
            kind.write(program, temporary, description)
            difference = _difference(classifier, kind.load(temporary), description)
        if not difference <= TOLERANCE:
            raise ExportError(f"the {format} file differs from the model by {difference:.1e}; it was not written")
    return Exported(path=path, difference=difference, description=description)


def _without_decoder(model: Model) -> Model:
    """A copy on the CPU that computes probabilities and nothing else."""
    copied = deepcopy(model).cpu().requires_grad_(False).eval()
    if getattr(copied, "decoder", None) is not None:
        setattr(copied, "decoder", None)  # noqa: B010 (not every model has one)
    copied.make_whole()
    return copied


def _describe(
    model: Model, taken: Taken, preprocessing: dict[str, Any] | None, outputs: tuple[str, ...]
) -> Description:
    return Description(
        model=model.name,
        version=__version__,
        input_name=taken.name,
        input_shape=taken.shape,
        input_type=taken.dtype,
        preprocessing=preprocessing,
        labels=model.labels,
        multi_label=model.task.multi_label,
        threshold=model.task.threshold,
        at_least_one=model.task.at_least_one,
        outputs=outputs,
        input_largest=taken.largest,
    )


def _inputs(description: Description, num: int) -> np.ndarray:
    """Random inputs as the file takes them; texts end in padding."""
    shape, generator = (num, *description.input_shape), np.random.default_rng(num)
    if description.input_type == "int64":
        lengths = generator.integers(1, shape[1] + 1, (num, 1))
        numbers = generator.integers(1, description.input_largest + 1, shape)  # of texts unknown words, which all have
        return np.where(np.arange(shape[1]) < lengths, numbers, 0)
    if description.input_type == "uint8":
        return generator.integers(0, 256, shape, dtype=np.uint8)
    return generator.random(shape, dtype=np.float32)


def _difference(classifier: nn.Module, run: Run, description: Description) -> float:
    """The largest difference between file and model for one, three and eight inputs; NaN for another list of items."""
    largest = 0.0
    for num in (1, 3, 8):
        inputs = _inputs(description, num)
        found, expected = run(inputs), [output.numpy() for output in classifier(torch.from_numpy(inputs))]
        for theirs, ours in zip(found, expected, strict=True):
            if theirs.shape != ours.shape or np.isnan(theirs).any():
                return float("nan")
            if theirs.dtype.kind == "f":
                largest = max(largest, float(np.abs(theirs - ours).max()))
        if description.outputs == RANKED and ((found[0] != expected[0]) & ~_tied(expected[1])).any():
            return float("nan")
    return largest


def _tied(scores: np.ndarray) -> np.ndarray:
    """Places of a list whose score is so near to a neighbour's, or to that of the first left out, they may swap."""
    gaps = np.pad(-np.diff(scores), ((0, 0), (1, 1)), constant_values=((0, 0), (np.inf, 0.0)))
    return (gaps[:, :-1] <= TOLERANCE) | (gaps[:, 1:] <= TOLERANCE)


# One pair of functions for each format: write a program, and load what was written.


def _why_not_onnx() -> str | None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        return f"ONNX needs {error.name}: pip install 'torchcaps[onnx]'"
    return None


def digamma_of_positive(values: Tensor) -> Tensor:
    """The digamma function of positive numbers from what ONNX has, to 1e-9: six steps up, then Stirling's series.

    Example:
        >>> digamma_of_positive(torch.tensor([0.5, 1.0, 100.0]))
        tensor([-1.9635, -0.5772,  4.6002])
    """
    below = sum(1 / (values + step) for step in range(6))
    above = values + 6
    inverse = 1 / above.square()
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse / 240)))
    return above.log() - 0.5 / above - series - below


def _write_onnx(program: ExportedProgram, path: Path, description: Description) -> None:
    program = program.run_decompositions({torch.ops.aten.digamma.default: digamma_of_positive})
    written = torch.onnx.export(
        program,
        dynamo=True,
        input_names=[description.input_name],
        output_names=list(description.outputs),
        verbose=False,
    )
    assert written is not None
    written.model.metadata_props[METADATA] = json.dumps(asdict(description))
    written.save(path, external_data=False)


def load_onnx(path: Path, num_threads: int | None = None) -> Run:
    """Run an ONNX file in onnxruntime, with its own choice of threads or a given number."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or 0
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return lambda inputs: [np.asarray(output) for output in session.run(None, {entry.name: inputs})]


def _write_torch_export(program: ExportedProgram, path: Path, description: Description) -> None:
    torch.export.save(program, path, extra_files={METADATA: json.dumps(asdict(description))})


def _load_torch_export(path: Path) -> Run:
    module = torch.export.load(path).module()
    return lambda inputs: [output.numpy() for output in module(torch.from_numpy(inputs))]


def _why_not_aoti() -> str | None:
    from torch._inductor import cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError:
        return "AOTInductor compiles and found no C++ compiler; install g++ or choose another format"
    return None


def _write_aoti(program: ExportedProgram, path: Path, description: Description) -> None:
    from torch._inductor import aoti_compile_and_package

    options = {"aot_inductor.metadata": {METADATA: json.dumps(asdict(description))}}
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)


def _load_aoti(path: Path) -> Run:
    from torch._inductor import aoti_load_package

    package = aoti_load_package(str(path))
    return lambda inputs: [output.numpy() for output in package(torch.from_numpy(inputs))]


@dataclass(frozen=True)
class Format:
    """How a kind of file is written and run, and why that is not possible here."""

    suffix: str
    why_not: Callable[[], str | None]
    write: Callable[[ExportedProgram, Path, Description], None]
    load: Callable[[Path], Run]


FORMATS = {
    "onnx": Format(".onnx", _why_not_onnx, _write_onnx, load_onnx),
    "torch-export": Format(".pt2", lambda: None, _write_torch_export, _load_torch_export),
    "aoti": Format(".pt2", _why_not_aoti, _write_aoti, _load_aoti),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters say about their own inside to themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
