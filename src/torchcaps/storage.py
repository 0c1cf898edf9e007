"""Files are written whole or not at all, run folders by one process at a time, and clear words when that fails."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from safetensors import SafetensorError

LOCK = ".lock"
TEMPORARY = ".tmp-"
CACHE_VARIABLE = "TORCHCAPS_CACHE"


class NotWritten(OSError):
    """A file could not be written."""


class FolderInUse(ValueError):
    """Another process is using a run folder."""


def cache_folder() -> Path:
    """Where what is slow to make lies; the folder need not exist."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "torchcaps"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what to do where `path` cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not path.parent.is_dir():
            raise NotWritten(
                f"could not write {path}: its folder has vanished; start again in one that stays"
            ) from error
        raise NotWritten(
            f"could not write {path} ({_reason(error)}); what was there before is untouched: "
            "make room or choose a writable folder, then try again or resume"
        ) from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Another place to write to, which becomes `path` when all of it is on disk; nothing is left if that fails."""
    temporary = temporary_path(path)
    try:
        with writing(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def temporary_path(path: Path) -> Path:
    """Beside `path`; if the process is killed, the next that locks the folder clears it away."""
    return path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep a run folder to one process, and clear away what one that was killed left half written.

    The folder is made if need be, and taken away again if nothing was put into it. The lock ends with the process,
    however that ends.
    """
    is_new, path = not folder.exists(), folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise NotWritten(f"cannot write to {folder} ({_reason(error)}); choose a writable folder") from error
    with file:
        if not _is_locked(file, path):
            raise FolderInUse(f"another process is using {folder}; wait for it or choose another folder")
        for leftover in folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        try:
            yield
        finally:
            with suppress(OSError):
                if _is_at(file, path):
                    path.unlink()
                if is_new:
                    folder.rmdir()  # refused if there is something in it


def _is_locked(file: TextIO, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is_at(file, path)  # whoever had the lock may have taken the file away after it was opened here


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
