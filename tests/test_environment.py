"""What is written beside every result."""

import shlex

from torchcaps.environment import environment


def test_the_command_can_be_typed_again(monkeypatch):
    words = ["/somewhere/bin/torchcaps", "reproduce", "zhao2018", "--only", "trec: Capsule-B", "it's $1"]
    monkeypatch.setattr("sys.argv", words)
    assert shlex.split(environment()["command"]) == ["torchcaps", *words[1:]]
