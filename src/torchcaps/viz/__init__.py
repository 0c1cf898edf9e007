"""Pictures: functions that return matplotlib figures."""

from torchcaps.viz.report import training_report

__all__ = ["training_report"]
