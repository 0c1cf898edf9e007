"""The model of docs/extend/model.md, in a file outside the package: trained, loaded, drawn and explored."""

import re
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import torchcaps
from torchcaps.cli import main
from torchcaps.data import load_data
from torchcaps.explorer import Explorer, create_app
from torchcaps.models.registry import MODELS
from torchcaps.service.images import to_base64

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "model.md"
FEW = ["--num-train", "60", "--epochs", "1", "--batch-size", "20"]


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The first block of the page as a file in the current folder."""
    text = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]
    (tmp_path / "mycaps.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TORCHCAPS_TRUST", "")
    known = dict(MODELS)
    yield tmp_path
    sys.modules.pop("mycaps", None)
    MODELS.clear()
    MODELS.update(known)


def forget():
    """As in a new process."""
    del sys.modules["mycaps"], MODELS["my-capsnet"]


def test_a_model_of_ones_own_goes_all_the_way(code, monkeypatch, capsys):
    assert main(["train", "--model", "mycaps:MyCapsNet", "--option", "class_size=4", "--out", "mine", *FEW]) == 0
    assert "TORCHCAPS_TRUST=mycaps torchcaps evaluate mine" in capsys.readouterr().out
    forget()
    assert main(["show", "mine", "couplings"]) != 0  # nobody trusts it
    assert "if you trust it, import mycaps first or set TORCHCAPS_TRUST=mycaps" in capsys.readouterr().err
    assert main(["train", "--resume", "mine"]) != 0
    assert "asks for the model 'mycaps:MyCapsNet', which is code of its own" in capsys.readouterr().err
    monkeypatch.setenv("TORCHCAPS_TRUST", "mycaps")
    assert main(["show", "mine", "couplings", "votes", "origins"]) == 0
    assert sorted(path.name for path in (code / "pictures").iterdir()) == ["couplings.png", "origins.png", "votes.png"]
    predictor = torchcaps.load("mine")
    assert type(predictor.model).__module__ == "mycaps"
    assert predictor.model.options["class_size"] == 4
    digit = load_data("digits").test.images[0]
    with TestClient(create_app(Explorer({"mine": predictor}, {}))) as client:
        able = client.get("/api/models").json()["models"][0]["abilities"]
        assert {"predict", "explain", "trace"} <= set(able)
        for question in ("predict", "explain", "trace"):
            response = client.post(f"/api/{question}", json={"model": "mine", "image": to_base64(digit)})
            assert response.status_code == 200, response.text
    assert len(response.json()["steps"]) == 3  # iterations of dynamic routing
