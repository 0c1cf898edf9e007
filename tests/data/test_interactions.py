"""Tables of who used what: every format gives the same, splits hold out what they say, generated people are known."""

import gzip
import json
from datetime import datetime

import numpy as np
import pytest

from torchcaps.data.interactions import (
    InteractionOptions,
    Interactions,
    from_columns,
    generate_people,
    leave_last_out,
    leave_users_out,
    load,
    load_histories,
    load_interactions,
    read_interactions,
    split_interactions,
)

ROWS = [
    {"user": "ann", "item": "tea", "time": 30, "kind": "drink", "name": "Black tea"},
    {"user": "bob", "item": "tea", "time": 10, "kind": "drink", "name": "Black tea"},
    {"user": "ann", "item": "ham", "time": 10, "kind": "food|meat", "name": "Ham"},
    {"user": "ann", "item": "jam", "time": 20, "kind": "", "name": ""},
    {"user": "bob", "item": "jam", "time": 5, "kind": "", "name": ""},
]
OPTIONS = InteractionOptions(title_column="name", feature_columns=("kind",))


def write_csv(path, rows=ROWS, delimiter=","):
    text = "\n".join(delimiter.join(str(v) for v in row.values()) for row in rows)
    path.write_text(delimiter.join(rows[0]) + "\n" + text + "\n")
    return path


def write_gzip(path):
    path.write_bytes(gzip.compress(write_csv(path.with_suffix("")).read_bytes()))
    return path


def write_jsonl(path):
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


def write_parquet(path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


def named(interactions, user):
    return [interactions.item_names[number - 1] for number in interactions.history(user)]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.csv", write_csv),
        ("rows.tsv", lambda path: write_csv(path, delimiter="\t")),
        ("rows.csv.gz", write_gzip),
        ("rows.jsonl", write_jsonl),
        ("rows.parquet", write_parquet),
    ],
)
def test_every_format_gives_the_same(tmp_path, name, write):
    found = read_interactions(write(tmp_path / name), OPTIONS)
    assert found.user_names == ("ann", "bob")
    assert named(found, "ann") == ["ham", "jam", "tea"]
    assert named(found, "bob") == ["jam", "tea"]
    assert dict(zip(found.item_names, found.titles)) == {"tea": "Black tea", "ham": "Ham", "jam": "jam"}
    features = dict(zip(found.item_names, found.features))
    assert features == {"tea": ("kind=drink",), "ham": ("kind=food", "kind=meat"), "jam": ()}


def test_columns_of_a_table_in_memory():
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    found = from_columns(columns, OPTIONS)
    assert named(found, "ann") == ["ham", "jam", "tea"]
    assert found.features[found.item_names.index("ham")] == ("kind=food", "kind=meat")
    dates = columns | {"time": np.array([f"2026-01-{row['time']:02}" for row in ROWS], "datetime64[D]")}
    assert named(from_columns(dates), "ann") == ["ham", "jam", "tea"]
    texts = columns | {"time": [datetime(2026, 1, row["time"]).isoformat() for row in ROWS]}
    assert named(from_columns(texts), "bob") == ["jam", "tea"]
    numbered = from_columns({"user_id": [7, 7], "movie_id": [50, 1]})  # without times rows are in order
    assert named(numbered, "7") == ["50", "1"]


def test_what_is_wrong_is_told_in_a_sentence(tmp_path):
    path = write_csv(tmp_path / "rows.csv", [{"who": "a", "item": "b"}])
    with pytest.raises(ValueError, match=r"has the columns who, item; say which holds the users: user_column"):
        read_interactions(path)
    with pytest.raises(ValueError, match=r"has no column 'whom' but who, item; did you mean 'who'\?"):
        read_interactions(path, InteractionOptions(user_column="whom"))
    broken = write_csv(tmp_path / "broken.csv", [{"user": "a", "item": "", "time": 1}])
    with pytest.raises(ValueError, match="line 2: no item here; every row needs a user and an item"):
        read_interactions(broken)
    wrong = write_csv(tmp_path / "wrong.csv", [{"user": "a", "item": "b", "time": "soon"}])
    with pytest.raises(ValueError, match="the time is 'soon'; it should be a number or a date"):
        read_interactions(wrong)
    (tmp_path / "short.csv").write_text("user,item\na\n")
    with pytest.raises(ValueError, match="line 2: 1 fields, but 2 columns"):
        read_interactions(tmp_path / "short.csv")
    (tmp_path / "empty.csv").write_text("user,item\n")
    with pytest.raises(ValueError, match="has no rows"):
        read_interactions(tmp_path / "empty.csv")
    (tmp_path / "rows.jsonl").write_text('["a"]')
    with pytest.raises(ValueError, match="expected an object such as"):
        read_interactions(tmp_path / "rows.jsonl")
    (tmp_path / "rows.xls").write_text("")
    with pytest.raises(ValueError, match="is no table of interactions; it should end in one of"):
        read_interactions(tmp_path / "rows.xls")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_interactions(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="nobody is called 'eve' among the 2 people"):
        Interactions.of(["ann", "bob"], ["tea", "tea"]).history("eve")
    with pytest.raises(ValueError, match="split must be one of"):
        InteractionOptions(split="random")


