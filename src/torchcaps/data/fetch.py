"""Downloads that go on where they stopped and are believed only when their checksum is right.

A file grows under the name NAME.part and gets its own name when it has been verified; a download that was stopped, by
the network or by the user, goes on from there the next time.
"""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from torchcaps.data.catalogue import Distribution, RemoteFile
from torchcaps.data.safe_reading import CHUNK, opened

BLOCK = 2**16
HEADERS = {"User-Agent": "torchcaps"}
MAX_ATTEMPTS = 8  # for one file, before it is left to the user to go on
PARTIAL, RANGE_REFUSED, SERVER_ERROR = 206, 416, 500
SPARE = 2**20  # a copy that is packed in another way may be larger, but not by much

Progress = Callable[[str, int, int], None]


class Interruption(Exception):
    """The connection ended before the file did; trying again may help."""


def fetch(
    name: str,
    source: Distribution,
    folder: Path,
    *,
    mirror: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> list[Path]:
    """Download and verify the files of a set; those that are already there and right stay.

    Args:
        name: of the set, for messages.
        source: its files.
        folder: where they go.
        mirror: address of a folder that holds copies under the same names; the official one when not given.
        progress: called with the name of a file, the bytes that are there and those expected.
        timeout: seconds of silence after which a connection counts as broken.
        pause: seconds before a broken connection is tried again.

    Raises:
        OSError: if a file cannot be had; the message says what to do instead.
        ValueError: if a file has the wrong content.
    """
    address = (mirror or source.address).rstrip("/") + "/"
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"a mirror must be an address that starts with http:// or https://, got {mirror!r}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for file in source.files:
        try:
            paths.append(fetch_file(file, address, folder, progress=progress, timeout=timeout, pause=pause))
        except OSError as error:
            names = ", ".join(file.name for file in source.files)
            raise OSError(
                f"{name} could not be fetched: {error}. Run the command again to go on, give another address with "
                f"--mirror, or put {names} into {folder} by other means; copies: {source.copies}"
            ) from error
    return paths


def fetch_file(
    file: RemoteFile,
    address: str,
    folder: Path,
    *,
    progress: Progress | None = None,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Download and verify one file; see `fetch`."""
    path, partial = folder / file.name, folder / f"{file.name}.part"
    for there in (path, path.with_name(file.name.removesuffix(".gz"))):  # packed or not, the readers take both
        if there.is_file() and is_right(there, file):
            return there
    report = progress or (lambda *_: None)
    url, trouble = address + file.name, ""
    for attempt in range(MAX_ATTEMPTS):
        try:
            resumed = _receive(file, url, partial, lambda done: report(file.name, done, file.size), timeout)
        except Interruption as error:
            trouble = str(error)
            if attempt > 0 and not partial.is_file():  # there is no one at the other end
                break
            time.sleep(pause)
            continue
        except ValueError:
            partial.unlink()
            raise
        if is_right(partial, file):
            partial.replace(path)
            return path
        found = _sha256(partial)
        partial.unlink()
        trouble = f"{url} has the wrong content: sha256 {found} where {file.sha256} was expected"
        if not resumed:  # else its beginning may come from another version of the file: once more, from zero
            raise ValueError(f"{trouble}; nothing was kept. Try another address with --mirror")
    raise OSError(trouble)


def is_right(path: Path, file: RemoteFile) -> bool:
    """Whether a file is what was asked for, as distributed or packed in another way."""
    if _sha256(path) == file.sha256:
        return True
    if file.unpacked_sha256 is None:
        return False
    try:
        return _sha256(path, unpack=True) == file.unpacked_sha256
    except ValueError:
        return False


def _receive(file: RemoteFile, address: str, partial: Path, report: Callable[[int], None], timeout: float) -> bool:
    """Append what is missing to the partial file; whether there was something to go on from."""
    start = partial.stat().st_size if partial.is_file() else 0
    headers = HEADERS | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=timeout) as answer:
            resumed = answer.status == PARTIAL and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            done = start if resumed else 0
            expected = answer.headers.get("Content-Length")
            total = done + int(expected) if expected and expected.isdecimal() else None
            limit = file.size + file.size // 4 + SPARE
            with partial.open("ab" if resumed else "wb") as target:
                report(done)
                while block := answer.read1(BLOCK):
                    done += len(block)
                    if done > limit:
                        raise ValueError(f"{address} is larger than {limit} bytes: it is not {file.name}")
                    target.write(block)
                    report(done)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == RANGE_REFUSED and start:  # all of it is there already, or the file is another one now
            return True
        if error.code >= SERVER_ERROR:
            raise Interruption(f"{address} answers {error.code} {error.reason}") from error
        raise OSError(f"{address} answers {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise Interruption(f"{urlsplit(address).netloc} cannot be reached, or went silent ({reason})") from error
    if total is not None and done < total:
        raise Interruption(f"{address} ended after {done} of {total} bytes")
    return resumed


def _sha256(path: Path, *, unpack: bool = False) -> str:
    digest = hashlib.sha256()
    if unpack:
        with opened(path, "a downloaded file") as (stream, _):
            while block := stream.read(CHUNK):
                digest.update(block)
        return digest.hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
