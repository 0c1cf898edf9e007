"""What older versions of torch say in another way, and builds for devices that are not here."""

import pytest
import torch

from torchcaps.training.processes import processes
from torchcaps.versions import accelerator_here, is_exporting


@pytest.fixture
def gpu_that_is_away(monkeypatch):
    """A build of torch for GPUs on a machine without one: it knows the kind, and that there is none."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.usefixtures("gpu_that_is_away")
def test_an_accelerator_that_is_not_here_is_none():
    assert accelerator_here() is None
    with pytest.raises(ValueError, match="device 'cuda' is not here; choose one of auto, cpu"):
        processes("cuda")
    assert processes("auto").device == torch.device("cpu")


@pytest.mark.parametrize("answer", [True, False])
def test_compiling_stands_for_exporting_where_that_is_not_told(answer, monkeypatch):
    monkeypatch.delattr(torch.compiler, "is_exporting")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: answer)
    assert is_exporting() is answer
