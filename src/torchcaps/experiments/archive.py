"""Where the records of runs lie: in folders OUT/ROW/seed-N or, when an experiment is done, in the archive OUT/runs.zip.

Records are the small files of a run (.json and .jsonl). Its pictures and weights stay in its folder, if they are kept.
"""

import io
from functools import lru_cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo
from zipfile import Path as ZipPath

from torchcaps.storage import whole_file

ARCHIVE = "runs.zip"
RECORDS = (".json", ".jsonl")
OLDEST = (1980, 1, 1, 0, 0, 0)  # of all members, so that the same records give the same bytes

Place = Path | ZipPath


def all_runs(folder: Path, having: str) -> dict[str, Place]:
    """Runs that have a record of this name, by ROW/seed-N; a folder comes before the archive.

    Args:
        folder: of the experiment.
        having: name of the record.

    Example:
        >>> all_runs(Path("nothing here"), "result.json")
        {}
    """
    found: dict[str, Place] = {}
    if (root := _archive(folder)) is not None:
        names = [name for name in root.root.namelist() if name.endswith(f"/{having}")]
        found = {name.rpartition("/")[0]: root / name.rpartition("/")[0] for name in names}
    for path in folder.glob(f"*/seed-*/{having}"):
        found[path.parent.relative_to(folder).as_posix()] = path.parent
    return dict(sorted(found.items()))


def find_run(folder: Path, row: str, seed: str, having: str) -> Place | None:
    """Where the record `having` of a run lies: its folder, else a place in the archive; None where there is none.

    Args:
        folder: of the experiment.
        row: folder of the row.
        seed: "seed-N".
        having: name of the record.
    """
    place = folder / row / seed
    if (place / having).exists():
        return place
    root = _archive(folder)
    return root / row / seed if root is not None and (root / row / seed / having).exists() else None


def pack(folder: Path, finished: str) -> int:
    """Move the records of finished runs into the archive; what was packed before stays there. Gives how many runs.

    The archive is written whole before any folder is touched. The same records give the same bytes.

    Args:
        folder: of the experiment.
        finished: name of the record that only a finished run has.
    """
    places = [path.parent for path in sorted(folder.glob(f"*/seed-*/{finished}"))]
    paths = [path for place in places for path in place.iterdir() if path.suffix in RECORDS]
    if not paths:
        return 0
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    if (root := _archive(folder)) is not None:
        names = [name for name in root.root.namelist() if not name.endswith("/")]
        contents = {name: root.root.read(name) for name in names} | contents
    with whole_file(folder / ARCHIVE) as temporary, ZipFile(temporary, "w") as archive:
        for name, content in sorted(contents.items()):
            member = ZipInfo(name, OLDEST)
            member.external_attr = 0o644 << 16
            archive.writestr(member, content, ZIP_DEFLATED, compresslevel=9)
    for path in paths:
        path.unlink()
    for place in places:
        for empty in (place, place.parent):
            if not any(empty.iterdir()):
                empty.rmdir()
    return len(places)


def _archive(folder: Path) -> ZipPath | None:
    """The archive of an experiment, if it has one."""
    path = folder / ARCHIVE
    return _read(path, path.stat().st_mtime_ns) if path.exists() else None


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> ZipPath:
    """The archive in memory: it is small, and no file stays open."""
    archive = ZipFile(io.BytesIO(path.read_bytes()))
    archive.filename = str(path)  # what a place is called in messages
    return ZipPath(archive)
