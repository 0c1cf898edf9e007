"""Bytes to text: UTF-8 or GB18030, found out by looking; anything else must be named."""

import gzip
import zlib
from pathlib import Path

from torchcaps.inputs.texts import is_chinese

# How much larger gzip may make a text: prose 3 times, tables 20, a bomb 1000; small ones may be as they like.
MOST_INFLATION, ALWAYS_READ = 200, 2**26
# What no text holds but nearly every program, picture and archive does.
BINARY_SIGNS = frozenset(range(9)) | frozenset(range(14, 27)) | frozenset(range(28, 32))


def read_text(path: Path, encoding: str | None = None) -> str:
    """The text of a file (gzip or not), with line ends as in Unix.

    Args:
        path: The file.
        encoding: Its encoding; None tries UTF-8, then GB18030, which is believed only where it gives Chinese.
    """
    return decode(_bytes(path), str(path), encoding)


def decode(content: bytes, name: str, encoding: str | None = None) -> str:
    """The text of some bytes; `name` says in errors where they come from."""
    if encoding is not None:
        text = _as(encoding, content, name)
    else:
        _refuse_binary(content, name)
        text = _guess(content, name)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _guess(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    try:
        text = content.decode("gb18030")
    except UnicodeDecodeError:
        text = ""
    if is_chinese([text[:100_000]]):
        return text
    raise ValueError(
        f"{name} is neither UTF-8 (line {line} is not) nor Chinese in GB18030; save it as UTF-8, or name its encoding "
        "where that can be done, such as cp1252"
    )


def _as(encoding: str, content: bytes, name: str) -> str:
    try:
        return content.decode(encoding)
    except LookupError as error:
        raise ValueError(f"no encoding is called {encoding!r}; examples are utf-8, gb18030, cp1252") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line}, is not {encoding}: {error.reason}") from error


def _refuse_binary(content: bytes, name: str) -> None:
    start = content[:4096]
    if any(byte in BINARY_SIGNS for byte in start):
        hint = "; it looks like UTF-16, save it as UTF-8" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise ValueError(f"{name} is not a text file{hint}")


def _bytes(path: Path) -> bytes:
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    most = max(MOST_INFLATION * path.stat().st_size, ALWAYS_READ)
    try:
        with gzip.open(path) as file:
            content = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if len(content) > most:
        raise ValueError(f"{path} unpacks to more than {MOST_INFLATION} times its size, as no text does")
    return content
