"""Accuracy, from the runs that were recorded one by one and the results.json of experiments."""

import inspect
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from building.experiments import recorded_experiments
from building.markdown import Cells, read, routing_label, table, without_repeats


class Run(NamedTuple):
    """One finished training run: the values of its RunConfig, and what result.json holds."""

    config: dict[str, Any]
    result: dict[str, Any]

    @property
    def model(self) -> str:
        """Its name, also where the run left the choice to the kind of the data."""
        from torchcaps.runs import KINDS

        return self.config["model"] or KINDS[self.result.get("kind", "image")].model


def seed_folders(results: Path) -> dict[Path, list[Run]]:
    """Runs that were recorded one by one, in folders NAME/seed-N or in an archive; by NAME."""
    from torchcaps.experiments.archive import ARCHIVE, all_runs
    from torchcaps.runs import RunConfig

    found: dict[Path, list[Run]] = defaultdict(list)
    folders = {path.parents[2] for path in results.glob("**/seed-*/result.json")}
    folders |= {path.parent for path in results.glob(f"**/{ARCHIVE}")}
    for folder in sorted(folder for folder in folders if not (folder / "results.json").exists()):
        for name, place in all_runs(folder, "result.json").items():
            if "accuracy" in (result := read(place / "result.json")):
                found[folder / name.rpartition("/")[0]].append(Run(asdict(RunConfig.read(place)), result))
    return found


def recorded_runs(results: Path) -> list[Run]:
    """Every run with a test accuracy; those of quick experiments check the machinery and do not count."""
    from torchcaps.votes.sharing import read_options

    runs = [run for group in seed_folders(results).values() for run in group]
    for content in recorded_experiments(results):
        if content["scale"] == "full":
            for run in (run for run in content["runs"] if run["config"]["model"]):
                options = read_options(run["config"]["model_options"])
                runs.append(Run(run["config"] | {"model_options": options}, run["result"]))
    return [run for run in runs if "accuracy" in run.result]


def trained_models(results: Path) -> str:
    """Test accuracy of models that were trained alone."""
    rows = []
    for runs in seed_folders(results).values():
        first = runs[0]
        minutes = mean(run.result["seconds"] / 60 for run in runs)
        rows.append(
            (
                *(first.config["data"], first.model, f"{first.result['parameters']:,}"),
                *(_accuracy(runs), str(len(runs)), f"{minutes:.0f}"),
            )
        )
    headings = ("data", "model", "parameters", "test accuracy, % (sd)", "seeds", "minutes of training")
    return table(headings, rows, numeric_from=2)


def routing_accuracy(results: Path) -> str:
    """Runs that differ in nothing but their routing, where there are at least two routings."""
    groups: dict[str, dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    names: dict[str, set[str]] = defaultdict(set)
    for run in recorded_runs(results):
        options = dict(run.config["model_options"])
        routing = options.pop("routing", None) or default_routing(run.model)
        label = routing_label(routing, options.pop("routing_options", None) or {})
        key = _without_seed(run.config | {"model": run.model, "model_options": options})
        if routing is not None:
            groups[key][label][run.config["training"]["seed"]] = run  # two rows of an experiment may be one run
            names[key].add(routing)
    rows: list[Cells] = []
    for key, by_label in groups.items():
        if len(names[key]) < 2:
            continue
        for label, runs in ((label, list(by_seed.values())) for label, by_seed in by_label.items()):
            rows.append((_network(runs[0]), label, _accuracy(runs), str(len(runs))))
    return table(("model and data", "routing", "test accuracy, % (sd)", "seeds"), without_repeats(rows), numeric_from=2)


def default_routing(model: str) -> str | None:
    """The routing of a model that is not told another; None for models without."""
    from torchcaps.models.registry import MODELS

    if model not in MODELS:
        return None
    for kind in MODELS[model].__mro__:  # a model may leave it to the one it is made from
        parameter = inspect.signature(kind.__init__).parameters.get("routing")
        if parameter is not None:
            return parameter.default
    return None


def _network(run: Run) -> str:
    """Model and data, and what else tells runs apart that differ in more than their routing."""
    options = {name: value for name, value in run.config["model_options"].items() if not name.startswith("routing")}
    details = "".join(f", {name} {value}" for name, value in options.items())
    size = f", {run.config['num_train']:,} examples" if run.config["num_train"] else ""
    return f"{run.model}{details} on {run.config['data']}{size}"


def _accuracy(runs: Sequence[Run]) -> str:
    values = [100 * run.result["accuracy"] for run in runs]
    return f"{mean(values):.2f}" + (f" ({stdev(values):.2f})" if len(values) > 1 else "")


def _without_seed(config: dict[str, Any]) -> str:
    training = {name: value for name, value in config["training"].items() if name != "seed"}
    return json.dumps(config | {"training": training}, sort_keys=True, default=str)
