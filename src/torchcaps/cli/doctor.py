"""`torchcaps doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """What this installation has, what is missing, what that costs and what to do about it."""

    verify: bool = False
    """Run every kernel of GPUs on this one against the float64 reference, and remember where all of them are right:
    from then on the backend "auto" takes them there."""

    def run(self) -> int:
        """Print the findings; 1 if a kernel is wrong."""
        return self._verify() if self.verify else self._examine()

    def _examine(self) -> int:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from torchcaps.doctor import examine

        table = Table("part", "state")
        table.add_column("what to do", overflow="fold")
        for finding in examine():
            table.add_row(*(escape(text) for text in finding))
        Console().print(table)
        return 0

    def _verify(self) -> int:
        import torch
        from rich.console import Console

        from torchcaps.benchmark import report
        from torchcaps.benchmark.gpu import check_on, small_cases
        from torchcaps.gpu.verified import identity, remember

        if not torch.cuda.is_available():
            raise ValueError("there is nothing to verify: torch finds no GPU here")
        console, progress = Console(), Console(stderr=True)
        with progress.status("checking every kernel against the float64 reference"):
            checks = list(check_on("cuda", small_cases()))
        if reasons := sorted({check.refused for check in checks if check.refused is not None}):
            raise ValueError(f"the kernels could not be verified: {'; '.join(reasons)}")
        right = all(check.passed for check in checks)
        index = torch.cuda.current_device()
        remember(index, right=right)
        console.print(report.verification_table(checks))
        console.print(
            f"{identity(index)}: "
            + ("right; 'auto' takes the Triton backend here from now on" if right else "WRONG; please report the table")
        )
        return 0 if right else 1
