"""`torchcaps train`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from torchcaps.data.augment import Augmentation
from torchcaps.data.interactions.options import InteractionOptions
from torchcaps.data.text import TextOptions
from torchcaps.training.config import TrainingConfig

# an example of each kind of input
TO_TRY = {
    "image": "predict {} IMAGE.png",
    "text": "predict {} --text TEXT --explain",
    "user": "recommend {} --user ID --explain",
}
PYTHON_VALUES = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model on images, texts or interactions, choose the best epoch on validation, test once, write a report.

    Without options: CapsNet-Small on 5,000 embedded digits. Where data have no validation part, it is taken from the
    training data, never from the test data.
    Ctrl-C or SIGTERM saves the state and says how to go on.
    """

    data: str = "digits"
    """Name of a dataset, or a path: idx files, one folder of images or .txt files per class, an .npz, or texts in a
    .csv, .tsv, .jsonl or .txt file ("label text" lines); for recommendations people (generated), or a .csv, .tsv,
    .jsonl or .parquet with a row for each use."""

    task: Literal["classify", "recommend"] = "classify"
    """Tell what images or texts are, or recommend items to people."""

    model: str | None = None
    """Name of a model, see `torchcaps models`, or package.module:Class for one of your own; None is capsnet-small for
    images, text-capsule-a for texts and mind for people."""

    routing: str | None = None
    """Routing of the model, one that `torchcaps models` lists, or package.module:Class for one of your own; None is the
    model's own."""

    option: tuple[str, ...] = ()
    """More arguments of the model as name=value, such as reconstruct=false or 'routing_options={"num_iterations":2}'
    (with the quotes, which the shell takes away)."""

    out: Path | None = None
    """Folder of the run; by default a new one under runs/."""

    resume: Path | None = None
    """Go on with the run in this folder; all other options come from it."""

    image_size: tuple[int, int] | None = None
    """Height and width to which images are brought; None keeps theirs."""

    scaling: Literal["unit", "standardise", "standardise_crop", "local_contrast"] = "unit"
    """Bring each image to [0, 1], to zero mean and unit variance, or each of its pixels to its contrast with its
    neighbours, so that edges count and not how bright a surface is."""

    text: Annotated[TextOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=TextOptions)

    interactions: Annotated[InteractionOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=InteractionOptions)

    num_train: int | None = None
    """Use at most this many training examples, validation included."""

    validation: float = 0.1
    """Share of the training data held out for choices; with 0 the last weights are taken."""

    validation_instances: int = 0
    """Hold out this many instances of each class instead of a share (smallNORB, toys): choices are then made on objects
    that training never sees."""

    training: Annotated[TrainingConfig, tyro.conf.OmitArgPrefixes] = field(
        default_factory=lambda: TrainingConfig(augmentation=Augmentation(shift=2))
    )

    def run(self) -> int:
        """Train; 130 if interrupted."""
        from rich.console import Console

        from torchcaps import runs
        from torchcaps.cli.notices import notices
        from torchcaps.training import Interrupted
        from torchcaps.training.processes import processes
        from torchcaps.training.progress import TrainingProgress
        from torchcaps.trust import check_trusted

        console = Console()
        if self.resume is not None:
            if self != Train(resume=self.resume):
                raise ValueError("a run that is resumed keeps its options; give --resume alone")
            folder, config = self.resume, runs.RunConfig.read(self.resume)
            for what, name in named_code(config).items():
                check_trusted(name, str(folder / runs.CONFIG), what=what)
        else:
            folder = self.out or new_folder(f"{Path(self.data).stem}-{(self.model or 'capsules').rpartition(':')[2]}")
            config = self.config()
        try:
            with notices(console), TrainingProgress(console) as progress:
                result = runs.run(config, folder, progress.on_event)
        except Interrupted:
            if processes().is_main_process:
                console.print(f"stopped; go on with: torchcaps train --resume {folder}", soft_wrap=True)
            return 130
        if processes().is_main_process:
            report_result(console, config, folder, result)
        return 0

    def config(self):
        """The run that the options describe."""
        from torchcaps.runs import RunConfig

        options: dict[str, Any] = dict(parse_option(option) for option in self.option)
        if self.routing is not None:
            options["routing"] = self.routing
        return RunConfig(
            data=self.data,
            task=self.task,
            model=self.model,
            model_options=options,
            image_size=self.image_size,
            scaling=self.scaling,
            text=self.text,
            interactions=self.interactions,
            num_train=self.num_train,
            validation=self.validation,
            validation_instances=self.validation_instances,
            training=self.training,
        )


def named_code(config) -> dict[str, str]:
    """Code of one's own that a run names as package.module:Class, by what it is."""
    parts = ("routing", "backbone")
    names = {"model": config.model, **{part: config.model_options.get(part) for part in parts}}
    return {what: name for what, name in names.items() if isinstance(name, str) and ":" in name}


def parse_option(option: str) -> tuple[str, Any]:
    """name=value with a JSON value, one of Python's True, False and None, or a plain string."""
    name, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"--option takes name=value, got {option!r}")
    try:
        return name, json.loads(PYTHON_VALUES.get(value, value))
    except ValueError as error:
        if value.startswith(("{", "[", '"')):
            raise ValueError(f"{value} is not JSON ({error}); put the option in single quotes: '{option}'") from error
        return name, value


def new_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def report_result(console, config, folder: Path, result: dict[str, Any]) -> None:
    """What to look at and try next; the last line is the figure."""
    modules = ",".join(dict.fromkeys(name.partition(":")[0] for name in named_code(config).values()))
    command = f"TORCHCAPS_TRUST={modules} torchcaps" if modules else "torchcaps"
    is_tested = "num_test" in result
    tries = [f"{command} evaluate {folder}"] if is_tested else []
    tries.append(f"{command} {TO_TRY[result['kind']].format(folder)}")
    lines = [f"report: {folder / 'report.png'}"] if "accuracy" in result else []
    lines += [f"next:   {tries[0]}", *(f"        {line}" for line in tries[1:])]
    if "recall@20" in result:
        shown = [
            f"{name} {100 * result[name]:.2f} %" for name in ("recall@20", "ndcg@20", "hit rate@20", "coverage@20")
        ]
        lines.append(f"test: {', '.join(shown)} ({result['num_test']} {result['kind']}s of {config.data})")
    elif not is_tested:
        nothing = f"there are no test {result['kind']}s"
        found = result.get("validation_accuracy")
        lines.append(nothing if found is None else f"validation accuracy: {100 * found:.2f} % ({nothing})")
    else:
        data = "embedded digits" if config.data == "digits" else f"{result['kind']}s of {config.data}"
        drawn = f", error of reconstruction {error:.1f}" if (error := result.get("reconstruction_error")) else ""
        f1 = f", micro F1 {100 * result['micro_f1']:.2f} %" if "micro_f1" in result else ""
        lines.append(f"test accuracy: {100 * result['accuracy']:.2f} %{f1}{drawn} ({result['num_test']} {data})")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