def test_a_damaged_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"rows.parquet is no Parquet file"):
        read_interactions(tmp_path / "rows.parquet")


def test_movielens_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="movielens-100k is not here"):
        load_interactions("movielens-100k")
    write_csv(tmp_path / "movielens-100k.csv")
    assert len(load_interactions("movielens-100k")) == 5


@pytest.fixture(scope="module")
def people():
    return generate_people(60, num_items=50, num_groups=5, mean_length=12)


def test_leaving_people_out(people):
    interactions = people.interactions
    parts = leave_users_out(interactions)
    owner = {start: place for place, start in enumerate(interactions.starts[:-1])}
    trained, tested, chosen = ({owner[start] for start in part.starts} for part in parts)
    assert not trained & tested
    assert not trained & chosen
    assert not tested & chosen
    assert len(tested) <= 6
    for start, end, stop, labels in zip(parts.test.starts, parts.test.ends, parts.test.stops, parts.test.labels):
        length = stop - start
        assert end - start == max(1, int(0.8 * length))
        wanted = set(interactions.items[end:stop]) - set(interactions.items[start:end])
        assert set(labels[labels > 0]) == wanted
    # every item but the first of a training person is asked for once
    assert len(parts.train) == sum(interactions.starts[p + 1] - interactions.starts[p] - 1 for p in trained)
    history, (target,) = parts.train[5]
    start, end = parts.train.starts[5], parts.train.ends[5]
    assert history.tolist() == interactions.items[start:end].tolist()
    assert target == interactions.items[end]
    assert not np.array_equal(leave_users_out(interactions, seed=1).test.starts, parts.test.starts)


def test_leaving_the_last_item_out(people):
    interactions = people.interactions
    parts = leave_last_out(interactions)
    last = {interactions.starts[p]: interactions.starts[p + 1] - 1 for p in range(60)}
    for part, back in ((parts.test, 0), (parts.validation, 1)):
        for start, end in zip(part.starts, part.ends):
            assert end == last[start] - back
    assert all(end < last[start] - 1 for start, end in zip(parts.train.starts, parts.train.ends))


def test_what_was_used_before_is_not_asked_for():
    again = Interactions.of(["a"] * 5 + ["b"] * 5, ["1", "2", "3", "1", "1", "1", "2", "3", "4", "5"])
    parts = leave_last_out(again)
    assert len(parts.test) == 1  # the last item of a was used before
    assert parts.test.labels.tolist() == [[again.item_names.index("5") + 1]]


def test_rare_items_are_left_out():
    found = Interactions.of(list("aabbc"), ["x", "y", "x", "z", "z"]).without_rare(2)
    assert found.item_names == ("x", "z")
    assert [named(found, user) for user in "abc"] == [["x"], ["x", "z"], ["z"]]
    parts = split_interactions(generate_people(40).interactions, InteractionOptions(least_count=3))
    assert parts.train.interactions.items.max() == len(parts.train.interactions.item_names)


def test_too_few_people_are_told():
    with pytest.raises(ValueError, match="leaving people out needs more than 2 of them; use split='last'"):
        leave_users_out(Interactions.of(["a", "b"], ["1", "2"]))
    with pytest.raises(ValueError, match="needs people who used at least three"):
        leave_last_out(Interactions.of(["a", "b"], ["1", "2"]))


def test_generated_people_like_what_is_said(people):
    interactions = people.interactions
    again = generate_people(60, num_items=50, num_groups=5, mean_length=12)
    assert np.array_equal(again.interactions.items, interactions.items)
    matches, sizes = [], []
    for person in range(60):
        items = interactions.items[interactions.starts[person] : interactions.starts[person + 1]]
        assert len(set(items)) == len(items)
        liked = people.interests[person][people.interests[person] >= 0]
        assert 1 <= len(liked) <= 4
        matches.append(np.isin(people.groups[items - 1], liked).mean())
        sizes.append(len(liked))
    assert np.mean(matches) > 0.9
    assert set(sizes) == {1, 2, 3, 4}
    with pytest.raises(ValueError, match="as many groups as a person has interests"):
        generate_people(5, num_items=3, num_groups=4)


def test_histories_by_name_and_their_inputs(monkeypatch):
    monkeypatch.setattr(load, "NUM_PEOPLE", 50)
    data = load_histories("people", InteractionOptions(split="last"))
    assert data.name == "people"
    assert data.train.kind == "user"
    history, _ = data.test[3]
    assert data.test.inputs[3] == [data.test.interactions.item_names[number - 1] for number in history]
    some = data.test.subset([3, 1])
    assert some.inputs[0] == data.test.inputs[3]
    with pytest.raises(ValueError, match="cannot be relabelled"):
        some.relabelled(some.labels, ())
