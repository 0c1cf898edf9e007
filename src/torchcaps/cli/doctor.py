"""`torchcaps doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """What this installation has, what is missing, what that costs and what to do about it."""

    def run(self) -> None:
        """Print the findings."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from torchcaps.doctor import examine

        table = Table("part", "state")
        table.add_column("what to do", overflow="fold")
        for finding in examine():
            table.add_row(*(escape(text) for text in finding))
        Console().print(table)
