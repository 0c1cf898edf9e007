"""Checkpoints are whole or absent, and damage is noticed."""

import os
import random
from copy import deepcopy

import pytest
import torch

from torchcaps.storage import NotWritten
from torchcaps.training.checkpoint import (
    LAST,
    PREVIOUS,
    CheckpointError,
    load_latest,
    load_state,
    optimizer_tensors,
    restore_optimizer,
    save_state,
)

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(True), "c": torch.zeros(0), "d": torch.tensor(3)}


def test_round_trip(tmp_path):
    save_state(tmp_path / LAST, TENSORS, {"step": 3, "best": None})
    tensors, values = load_state(tmp_path / LAST)
    assert values == {"step": 3, "best": None}
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert os.listdir(tmp_path) == [LAST]


def test_every_kind_of_damage_is_noticed_and_the_one_before_used(tmp_path):
    save_state(tmp_path / LAST, TENSORS, {"step": 1})
    save_state(tmp_path / LAST, TENSORS, {"step": 2})
    whole = (tmp_path / LAST).read_bytes()
    generator = random.Random(0)
    for _ in range(200):
        damaged = bytearray(whole)
        if generator.random() < 0.5:
            del damaged[generator.randrange(len(damaged)) :]
        else:
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        (tmp_path / LAST).write_bytes(damaged)
        found = load_latest(tmp_path)
        assert found.values == {"step": 1}
        assert str(tmp_path / LAST) in found.damage
    (tmp_path / PREVIOUS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="no usable checkpoint.*start again in another folder"):
        load_latest(tmp_path)


def test_nothing_there_yet(tmp_path):
    assert load_latest(tmp_path) is None
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_state(tmp_path / LAST)


def test_failing_to_write_keeps_the_last_good_one(tmp_path, monkeypatch):
    save_state(tmp_path / LAST, TENSORS, {"step": 1})

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotWritten, match="No space left on device.*what was there before is untouched"):
        save_state(tmp_path / LAST, TENSORS, {"step": 2})
    assert load_latest(tmp_path).values == {"step": 1}
    assert os.listdir(tmp_path) == [LAST]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimiser_state_round_trip(kind):
    options = {"lr": 0.1} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    parameters = [torch.ones(3, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    optimizer = kind(parameters, **options)
    for _ in range(2):
        sum(p.square().sum() for p in parameters).backward()
        optimizer.step()
    copies = [p.detach().clone().requires_grad_() for p in parameters]
    other = kind(copies, **options)
    restore_optimizer(other, *deepcopy(optimizer_tensors(optimizer)))
    for group, which in ((parameters, optimizer), (copies, other)):
        which.zero_grad()
        sum(p.square().sum() for p in group).backward()
        which.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters, copies))
