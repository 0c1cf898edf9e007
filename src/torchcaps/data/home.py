"""Where the files of sets that are known by name lie."""

import os
from pathlib import Path

VARIABLE = "TORCHCAPS_DATA"
DEFAULT = "data"


def home() -> Path:
    """The folder of all sets: $TORCHCAPS_DATA, or data/ here."""
    return Path(os.environ.get(VARIABLE) or DEFAULT).expanduser()


def folder_of(name: str, description: str, *, can_be_fetched: bool = False) -> Path:
    """The folder of one set, which must be there.

    Args:
        name: of the folder, within the home of all sets.
        description: what belongs there.
        can_be_fetched: whether `torchcaps data fetch` knows it.
    """
    folder = home() / name
    if not folder.is_dir():
        fetch = f"`torchcaps data fetch {name}`, or " if can_be_fetched else ""
        hint = "" if os.environ.get(VARIABLE) else f", or set {VARIABLE} to the folder that holds {name}"
        raise FileNotFoundError(f"{name} is not here: {fetch}put its files into {folder} ({description}){hint}")
    return folder
