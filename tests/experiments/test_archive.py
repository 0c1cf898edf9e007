"""Records of runs in folders and archives, and that every figure in results/ has its run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from experiments.test_harness import EXPERIMENT, make_rows
from experiments.test_harness import noise as noise  # the fixture
from torchcaps.cli import main
from torchcaps.experiments import EXPERIMENTS, find_experiment
from torchcaps.experiments.archive import ARCHIVE, all_runs, find_run, pack
from torchcaps.experiments.harness import MEASURES, finished_runs, run_rows
from torchcaps.runs import RunConfig

RESULTS = Path(__file__).parents[2] / "results"
RECORDED = sorted(path.parent for path in RESULTS.glob("*/results.json"))


def write_run(folder: Path, name: str, *, finished: bool = True, value: int = 1) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    (place / "metrics.jsonl").write_text(f'{{"step": {value}}}\n')
    (place / "picture.png").write_bytes(b"picture")
    (place / "model").mkdir()
    (place / "model" / "config.json").write_text("{}")
    if finished:
        (place / MEASURES).write_text(json.dumps({"value": value}))
    return place


def value_in(place) -> int:
    return json.loads((place / MEASURES).read_text(encoding="utf-8"))["value"]


def test_records_are_packed_and_the_rest_stays(tmp_path):
    write_run(tmp_path, "a/seed-0")
    half = write_run(tmp_path, "a/seed-1", finished=False)
    bare = write_run(tmp_path, "bare/seed-0")
    (bare / "picture.png").unlink()
    shutil.rmtree(bare / "model")
    assert pack(tmp_path, MEASURES) == 2
    with ZipFile(tmp_path / ARCHIVE) as archive:
        assert archive.namelist() == [
            *("a/seed-0/measures.json", "a/seed-0/metrics.jsonl"),
            *("bare/seed-0/measures.json", "bare/seed-0/metrics.jsonl"),
        ]
        assert archive.testzip() is None
    left = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "a" / "seed-0").rglob("*"))
    assert left == ["a/seed-0/model", "a/seed-0/model/config.json", "a/seed-0/picture.png"]
    assert not (tmp_path / "bare").exists()
    assert (half / "metrics.jsonl").exists()  # it goes on
    assert list(all_runs(tmp_path, MEASURES)) == ["a/seed-0", "bare/seed-0"]
    assert value_in(find_run(tmp_path, "a", "seed-0", MEASURES)) == 1
    assert find_run(tmp_path, "a", "seed-1", MEASURES) is None
    assert pack(tmp_path, MEASURES) == 0


def test_what_is_packed_later_joins_and_what_is_done_again_counts(tmp_path):
    write_run(tmp_path, "a/seed-0")
    pack(tmp_path, MEASURES)
    write_run(tmp_path, "b/seed-0", value=2)
    (tmp_path / "a" / "seed-0" / MEASURES).write_text('{"value": 3}')
    assert value_in(find_run(tmp_path, "a", "seed-0", MEASURES)) == 3  # the folder comes first
    assert pack(tmp_path, MEASURES) == 2
    assert {name: value_in(place) for name, place in all_runs(tmp_path, MEASURES).items()} == {
        "a/seed-0": 3,
        "b/seed-0": 2,
    }
    assert len(all_runs(tmp_path, "metrics.jsonl")) == 2  # of the first, from the first time


def test_the_same_records_give_the_same_bytes(tmp_path):
    names = ["a/seed-0", "b/seed-1"]
    for folder, order in (("first", names), ("second", names[::-1])):
        for name in order:
            write_run(tmp_path / folder, name)
        pack(tmp_path / folder, MEASURES)
    assert (tmp_path / "first" / ARCHIVE).read_bytes() == (tmp_path / "second" / ARCHIVE).read_bytes()


def test_a_folder_whose_archive_cannot_be_written_is_untouched(tmp_path, monkeypatch):
    place = write_run(tmp_path, "a/seed-0")

    def fail(*arguments):
        raise OSError(28, "no space left")

    monkeypatch.setattr("torchcaps.storage.os.replace", fail)
    with pytest.raises(OSError, match="could not write"):
        pack(tmp_path, MEASURES)
    assert (place / MEASURES).exists()
    assert not (tmp_path / ARCHIVE).exists()


def test_an_experiment_goes_on_from_its_archive(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchcaps.experiments.find_experiment", lambda name: EXPERIMENT)
    command = ["reproduce", "made", "--data", str(noise), "--out", str(tmp_path), "--quick"]
    assert main([*command, "--pack"]) == 2
    assert "there is no finished run in" in capsys.readouterr().err
    assert main([*command, "--only", "second"]) == 0
    rows = make_rows("quick", str(noise))
    before = finished_runs(rows, tmp_path)
    assert main([*command, "--pack"]) == 0
    assert "the records of 1 runs are in" in capsys.readouterr().out
    assert not (tmp_path / "no-routing" / "seed-0" / "result.json").exists()
    assert finished_runs(rows, tmp_path) == before
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "A & b, seed 0" in told
    assert "no routing, seed 0" not in told
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [run["row"] for run in kept["runs"]] == ["A & b", "no routing"]

    events = []
    other = replace(rows[1], name="other name")
    run_rows([other], tmp_path / "other", reuse=[tmp_path], on_event=events.append)
    assert not events  # records from the archive, weights from the folder
    assert RunConfig.read(tmp_path / "other" / "other-name" / "seed-0") == other.config
    changed = replace(rows[1], config=replace(rows[1].config, num_train=20))
    with pytest.raises(ValueError, match=r"runs\.zip/no-routing/seed-0/? holds another run than 'no routing' is today"):
        run_rows([changed], tmp_path)


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_every_figure_has_its_run(folder):
    """What results.json says of a run is what the run itself recorded."""
    from torchcaps.experiments.harness import row_folder

    content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert content["runs"]
    for run in content["runs"]:
        place = find_run(folder, row_folder(run["row"]), f"seed-{run['seed']}", MEASURES)
        assert place is not None, run["row"]
        kept = json.loads((place / MEASURES).read_text(encoding="utf-8"))
        assert (kept["measures"], kept["diverged"]) == (run["measures"], run["diverged"])
        if run["result"]:
            assert json.loads((place / "result.json").read_text(encoding="utf-8")) == run["result"]
        assert (place / "config.json").exists()
        assert (place / "environment.json").exists()
    num_figures = sum(len(line["values"]) for line in content["lines"])
    assert num_figures == sum(len(run["measures"]) for run in content["runs"])


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_every_recorded_experiment_goes_on(folder):
    """What was recorded is what the rows of today mean, so that nothing is trained twice."""
    content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if content["experiment"] not in EXPERIMENTS:
        pytest.skip("a folder of another kind")
    rows = find_experiment(content["experiment"]).choose_rows(content["scale"], content["data"])
    assert len(finished_runs(rows, folder)) == len(content["runs"])


def test_every_recorded_configuration_is_read():
    folders = {path.parent for path in RESULTS.glob(f"*/{ARCHIVE}")} | set(RECORDED)
    places = [place for folder in sorted(folders) for place in all_runs(folder, "config.json").values()]
    assert len(places) > 400
    for place in places:
        assert RunConfig.read(place).training.epochs >= 0
