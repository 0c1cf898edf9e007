"""Starting a kernel."""

from typing import Any


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start as many programs of a kernel as the grid has places; what they write is there for whoever comes next."""
    kernel[grid](*arguments, **options)
