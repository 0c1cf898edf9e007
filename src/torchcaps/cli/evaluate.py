"""`torchcaps evaluate`."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from torchcaps.data.text.tables import Columns

if TYPE_CHECKING:
    from torchcaps.data import DataSet, LabelledSet
    from torchcaps.models import Model
    from torchcaps.predictor import Predictor
    from torchcaps.runs import RunConfig


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Accuracy of a trained model on the test images or texts of a dataset; of one without a test part, on all.

    Of a recommender: recall, NDCG and hit rate at 20 and 50, the share of items that anybody is recommended (coverage),
    and the share of pairs of recommendations with different categories (diversity), where items have categories.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    data: str | None = None
    """Name or path of the dataset; by default the one of the run."""

    crops: int = 1
    """Average over this many crops of each image, where the model sees crops."""

    columns: Annotated[Columns, tyro.conf.OmitArgPrefixes] = field(default_factory=Columns)

    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> None:
        """Print the figures."""
        from torchcaps.predictor import load

        predictor = load(self.run_folder)
        {"image": self.classify, "text": self.classify, "user": self.rank}[predictor.kind](predictor)

    def rank(self, predictor: "Predictor") -> None:
        """Print how good recommendations are."""
        from torchcaps.data.interactions import load_histories
        from torchcaps.models import Recommender
        from torchcaps.retrieval import score_recommender

        model, config = predictor.model, run_config(self.run_folder)
        name, _ = self.source(model.card)
        part = load_histories(name, None if config is None else config.interactions).test
        assert isinstance(model, Recommender) and part is not None  # noqa: PT018 (every split has a test part)
        result: dict[str, Any] = dict(score_recommender(model, part))
        if self.json:
            print(json.dumps(result | {"users": len(part), "data": name, "model": model.name}))
            return
        print(f"test of {len(part)} users of {name}")
        for figure, value in result.items():
            print(f"{figure:<13} {100 * value:6.2f} %")

    def classify(self, predictor: "Predictor") -> None:
        """Print the accuracy."""
        from rich.console import Console

        from torchcaps.cli.notices import notices

        model = predictor.model
        name, columns = self.source(model.card)
        with notices(Console(stderr=True)):
            part, is_test = load_part(name, columns, model, is_asked_for=self.data is not None)
            model.task.check_labels(part.labels, name)
            answers = predictor.predict(part.inputs, crops=self.crops)
        result = model.task.score(answers, part.labels)
        result |= {f"{model.kind}s": len(part), "data": name, "model": model.name, "crops": self.crops}
        if self.json:
            print(json.dumps(result))
            return
        f1 = f", micro F1 {100 * result['micro_f1']:.2f} %" if "micro_f1" in result else ""
        what, whole = ("test accuracy", "") if is_test else ("accuracy", ", which has no test part")
        print(f"{what}: {100 * result['accuracy']:.2f} %{f1} ({len(part)} {model.kind}s of {name}{whole})")

    def source(self, card: dict[str, Any]) -> tuple[str, Columns]:
        """Name or path of the data, and where its texts and labels are: as asked for, else those of the run."""
        config = run_config(self.run_folder)
        name = self.data or (card.get("dataset") if config is None else config.data)
        if name is None:
            raise ValueError(f"{self.run_folder} does not say what it was trained on; give --data NAME or PATH")
        return name, columns_of(config, self.columns)


def run_config(run_folder: str) -> "RunConfig | None":
    """The configuration of a run; None for a model alone."""
    from torchcaps.runs import CONFIG, MODEL, RunConfig

    folder = Path(run_folder)
    return RunConfig.read(folder) if (folder / MODEL).is_dir() and (folder / CONFIG).exists() else None


def columns_of(config: "RunConfig | None", given: Columns) -> Columns:
    """Where texts and labels are: as given, else as in the run."""
    if config is None:
        return given
    own = config.text.columns()
    named = {name: value for name, value in vars(given).items() if value is not None}
    return replace(own, **(named | {"header": given.header and own.header}))


def load_images(name: str, columns: Columns, model: "Model") -> "DataSet":
    """Data for a model of images, at its size."""
    from torchcaps.data import load_data
    from torchcaps.data.load import is_image_folder

    return load_data(name, image_size=model.preprocessing.image_size if is_image_folder(name) else None)


def load_texts(name: str, columns: Columns, model: "Model") -> "DataSet":
    """Data for a model of texts, with its classes."""
    from torchcaps.data import text

    return text.load_texts(name, columns, model.labels)


def load_part(name: str, columns: Columns, model: "Model", *, is_asked_for: bool) -> "tuple[LabelledSet, bool]":
    """The test part of a dataset, its classes numbered as the model's; of one that was asked for and has none, all.

    Returns:
        The examples, and whether they are a test part.
    """
    from rich.console import Console

    from torchcaps.cli.notices import notices
    from torchcaps.data.labels import with_classes

    with notices(Console(stderr=True)):
        data = {"image": load_images, "text": load_texts}[model.kind](name, columns, model)
    if data.train.kind != model.kind:
        raise ValueError(f"the model takes {model.kind}s, which {name} is not")
    if data.test is None and not is_asked_for:
        raise ValueError(f"{name} has no test {model.kind}s; give data that the model has not seen with --data")
    if data.test is None and data.validation is not None:
        raise ValueError(
            f"{name} has parts for training and validation but none for the test; name one of them as data"
        )
    return with_classes(data.train if data.test is None else data.test, model.labels, name), data.test is not None
