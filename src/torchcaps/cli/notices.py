"""What the library has to say about data and checkpoints, as one line each."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from torchcaps.data.labelled import DataNotice
from torchcaps.inputs.texts import TextNotice
from torchcaps.training.checkpoint import CheckpointNotice

NOTICES = (DataNotice, TextNotice, CheckpointNotice)


@contextmanager
def notices(console: Console) -> Iterator[None]:
    """Print every notice as a line, each once; other warnings stay what they are."""
    with warnings.catch_warnings():
        for kind in NOTICES:
            warnings.simplefilter("always", kind)  # "once" forgets what was said whenever somebody changes a filter
        show, told = warnings.showwarning, set()

        def print_notice(message, category, *args, **options) -> None:
            if issubclass(category, NOTICES):
                if str(message) in told:
                    return
                told.add(str(message))
                console.print(f"note: {message}", highlight=False, soft_wrap=True)
            else:
                show(message, category, *args, **options)

        warnings.showwarning = print_notice
        yield
