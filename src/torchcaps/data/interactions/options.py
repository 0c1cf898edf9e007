"""How interactions are read and split, in one frozen dataclass."""

from dataclasses import dataclass

from torchcaps.checks import check_choice, check_count

SPLITS = ("users", "last")


@dataclass(frozen=True, kw_only=True)
class InteractionOptions:
    """Where people, items and times are in a table, and what is held out.

    Attributes:
        user_column: name of the column with the people; None looks for a common name.
        item_column: name of the column with the items; None looks for a common name.
        time_column: name of the column with times, numbers or dates; None looks for a common name, and without one the
            rows are taken to be in order.
        title_column: name of the column with names of items for people; None for the items themselves.
        feature_columns: columns that tell something of an item, such as its category; several values are divided by |.
            The first value of the first of them is the category that diversity is about.
        split: "users" holds out people: a tenth for validation, a tenth for the test; of each the first 80 % of the
            items are given and the rest is asked for (as in ComiRec). "last" asks everybody for the last item, and for
            the one before it in validation.
        least_count: items that were used less often are left out.
        split_seed: of the choice of people; the same for all seeds of training.
    """

    user_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    title_column: str | None = None
    feature_columns: tuple[str, ...] = ()
    split: str = "users"
    least_count: int = 1
    split_seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_columns", tuple(self.feature_columns))
        check_choice("split", self.split, SPLITS)
        check_count("least_count", self.least_count)
