"""smallNORB's pipeline and the `data` command, as a user runs them."""

import functools
import hashlib
import http.server
import json
import threading

import numpy as np
import pytest
from PIL import Image

from torchcaps.cli import main
from torchcaps.data.catalogue import CATALOGUE, Distribution, RemoteFile
from torchcaps.data.norb import write_matrix


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A folder of smallNORB's files with five categories that differ in their stripes."""
    folder, generator = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    for part, num in (("46789-training", 60), ("01235-testing", 20)):
        labels = np.arange(num) % 5
        waves = 100 + 80 * np.sin(np.arange(24) * (labels[:, None] + 1) / 2.5)
        images = waves[:, None, :, None] + generator.normal(0, 8, (num, 2, 24, 24))
        base = f"smallnorb-5x{part}"
        write_matrix(folder / f"{base}-dat.mat", images.clip(0, 255).astype(np.uint8))
        write_matrix(folder / f"{base}-cat.mat", labels.astype(np.int32))
        write_matrix(folder / f"{base}-info.mat", np.full((num, 4), -1, np.int32))
    return folder


def test_the_pipeline_of_smallnorb(pairs, tmp_path, capsys):
    run = str(tmp_path / "run")
    sizes = ["--image-size", "12", "12", "--crop", "8", "8", "--shift", "0"]
    light = ["--scaling", "standardise", "--brightness", "0.2", "--contrast", "0.3"]
    model = ["--model", "cnn-small", "--epochs", "8", "--batch-size", "16", "--learning-rate", "0.01"]
    assert main(["train", "--data", str(pairs), "--out", run, *sizes, *light, *model]) == 0
    capsys.readouterr()
    found = {}
    for crops in (1, 5, 25):
        assert main(["evaluate", run, "--crops", str(crops), "--json"]) == 0
        found[crops] = json.loads(capsys.readouterr().out)
        assert found[crops]["crops"] == crops
        assert found[crops]["accuracy"] >= 0.8
    assert found[1]["accuracy"] == json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"]
    assert main(["evaluate", run, "--crops", "26"]) == 2
    assert "have 25 different crops of (8, 8), 26 were asked for" in capsys.readouterr().err
    assert main(["evaluate", run, "--crops", "0"]) == 2
    assert "num must be at least 1" in capsys.readouterr().err


def test_list(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "text" / "sst").mkdir(parents=True)
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["data", "list"]) == 0
    rows = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line.startswith("│")}
    assert "embedded" in rows["digits"]
    assert "mnist" in rows["mnist"].split("│")[3]
    assert (
        rows["sst-phrases"].split("│")[3].strip() == rows["sst"].split("│")[3].strip() == str(tmp_path / "text" / "sst")
    )
    assert rows["smallnorb"].split("│")[3].strip() == "no"
    assert {"fashion-mnist", "cifar10", "movie-snippets"} <= set(rows)


def test_info(capsys):
    assert main(["data", "info", "smallnorb"]) == 0
    told = capsys.readouterr().out
    assert "terms:  research only" in told
    assert "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz  131,896,188 bytes  sha256 5ffd6272a07d" in told
    assert "checksums: published by TensorFlow Datasets" in told
    assert main(["data", "info", "smalnorb"]) == 2
    assert "did you mean 'smallnorb'?" in capsys.readouterr().err


def test_show(pairs, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    assert main(["data", "show", str(pairs), "--out", str(path), "--images", "20", "--test"]) == 0
    assert capsys.readouterr().out == f"contact sheet: {path}\n"
    with Image.open(path) as sheet:
        assert min(sheet.size) > 200
    assert main(["data", "show", "movie-snippets"]) == 2
    assert "movie-snippets holds texts; only images can be shown" in capsys.readouterr().err
    assert main(["data", "show", str(pairs), "--images", "0"]) == 2
    assert "--images must be at least 1" in capsys.readouterr().err


@pytest.fixture
def server(pairs):
    """The folder of pairs on a server of its own."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(pairs)))
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch(pairs, server, tmp_path, capsys, monkeypatch):
    files = tuple(
        RemoteFile(name=path.name, size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(pairs.iterdir())
    )
    made = Distribution(address="http://nowhere.invalid/", files=files, checksums="made here", copies="the cupboard")
    monkeypatch.setitem(CATALOGUE, "smallnorb", made)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    assert main(["data", "fetch", "smallnorb", "--mirror", server]) == 0
    told = capsys.readouterr().out
    assert f"smallnorb is in {tmp_path / 'smallnorb'}" in told
    assert main(["data", "show", "smallnorb", "--out", str(tmp_path / "sheet.png")]) == 0
    assert main(["data", "fetch", "smallnorb", "--out", str(tmp_path / "elsewhere"), "--mirror", f"{server}/no"]) == 2
    said = capsys.readouterr().err
    assert "answers 404" in said
    assert "copies: the cupboard" in said
    assert said.count("\n") == 1
    assert main(["data", "fetch", "minst"]) == 2
    assert "did you mean 'mnist'?" in capsys.readouterr().err


def test_fetching_toys_renders_them(tmp_path, capsys, monkeypatch):
    calls = []

    def write_toys(folder, *, size, seed, progress):
        progress(1, 2)
        calls.append((folder, size, seed))

    monkeypatch.setattr("torchcaps.data.toys.write_toys", write_toys)
    assert main(["data", "fetch", "toys", "--out", str(tmp_path), "--size", "96", "--seed", "3"]) == 0
    assert calls == [(tmp_path, 96, 3)]
    assert main(["data", "fetch", "toys", "--mirror", "http://host"]) == 2
    assert "toys are rendered here" in capsys.readouterr().err
