"""Finding the command that was asked for, running it, and ending in one sentence when the user's input was wrong.

A command is a module of this folder with a frozen keyword-only dataclass: its fields are the options, its docstring
the help, and `run() -> int | None` does the work (None and 0 mean success) and imports what is heavy.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

import tyro

from torchcaps import __version__

DESCRIPTION = "Capsule networks done right: every routing behind one API, exact, stable and fast."

# Module of this folder -> its dataclass. A new command is a file and a line here.
COMMANDS = {
    "train": "Train",
    "evaluate": "Evaluate",
    "predict": "Predict",
    "recommend": "Recommend",
    "show": "Show",
    "attack": "Attack",
    "explore": "Explore",
    "serve": "Serve",
    "export": "Export",
    "data": "Data",
    "models": "Models",
    "doctor": "Doctor",
    "benchmark": "Benchmark",
    "reproduce": "Reproduce",
}

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPINS = "1000"  # rounds
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
TRAINING = ["train"], ["reproduce"]
USER_ERRORS = (ValueError, TypeError, OSError, FloatingPointError)  # the last: training that diverges
WRONG_INPUT, INTERRUPTED = 2, 130


class Command(Protocol):
    """What every command can do."""

    def run(self) -> int | None:
        """Do the work and return the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: what follows `torchcaps`; None reads the command line.
    """
    is_own_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    share_cores()
    if is_own_process and arguments[:1] in TRAINING:
        keep_heap()
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where a routing of the user's own lies
    if arguments == ["--version"]:
        print(f"torchcaps {__version__}")
        return 0
    try:
        code = _parse(arguments or ["--help"]).run() or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 0
    except USER_ERRORS as error:
        if os.environ.get("TORCHCAPS_DEBUG") == "1":
            raise
        sentence = " ".join(str(error).split()) or type(error).__name__
        print(f"torchcaps: {sentence}", file=sys.stderr)
        return WRONG_INPUT


def share_cores() -> None:
    """Let threads of torch that wait for others give their core away soon; its runtime reads this when it is loaded.

    As it comes, the OpenMP runtime lets them spin for milliseconds. Where another process wants one of the cores they
    keep it from the very thread that they wait for. Kernels of this package have waits of their own; this is for what
    torch computes around them. A training step of the small matrix network beside a process that takes a core whole (it
    has priority): one thread 146 ms, two 1012 ms as it comes, 167 ms like this.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def keep_heap() -> None:
    """Let memory that one training step frees be the next one's, where the C library is glibc.

    As it comes, glibc gives large blocks back to the system, which hands out new pages, one fault and 4 KiB of zeros
    at a time. Results do not change. Two threads, nothing else running (results/throughput): CapsNet-Small trains 1.17
    times as many digits a second, the small matrix network 1.21 times as many pairs.
    """
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        adjust = getattr(ctypes.CDLL(None), "mallopt", None)
        if adjust is not None:
            adjust(M_MMAP_MAX, 0)
            adjust(M_TRIM_THRESHOLD, 2**31 - 1)


def _parse(arguments: Sequence[str]) -> Command:
    """The command with its options; wrong options end the process here, with code 2."""
    classes = {name: getattr(import_module(f"torchcaps.cli.{name}"), kind) for name, kind in COMMANDS.items()}
    return tyro.extras.subcommand_cli_from_dict(
        classes, prog="torchcaps", description=DESCRIPTION, args=arguments, config=(tyro.conf.FlagCreatePairsOff,)
    )
