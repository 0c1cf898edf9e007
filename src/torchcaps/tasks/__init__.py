"""What is asked of a model: targets, loss, decision, figures, report. Classification and ranking are there.

A task of one's own is one class; see `docs/extend/task.md`.
"""

from torchcaps.tasks.classification import Classification, OneLabel, SeveralLabels, classification
from torchcaps.tasks.ranking import Ranking
from torchcaps.tasks.task import LossOptions, Mistake, Report, Task

__all__ = [
    "Classification",
    "LossOptions",
    "Mistake",
    "OneLabel",
    "Ranking",
    "Report",
    "SeveralLabels",
    "Task",
    "classification",
]
