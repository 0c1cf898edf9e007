"""What is trained on, chosen on and tested on: other people, or the last item of everybody."""

import numpy as np

from torchcaps.data.interactions.options import InteractionOptions
from torchcaps.data.interactions.sets import HistorySet, Interactions
from torchcaps.data.labelled import Parts

GIVEN_SHARE = 0.8  # of the items of a person who is asked about
HELD_OUT_SHARE = 0.1  # of the people, for validation and once more for the test


def split_interactions(interactions: Interactions, options: InteractionOptions | None = None) -> Parts[HistorySet]:
    """Training, test and validation examples; see `InteractionOptions` for the two ways."""
    options = options or InteractionOptions()
    interactions = interactions.without_rare(options.least_count)
    return {"users": leave_users_out, "last": leave_last_out}[options.split](interactions, seed=options.split_seed)


def leave_users_out(interactions: Interactions, *, seed: int = 0) -> Parts[HistorySet]:
    """A tenth of the people for validation and a tenth for the test, asked for the last fifth of their items."""
    starts, ends = interactions.starts[:-1], interactions.starts[1:]
    order = np.random.default_rng(seed).permutation(len(starts))
    num_held = max(1, round(HELD_OUT_SHARE * len(order)))
    if 2 * num_held >= len(order):
        raise ValueError(f"leaving people out needs more than {2 * num_held} of them; use split='last'")
    validation, test, train = order[:num_held], order[num_held : 2 * num_held], order[2 * num_held :]

    def asked(people: np.ndarray) -> HistorySet:
        lengths = ends[people] - starts[people]
        middle = starts[people] + np.minimum(np.maximum(1, (GIVEN_SHARE * lengths).astype(np.int64)), lengths)
        return _asked(interactions, starts[people], middle, ends[people])

    return Parts(_training(interactions, starts[train], ends[train]), asked(test), asked(validation))


def leave_last_out(interactions: Interactions, *, seed: int = 0) -> Parts[HistorySet]:
    """Everybody with three items or more is asked for the last one, and in validation for the one before."""
    starts, ends = interactions.starts[:-1], interactions.starts[1:]
    long = ends - starts >= 3
    starts, ends = starts[long], ends[long]
    if len(starts) == 0:
        raise ValueError("leaving the last items out needs people who used at least three; use split='users'")
    test, validation = _asked(interactions, starts, ends - 1, ends), _asked(interactions, starts, ends - 2, ends - 1)
    return Parts(_training(interactions, starts, ends - 2), test, validation)


def _training(interactions: Interactions, starts: np.ndarray, stops: np.ndarray) -> HistorySet:
    """Every item but the first of each person is asked for once, with what came before."""
    counts = np.maximum(stops - starts - 1, 0)
    firsts = np.repeat(starts, counts)
    ends = firsts + 1 + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return HistorySet(interactions=interactions, starts=firsts, ends=ends, stops=ends + 1, is_training=True)


def _asked(interactions: Interactions, starts: np.ndarray, middle: np.ndarray, stops: np.ndarray) -> HistorySet:
    """People with something to be asked for that they did not use before."""
    items = interactions.items
    is_new = np.array(
        [len(np.setdiff1d(items[b:c], items[a:b])) > 0 for a, b, c in zip(starts, middle, stops, strict=True)], bool
    )
    return HistorySet(interactions=interactions, starts=starts[is_new], ends=middle[is_new], stops=stops[is_new])
