"""What is written beside every result."""

import shlex

import pytest

from torchcaps.environment import environment


@pytest.mark.parametrize("program", ["/somewhere/bin/torchcaps", "/somewhere/src/torchcaps/__main__.py"])
def test_the_command_can_be_typed_again(program, monkeypatch):
    words = [program, "reproduce", "zhao2018", "--only", "trec: Capsule-B", "it's $1"]
    monkeypatch.setattr("sys.argv", words)
    assert shlex.split(environment()["command"]) == ["torchcaps", *words[1:]]
