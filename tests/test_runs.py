"""What a run trains on, what it holds out, and what it answers to afterwards."""

import json
from dataclasses import asdict

import numpy as np
import pytest

import torchcaps
from support.norb_files import write_pairs
from torchcaps import runs
from torchcaps.cli import main
from torchcaps.data import Augmentation, load_data
from torchcaps.runs import RunConfig
from torchcaps.storage import write_json
from torchcaps.training import TrainingConfig
from torchcaps.training.checkpoint import LAST, load_state


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of pictures of 96 x 96 in smallNORB's files."""
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, size=96)
    return folder


def config(pairs, **options) -> RunConfig:
    training = TrainingConfig(epochs=1, batch_size=16, augmentation=Augmentation(crop=(32, 32)))
    common = {"data": str(pairs), "model": "cnn-small", "image_size": (48, 48), "scaling": "standardise"}
    return RunConfig(**(common | {"training": training} | options))


def test_options_given_as_tuples_are_read_as_they_were_written(pairs):
    settings = config(pairs, model="matrix-capsnet-small", model_options={"types": (4, 4, 4)})
    assert RunConfig.read(write(settings, pairs.parent / "tuples")) == settings


def test_validation_by_instance_shows_objects_that_training_never_sees(pairs):
    settings = config(pairs, validation_instances=1)
    train, validation = runs.hold_out(settings, load_data(pairs).train)
    assert (len(train), len(validation)) == (40, 20)

    def objects(part):
        return set(zip(part.labels.tolist(), part.factors["instance"].tolist(), strict=True))

    assert not objects(train) & objects(validation)
    assert len(objects(validation)) == 5
    again = RunConfig.read(write(settings, pairs.parent / "by-instance"))
    assert again == settings
    with pytest.raises(ValueError, match="movie-snippets holds texts"):
        runs.hold_out(RunConfig(data="movie-snippets", validation_instances=1), load_data("movie-snippets").train)


def write(settings, folder):
    write_json(folder / runs.CONFIG, asdict(settings))
    return folder


def test_a_run_uses_as_much_as_it_is_told(pairs):
    data = runs.load_run_data(config(pairs, num_train=25, num_test=10))
    assert (len(data.train), len(data.test)) == (25, 10)
    assert np.bincount(data.train.labels).tolist() == [5] * 5
    assert runs.load_run_data(config(pairs, num_train=10**6)).train.images.shape == (60, 96, 96, 2)
    assert runs.load_run_data(config(pairs, num_test=0)).test is None
    for wrong in ({"num_train": 0}, {"num_test": -1}, {"validation": 1.0}, {"validation_instances": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            config(pairs, **wrong)


def test_without_validation_the_last_weights_are_taken_and_without_test_nothing_is_tested(pairs, tmp_path):
    result = runs.run(config(pairs, validation=0.0, num_test=0), tmp_path)
    assert "accuracy" not in result
    assert "validation_accuracy" not in result
    assert result["steps"] == 4  # 60 pairs: none is held out
    assert not any(name.startswith("best.") for name in load_state(tmp_path / LAST)[0])
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_smallnorb_at_the_command_line(pairs, tmp_path, capsys):
    options = "--model matrix-capsnet-small --image-size 48 48 --scaling standardise --crop 32 32 --shift 0"
    options += " --brightness 0.5 --contrast 0.5 --epochs 1 --batch-size 20 --validation-instances 1"
    options += ' --option routing_options={"num_iterations":2} --option pose_noise=0.05'
    folder = tmp_path / "run"
    assert main(["train", "--data", str(pairs), "--out", str(folder), *options.split()]) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == 2  # 40 of the 60 pairs
    assert 0 <= result["validation_accuracy"] <= 1
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--data", str(pairs), "--crops", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["images"], told["crops"]) == (40, 5)

    predictor = torchcaps.load(folder)
    raw = np.array(load_data(pairs).test.images[:3])
    assert raw.shape == (3, 96, 96, 2)
    probabilities = predictor.predict_proba(raw)
    assert probabilities.shape == (3, 5)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert predictor.predict(raw, crops=5).shape == (3,)
