"""Who shares a transformation, and the name this option had before."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

SHARINGS = ("full", "shared", "factorised")
OLD_NAME, NAME = "weights", "sharing"

Parameters = ParamSpec("Parameters")


def takes_old_name(init: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """A constructor that has the option `sharing` and for one more version takes it as `weights`, with a warning."""

    @functools.wraps(init)
    def construct(*args: Parameters.args, **options: Parameters.kwargs) -> None:
        if OLD_NAME in options:
            options = warned(options)  # pyrefly: ignore[bad-assignment]
        init(*args, **options)

    return construct


def warned(options: Mapping[str, Any], *, stacklevel: int = 3) -> dict[str, Any]:
    """Options under the new name, and one sentence about it at the caller's place."""
    if NAME in options:
        raise TypeError(f"{OLD_NAME}= is the old name of {NAME}=; give {NAME} alone")
    warnings.warn(
        f"{OLD_NAME}= is now called {NAME}=, and the next version takes no other name", FutureWarning, stacklevel
    )
    return {NAME if name == OLD_NAME else name: value for name, value in options.items()}


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a model as a file has them, under the names they have today; old files are no reason to warn.

    Example:
        >>> read_options({"routing": "em", "weights": "shared"})
        {'routing': 'em', 'sharing': 'shared'}
    """
    is_old = options.get(OLD_NAME) in SHARINGS and NAME not in options
    return {NAME if is_old and name == OLD_NAME else name: value for name, value in options.items()}
