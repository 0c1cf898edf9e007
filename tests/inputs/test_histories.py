"""Names of items become numbers, and come back from a saved folder."""

import numpy as np
import pytest

from torchcaps.data.interactions import Interactions, leave_last_out
from torchcaps.inputs import HistoryEncoding

ITEMS = ("tea", "milk", "ham")


def test_names_become_numbers_and_unknown_ones_a_sentence():
    encoding = HistoryEncoding(items=ITEMS, max_length=2)
    assert encoding([["ham", "tea", "milk"], ["tea"]]).tolist() == [[3, 1, 2], [1, 0, 0]]  # nothing is cut
    with pytest.raises(ValueError, match=r"does not know the item 'mlik' among its 3; did you mean 'milk'\?"):
        encoding([["mlik"]])
    with pytest.raises(ValueError, match="leave it out, or train with data that have it"):
        encoding([[999]])
    with pytest.raises(TypeError, match="a history is a list of items, got a string"):
        encoding(["tea"])
    with pytest.raises(ValueError, match="every item once"):
        HistoryEncoding(items=("tea", "tea"))
    assert HistoryEncoding.from_dict(encoding.to_dict()) == encoding
    assert encoding.steps()["first_item"] == 1
    assert encoding.taken().shape == (2,)
    for refused in (lambda: encoding.crops([], 2), lambda: encoding.taken_raw()):
        with pytest.raises(ValueError, match=r"crops are for images|names of items cannot be inside"):
            refused()


def test_training_reads_the_latest_and_evaluation_all():
    rows = [(user, str(item)) for user in "ab" for item in range(6)]
    interactions = Interactions.of(*zip(*rows))
    encoding = HistoryEncoding(items=interactions.item_names, max_length=2)
    parts = leave_last_out(interactions)
    source = encoding.open(parts.train)
    longest = int(np.argmax(parts.train.ends - parts.train.starts))
    rows_read, targets = source.read([0, longest])
    assert [len(row) for row in rows_read] == [1, 2]
    assert rows_read[1].tolist() == parts.train[longest][0][-2:].tolist()
    assert targets.tolist() == parts.train.labels[[0, longest]].tolist()
    assert source.lengths.max() == 2
    tested = encoding.open(parts.test)
    assert len(tested.read([0])[0][0]) == 5
    assert tested.lengths.tolist() == [5, 5]


def test_any_dataset_of_names_can_be_read():
    encoding = HistoryEncoding(items=ITEMS)
    source = encoding.open([(["tea", "milk"], "ham"), (["ham"], ["tea", "milk"])])
    rows, targets = source.read([1, 0])
    assert [row.tolist() for row in rows] == [[3], [1, 2]]
    assert targets.tolist() == [[1, 2], [3, 0]]
    assert source.targets().shape == (2, 2)
    parts = list(encoding.parts([["tea"] * 3, ["ham"], ["milk"] * 2], 2))
    assert [where.tolist() for where, _ in parts] == [[1, 2], [0]]
