"""The command line: light, and one sentence where the user's input was wrong."""

import os
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

import torchcaps
from torchcaps.cli import main
from torchcaps.cli.main import COMMANDS, WAITING

main_module = import_module("torchcaps.cli.main")  # torchcaps.cli.main is the function
HEAVY = ("torch", "accelerate", "matplotlib")


@dataclass(frozen=True, kw_only=True)
class Fail:
    """End in an error."""

    kind: str = "ValueError"

    def run(self) -> int:
        kinds = {"ValueError": ValueError, "TypeError": TypeError, "OSError": FileNotFoundError, "bug": KeyError}
        kinds["FloatingPointError"] = FloatingPointError
        if self.kind == "interrupt":
            raise KeyboardInterrupt
        if self.kind == "none":
            return 7
        raise kinds[self.kind]("expected a cat,\n    got a dog; bring a cat")


@pytest.fixture
def fail(monkeypatch):
    """A command beside the others: a module of the folder, and a line."""
    module = ModuleType("torchcaps.cli.fail")
    module.Fail = Fail
    monkeypatch.setitem(sys.modules, "torchcaps.cli.fail", module)
    monkeypatch.setitem(COMMANDS, "fail", "Fail")
    monkeypatch.delenv("TORCHCAPS_DEBUG", raising=False)


@pytest.mark.parametrize("arguments", [["--help"], ["benchmark", "--help"]])
def test_help_is_light(arguments):
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('HEAVY', [name for name in {HEAVY} if name in sys.modules]))\n"
        f"from torchcaps.cli import main\nmain({arguments})\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "benchmark" in process.stdout
    assert process.stdout.splitlines()[-1] == "HEAVY []"


def test_help_answers_within_a_second():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run([sys.executable, "-m", "torchcaps", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # its own CPU time: what the clock shows when nobody else uses the machine
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    assert b"benchmark" in process.stdout


def test_no_arguments_show_the_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "benchmark" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"torchcaps {torchcaps.__version__}\n"


@pytest.mark.parametrize("arguments", [["bench"], ["benchmark", "--thread", "x"], ["benchmark", "--threads", "x"]])
def test_wrong_options_end_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["ValueError", "TypeError", "OSError", "FloatingPointError"])
def test_user_errors_are_one_sentence(fail, kind, capsys):
    assert main(["fail", "--kind", kind]) == 2
    assert capsys.readouterr().err == "torchcaps: expected a cat, got a dog; bring a cat\n"


def test_debug_shows_the_traceback(fail, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DEBUG", "1")
    with pytest.raises(ValueError, match="expected a cat"):
        main(["fail"])


def test_bugs_are_not_hidden(fail):
    with pytest.raises(KeyError):
        main(["fail", "--kind", "bug"])


def test_exit_codes_come_from_the_command(fail):
    assert main(["fail", "--kind", "none"]) == 7
    assert main(["fail", "--kind", "interrupt"]) == 130


def test_a_wrong_option_is_one_sentence_in_a_real_process():
    command = [sys.executable, "-m", "torchcaps", "benchmark", "--out", "no/such/folder/results.json"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert (
        process.stderr == "torchcaps: the folder of --out no/such/folder/results.json does not exist; create it first\n"
    )


def test_a_reader_who_has_seen_enough_is_no_error():
    predict = "torchcaps predict capsule-a-movie-snippets --text fine"
    command = f"set -o pipefail; {sys.executable} -m {predict} | true"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("given", "expected"), [({}, "1000"), ({"OMP_WAIT_POLICY": "active"}, None)])
def test_threads_do_not_spin_for_long_unless_told_to(given, expected):
    program = """
import os, sys
from torchcaps.cli import main
main(["--version"])
print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
"""
    environment = {name: value for name, value in os.environ.items() if name not in WAITING} | given
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.splitlines()[-1] == f"{expected} False"


def test_only_a_command_that_trains_keeps_its_heap(monkeypatch):
    calls = []
    library = SimpleNamespace(mallopt=lambda *setting: calls.append(setting))
    monkeypatch.setattr(main_module.ctypes, "CDLL", lambda name: library)
    for name in list(os.environ):
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)
    for command in (["--version"], ["models"], ["train", "--no-such-option"]):
        monkeypatch.setattr(main_module.sys, "argv", ["torchcaps", *command])
        with suppress(SystemExit):
            main_module.main()
        assert (len(calls) == 2) == (command[0] == "train")
    calls.clear()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # whoever sets the allocator has the last word
    with suppress(SystemExit):
        main_module.main()
    with suppress(SystemExit):
        main_module.main(["train", "--no-such-option"])  # the process is somebody else's
    assert calls == []
