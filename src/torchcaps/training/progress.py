"""The progress bar of a training run, for whoever has a console to show it on."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torchcaps.training.events import Event


class TrainingProgress:
    """A bar with loss, figures, speed and remaining time, and one line per epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[said]}"),
            TextColumn("{task.fields[speed]:.0f} examples/s"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=None, epoch=1, loss=0.0, said="", speed=0.0)

    def __enter__(self) -> "TrainingProgress":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def on_event(self, event: Event) -> None:
        """Move the bar; write a line when an epoch has ended."""
        progress = event.progress
        if event.is_epoch_end:
            validation = ""
            if event.validation is not None:
                validation = f"  validation {event.task.say(event.validation)}"
            self.console.print(
                f"epoch {progress.epoch:3d}  loss {event.loss:.4f}  {event.task.say(event.figures)}{validation}"
                f"  {progress.seconds:.0f} s",
                highlight=False,
            )
            return
        self.bar.update(
            self.task,
            completed=progress.step,
            total=progress.total_steps,
            epoch=progress.epoch + 1,
            loss=event.loss,
            said=event.task.say(event.figures),
            speed=event.examples_per_second,
        )
