"""Interactions of people with items: readers, splits, and people with known interests."""

from torchcaps.data.interactions.load import load_histories, load_interactions
from torchcaps.data.interactions.options import InteractionOptions
from torchcaps.data.interactions.people import People, generate_people
from torchcaps.data.interactions.sets import HistorySet, Interactions
from torchcaps.data.interactions.splits import leave_last_out, leave_users_out, split_interactions
from torchcaps.data.interactions.tables import from_columns, read_interactions

__all__ = [
    "HistorySet",
    "InteractionOptions",
    "Interactions",
    "People",
    "from_columns",
    "generate_people",
    "leave_last_out",
    "leave_users_out",
    "load_histories",
    "load_interactions",
    "read_interactions",
    "split_interactions",
]
