"""What pages are built with: tables of what was measured alone, formulas that are shown or refused, docstrings."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from building import accuracy, docstrings, encoders, estimators, experiments, gains, mathml, speed
from building.markdown import NOTHING
from building.tables import write_tables
from torchcaps.experiments import find_experiment
from torchcaps.runs import RunConfig

EMPTY = Path("no such folder")


def write(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def timing(seconds: float, *, is_quiet: bool = True) -> dict:
    return {"seconds": seconds, "is_quiet": is_quiet}


def variant(seconds: float, ratio: float = 1.0, *, is_quiet: bool = True) -> dict:
    return {
        "forward": timing(seconds / 2),
        "forward_backward": timing(seconds, is_quiet=is_quiet),
        "speedup": {"forward_backward": ratio},
        "over_fused": {"forward_backward": ratio},
        "roofline_share": {"forward_backward": 0.42},
        "peak_bytes": {"forward_backward": 3 * 2**20},
    }


def benchmark(date: str, variants: dict) -> dict:
    rivals = [
        {"name": "kmeans r 2", "routing": "kmeans", "options": {"num_iterations": 2}},
        {"name": "entropy r 3", "routing": "entropy", "options": {"num_iterations": 3}},
    ]
    case = {
        "name": "digits",
        "layer": "dense",
        "description": "B1, 2 -> 3, 4 -> 5 vector, dynamic num_iterations=3",
        "routing": "dynamic",
        "options": {"num_iterations": 3},
        "variants": ["reference", "chunked", "fused"],
        "rivals": rivals,
        "allocators": {"default": {"variants": variants}, "heap reuse": {"failed": "killed"}},
    }
    return {"environment": {"date": date}, "cases": [case], "models": []}


def test_speed_has_rows_for_what_was_measured(tmp_path):
    variants = {
        "reference": variant(0.2),
        "chunked": {"refused": "not today"},
        "fused": variant(0.0123, 16.3, is_quiet=False),
        "kmeans r 2": variant(0.02, 1.6),
    }
    write(tmp_path / "benchmarks" / "old.json", benchmark("2026-01-01", {"fused": variant(9.0)}))
    write(tmp_path / "benchmarks" / "new.json", benchmark("2026-02-01", variants))
    assert rows(speed.routing_speed(tmp_path)) == [
        ["B1, 2 → 3, 4 → 5 vector, dense", "dynamic, 3 iterations", "6.15", "~12.3", "16.30", "3"],
        ["", "kmeans, 2 iterations", "10.0", "20.0", "1.60", "3"],
    ]
    backends = [row[1:5] for row in rows(speed.layers(tmp_path))]
    assert backends == [["eager reference", "200", "1.0", "42"], ["fused", "~12.3", "16.3", "42"]]
    assert speed.latency(tmp_path) == NOTHING


@pytest.mark.parametrize(
    "table",
    [
        speed.routing_speed,
        speed.layers,
        speed.latency,
        accuracy.routing_accuracy,
        accuracy.trained_models,
        experiments.experiment_tables,
        gains.vector_gains,
        gains.matrix_gains,
        gains.text_gains,
        encoders.encoder_gains,
        encoders.similarity,
        estimators.text_estimator,
    ],
)
def test_without_results_there_is_a_sentence(table):
    assert table(EMPTY) == NOTHING


def test_the_text_estimator_stands_beside_the_better_rival(tmp_path):
    found = {
        "set": "mr",
        "texts": 5000,
        "capsules": {"accuracies": [0.76, 0.77], "mean": 0.765},
        "tf-idf": [{"C": 1.0, "accuracies": [0.72, 0.73]}, {"C": 10.0, "accuracies": [0.77]}],
        "points ahead": {"C = 1": 4.0, "C = 10": -0.5},
    }
    write(tmp_path / "text-estimator" / "mr.json", found)
    assert rows(estimators.text_estimator(tmp_path)) == [["mr", "5,000", "76.5 (0.7)", "72.5 (0.7)", "77.0", "-0.5"]]


def run_config(routing: str | None, seed: int = 0, **more) -> dict:
    config = RunConfig(
        data="digits", model="capsnet-small", model_options={"routing": routing} if routing else {}, **more
    )
    return asdict(replace(config, training=replace(config.training, seed=seed)))


def record(folder: Path, routing: str | None, seed: int, right: float, **more) -> None:
    write(folder / f"seed-{seed}" / "config.json", run_config(routing, seed, **more))
    result = {"accuracy": right, "seconds": 120, "parameters": 1000, "kind": "image"}
    write(folder / f"seed-{seed}" / "result.json", result)


def test_accuracy_compares_runs_that_differ_in_their_routing_alone(tmp_path):
    for seed, right in enumerate((0.98, 0.99)):
        record(tmp_path / "digits" / "default", None, seed, right)
    record(tmp_path / "digits" / "kmeans", "kmeans", 0, 0.97)
    record(tmp_path / "digits" / "longer", "em", 0, 0.9, num_train=100)  # another run: nothing to compare it with
    assert rows(accuracy.routing_accuracy(tmp_path)) == [
        ["capsnet-small on digits", "dynamic", "98.50 (0.71)", "2"],
        ["", "kmeans", "97.00", "1"],
    ]
    assert [row[3:] for row in rows(accuracy.trained_models(tmp_path))] == [
        ["98.50 (0.71)", "2", "2"],
        ["97.00", "1", "2"],
        ["90.00", "1", "2"],
    ]


def experiment(scale: str, values: list[float]) -> dict:
    line = {"group": "g", "measured": "test error, %", "published": 1.8, "where": "table 1", "num_diverged": 0}
    mean = sum(values) / len(values) if values else None
    return {
        "experiment": "hinton2018",
        "scale": scale,
        "data": "toys",
        "source": "a paper",
        "remark": "A remark.",
        "note": "",
        "lines": [
            line | {"name": "ours", "values": values, "mean": mean, "deviation": 0.5, "minutes": 3.2},
            line | {"name": "not run", "values": [], "mean": None, "deviation": None, "minutes": None},
        ],
        "runs": [
            {"config": run_config(routing), "result": {"accuracy": 0.9}} for routing in ("dynamic", "em", "kmeans")
        ]
        + [{"config": run_config("em") | {"model": None}, "result": {"accuracy": 0.1}}],
    }


def test_experiments_show_what_was_run(tmp_path):
    write(tmp_path / "hinton2018" / "results.json", experiment("full", [1.0, 2.0]))
    text = experiments.experiment_tables(tmp_path)
    assert "| ours | test error, % | 1.8 (table 1) | 1.50 (0.50) | 2 | 3 |" in text
    assert "not run" not in text
    assert [row[1:3] for row in rows(accuracy.routing_accuracy(tmp_path))] == [
        ["dynamic", "90.00"],
        ["em", "90.00"],
        ["kmeans", "90.00"],
    ]


def test_rows_of_which_much_is_measured_become_columns(tmp_path):
    content = experiment("full", [1.0])
    line = content["lines"][0]
    content["lines"] = [
        line | {"name": f"g: {name}", "measured": f"figure {number}", "published": 1.8 if number == 0 else None}
        for name in ("one", "other")
        for number in range(experiments.MANY)
    ]
    write(tmp_path / "results.json", content)
    text = experiments.experiment_tables(tmp_path)
    assert "| ours (sd) | one | other |" in text
    assert "| figure 0 (paper: other, 1.8 (table 1)) | 1.00 (0.50) | 1.00 (0.50) |" in text
    assert "| figure 5 | 1.00 (0.50) | 1.00 (0.50) |" in text


def test_quick_experiments_say_so_and_do_not_count(tmp_path):
    write(tmp_path / "results.json", experiment("quick", [1.0]))
    assert "checks the machinery" in experiments.experiment_tables(tmp_path)
    assert accuracy.routing_accuracy(tmp_path) == NOTHING


def test_gains_set_networks_with_and_without_routing_side_by_side(tmp_path):
    line = {"measured": "test error, %", "values": [1.0]}
    recorded = experiment("full", []) | {
        "experiment": "mnist-ablation",
        "lines": [
            line | {"name": "dynamic, r = 3", "mean": 1.0, "deviation": None},
            line | {"name": "uniform", "mean": 1.25, "deviation": 0.5},
            line | {"name": "100 digits: capsules", "mean": 20.0, "deviation": None},
            line | {"name": "no routing", "mean": None, "deviation": None, "values": []},
            line | {"name": "CNN, small", "measured": "seconds", "mean": 7.0, "deviation": None},
        ],
    }
    write(tmp_path / "results.json", recorded)
    assert rows(gains.vector_gains(tmp_path)) == [
        ["MNIST", "1.00", "-", "-", "-", "1.25 (0.50)", "-", "-"],
        ["MNIST, 100 digits", "20.00", "-", "-", "-", "-", "-", "-"],
    ]
    write(tmp_path / "results.json", recorded | {"scale": "quick"})
    assert gains.vector_gains(tmp_path) == NOTHING


@pytest.mark.parametrize(
    ("lines", "columns"),
    [(gains.VECTOR_LINES, gains.VECTOR), (gains.MATRIX_LINES, gains.MATRIX), (gains.TEXT_LINES, gains.TEXT)],
)
def test_gains_name_rows_that_there_are(lines, columns):
    for line in lines:
        names = {row.name for row in find_experiment(line.experiment).choose_rows("full")}
        found = [column for column, aliases in columns.items() if any(line.prefix + name in names for name in aliases)]
        yardsticks = {"uniform", "uniform (t = 1)"} & columns.keys() or {"no routing"}
        assert yardsticks & set(found), line
        assert len(found) >= 4, line


def test_heads_on_an_encoder_stand_beside_the_best_network_on_words(tmp_path):
    line = {"measured": "test error, %", "values": [1.0], "deviation": None}
    words = [("sst-phrases: BiLSTM", 14.0), ("sst-phrases: Kim's CNN", 15.0), ("trec: BiLSTM", 8.0)]
    heads = [("sst: capsules, dynamic", 17.0), ("sst: mean of the tokens", 18.0), ("sst, fine-tuned: first token", 9.0)]
    for name, measured in (("zhao2018", words), ("encoders", heads)):
        lines = [line | {"name": row, "mean": mean} for row, mean in measured]
        write(tmp_path / name / "results.json", experiment("full", []) | {"experiment": name, "lines": lines})
    assert rows(encoders.encoder_gains(tmp_path)) == [
        ["SST-2", "17.00", "-", "-", "18.00", "-", "-", "14.00, BiLSTM"],
        ["SST-2, fine-tuned", "-", "-", "-", "-", "-", "9.00", "14.00, BiLSTM"],
    ]


def test_heads_on_an_encoder_are_rows_that_there_are():
    names = {row.name for row in find_experiment("encoders").choose_rows("full")}
    for line in gains.TEXT_LINES:
        start = encoders.SENTENCES.get(line.prefix, line.prefix)
        assert all(start + head in names for head in encoders.HEADS.values()) or start == "waimai: "


def test_ways_to_compare_texts_have_a_row_each(tmp_path):
    line = {"values": [1.0], "deviation": None}
    lines = [
        line | {"name": name, "measured": measured, "mean": mean}
        for name, mean in (("TF-IDF", 56.54), ("K-Means", 65.0))
        for measured in ("STS 2012", "halves of news that find each other first, %")
    ]
    write(tmp_path / "results.json", experiment("full", []) | {"experiment": "sts", "lines": lines})
    found = encoders.similarity(tmp_path)
    assert "STS 2012 | halves |" in found
    assert rows(found) == [["TF-IDF", "56.5", "56.5"], ["K-Means", "65.0", "65.0"]]


def test_tables_that_are_right_are_left_alone(tmp_path):
    write_tables(EMPTY, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(written) >= 7
    assert "hinton2018" in (tmp_path / "reproducible.md").read_text()
    write_tables(EMPTY, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize("latex", [r"\notacommand{x}", r"\frac{1}{", r"x \badsign y"])
def test_formulas_that_cannot_be_shown_are_refused(latex):
    with pytest.raises(mathml.FormulaError):
        mathml.to_mathml(latex)


def test_formulas_are_readable():
    assert "<mi>softmax</mi>" in mathml.to_mathml(r"\mathrm{softmax}_j(b)")
    assert "<mo>&#x0002B;&#x0003D;</mo>" in mathml.to_mathml(r"b \mathrel{+}= 1")
    space = '<mspace width="0.167em" />'
    assert f"<mi>a</mi>{space}<mi>ln</mi>{space}<mi>b</mi>" in mathml.to_mathml(r"a \ln b")
    assert "<mi>exp</mi><mo" in mathml.to_mathml(r"\exp(b)")
    assert 'display="block"' in mathml.to_mathml("x", is_block=True)


def test_docstrings_keep_code_formulas_and_options():
    lines = ["Sum |x|.", "", ".. math::", "    a * b", "", "Args:", "    **options: of *this*.", "    b: `*c`."]
    found = docstrings.to_markup(lines)
    assert found[0] == r"Sum \|x\|."
    assert found[3] == "    a * b"
    assert found[6] == r"    **options: of \*this\*."
    assert found[7] == "    b: `*c`."


def test_the_routing_of_a_model_may_be_that_of_the_one_it_is_made_from():
    assert [accuracy.default_routing(name) for name in ("text-capsule-a", "capsnet-small", "cnn-small")] == [
        "dynamic",
        "dynamic",
        None,
    ]
