"""A task that the engine has never heard of: that of the page on how to add one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchcaps import create_model
from torchcaps.training import fit

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "task.md"


@pytest.fixture(scope="module")
def page() -> dict:
    namespace = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(PAGE), "exec"), namespace)
    return namespace


def test_it_learns_and_says_so_in_its_own_figure(page):
    assert page["progress"].best_figures.keys() == {"error"}
    assert page["progress"].best_figures["error"] < 10  # of 45 by chance
    assert page["model"].task.score(page["answers"], page["angles"])["error"] < 10
    assert page["answers"].shape == page["angles"].shape


def test_it_is_resumed_to_the_bit(page, tmp_path):
    config = replace(page["config"], epochs=2, checkpoint_minutes=1e-6)

    def train(folder, on_event=None):
        torch.manual_seed(0)
        model = create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=1, reconstruct=False)
        model.task = page["BarDirection"]()
        fit(model, page["bars"](64, 0), page["bars"](20, 1), config, folder=folder, on_event=on_event)
        return model

    def stop(event):
        if event.progress.step == 3:
            raise KeyError("the end")

    with pytest.raises(KeyError, match="the end"):
        train(tmp_path / "parts", stop)
    resumed, whole = train(tmp_path / "parts"), train(tmp_path / "whole")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    rows = [(tmp_path / part / "metrics.jsonl").read_text() for part in ("parts", "whole")]
    assert '"validation_error"' in rows[0]
    assert "accuracy" not in rows[0]
