"""The command `torchcaps`: one file per command, nothing heavy imported before a command runs."""

from torchcaps.cli.main import main

__all__ = ["main"]
