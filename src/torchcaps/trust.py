"""Code of one's own, named as "package.module:Class": by whom it may be named, and how it is found."""

import os
import sys
from importlib import import_module
from typing import TypeVar

TRUST_VARIABLE = "TORCHCAPS_TRUST"

ClassT = TypeVar("ClassT")


def check_trusted(name: object, source: str, *, what: str = "routing") -> None:
    """Raise if a file names code whose module would be imported on the file's word alone.

    Code of one's own runs if its module is loaded already, or if $TORCHCAPS_TRUST lists it (commas between names).

    Args:
        name: of a routing or model; names without a colon are no code.
        source: the file, for the message.
        what: is named there, for the message.
    """
    module_name, colon, _ = str(name).partition(":")
    trusted = os.environ.get(TRUST_VARIABLE, "").split(",")
    if colon and module_name not in sys.modules and module_name not in trusted:
        raise ValueError(
            f"{source} asks for the {what} {name!r}, which is code of its own; if you trust it, import {module_name} "
            f"first or set {TRUST_VARIABLE}={module_name}"
        )


def import_class(path: str, base: type[ClassT], *, what: str, public_name: str) -> type[ClassT]:
    """The class at "package.module:Class", where somebody who may run code has named it.

    Args:
        path: where it is.
        base: what it must be derived from; this is checked before it is ever called.
        what: it is, for messages.
        public_name: of the base, for messages.
    """
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"no {what} at {path!r}: {error}; expected 'package.module:Class' on the Python path"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TypeError(f"{path!r} must be a subclass of {public_name}, got {found!r}")
    return found
