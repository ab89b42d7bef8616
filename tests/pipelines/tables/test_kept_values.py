"""Dictionaries of values beside a log: those of its rows, in the same bytes however it was ingested."""

from itertools import pairwise

import numpy as np
import pytest

import raw_logs
from ctr.data.ids.arrow import string_ids
from ctr.data.inspection import inspect_log
from ctr.data.inspection_text import inspection_text
from ctr.data.kept_values import FOLDER, read_values
from ctr.data.log import read_manifests
from ctr.io.errors import InputError
from log_files import ids_of_rows
from raw_logs import ingest

NOW = 2_000_000_000_000_000
TAGS = {"kind": "category", "source": "tags", "multivalent": True, "separator": "|"}
FEATURES = [
    {"name": "user", "kind": "category", "source": "user"},
    {"name": "code", "kind": "category", "source": "code", "buckets": 3},
    {"name": "price", "kind": "number", "source": "price", "boundaries": [1.0, 10.0, 100.0]},
    {"name": "color", "kind": "category", "source": "color", "vocabulary": ["red", "green"]},
    {"name": "labels", **TAGS, "max_values": 2, "keep": "last"},
    {"name": "words", "kind": "text", "source": "tags", "words": [1, 2]},
    {"name": "user_price", "kind": "cross", "of": ["user", "price"]},
    {"name": "color_labels", "kind": "cross", "of": ["color", "labels"]},
]
KEPT = ("user", "code", "labels", "words", "user_price", "color_labels")


def make_mapping(**changes):
    content = {"features": FEATURES, "derive": {}, "joins": None, "keep_values": KEPT, "query": None}
    return raw_logs.make_mapping(**{**content, **changes})


def values_of(row):
    """What the ids of a raw row stand for, in plain Python."""
    words = (row["tags"] or "").split("|") if row["tags"] else []
    ranges = ["below 1", "1 to 10", "10 to 100", "100 and more"]
    price = row["price"] and ranges[sum(float(row["price"]) >= edge for edge in (1, 10, 100))]
    return {
        "user": [row["user"]],
        "code": [row["code"]] if row["code"] else [],
        "labels": words[-2:],
        "words": words + [" ".join(pair) for pair in pairwise(words)],
        "user_price": [f"{row['user']} x {price or 'missing'}"],
        "color_labels": [f"{row['color'] or 'missing'} x {label}" for label in words[-2:]],
    }


ROWS = sorted(raw_logs.make_rows(120, seed=3), key=lambda row: int(row["time"]))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("in")
    parts = {"one": ROWS[:70], "two": ROWS[70:]}
    return [raw_logs.write_rows(folder, rows, name=name) for name, rows in parts.items()]


@pytest.fixture(scope="module")
def log(given, tmp_path_factory):
    out = tmp_path_factory.mktemp("log") / "log"
    ingest(make_mapping(), given, out, now_us=NOW)
    return out


def values_in(log, name):
    """The values of a feature that are kept of the ids in a log."""
    wanted = {name: {one for found in ids_of_rows(log).values() for one in found[name]}}
    return read_values(log, wanted)[name]


def test_values_are_those_of_the_rows(log):
    ids = ids_of_rows(log)
    for name in KEPT:
        kept = values_in(log, name)
        assert set(kept) == {one for found in ids.values() for one in found[name]} != set()
        # Of two ids three values share one: it has the smallest of all.
        smallest: dict[int, str] = {}
        for row in ROWS:
            for one, value in zip(ids[int(row["id"])][name], values_of(row)[name], strict=True):
                smallest[one] = min(value, smallest.get(one, value))
        assert kept == smallest
        found = [[kept[one] for one in ids[int(row["id"])][name]] for row in ROWS]
        assert name == "code" or found == [values_of(row)[name] for row in ROWS]
    assert len({value for row in ROWS for value in values_of(row)["code"]}) > 2 == len(values_in(log, "code"))
    # By their fingerprints, made in another way; and ids that no row has.
    wanted = dict(zip(string_ids(np.array(["3", "7"])).tolist(), ["3", "7"], strict=True))
    assert read_values(log, {"user": [*wanted, 0, 5, -1], "price": [1, 2]}) == {"user": wanted, "price": {}}


@pytest.mark.parametrize("more", [0, 1])
def test_a_feature_with_more_values_in_a_partition_than_a_dictionary_holds_has_none_there(
    tmp_path, more, monkeypatch
):
    monkeypatch.setattr("ctr.data.kept_values.MOST_VALUES", 1000)
    few = 1000 + more
    rows = [{"id": n, "time": 1_600_000_000 + n % 50, "user": f"u{n}", "color": f"c{n}"} for n in range(few)]
    rows += [{"id": few + n, "time": 1_700_000_000, "user": f"u{n}", "color": ""} for n in range(2)]
    for row in rows:
        row |= {"code": row["id"] % 3, "price": "", "tags": "", "rating": 4, "weight": 1, "shop": ""}
    path = raw_logs.write_rows(tmp_path, rows)
    hashed = {"name": "hashed", "kind": "category", "source": "color", "buckets": 100}
    crossed = {"name": "crossed", "kind": "cross", "of": ["user", "code"], "buckets": 100}
    features = [FEATURES[0], FEATURES[1], hashed, crossed]
    names = ["user", "code", "hashed", "crossed"]
    ingest(make_mapping(features=features, keep_values=names), [path], tmp_path / "log", now_us=NOW)
    first, last = read_manifests(tmp_path / "log")
    assert first.rows == few and last.rows == 2
    assert values_in(tmp_path / "log", "code")
    # Values are counted, not the ids that they share.
    assert len(values_in(tmp_path / "log", "user")) == (2 if more else few)
    assert len(values_in(tmp_path / "log", "hashed")) == (0 if more else 99)
    assert len(values_in(tmp_path / "log", "crossed")) == (2 if more else 99)


def test_inspection_shows_growing_ids_with_their_values_or_fingerprints(given, log, tmp_path):
    ingest(make_mapping(keep_values=[]), given, tmp_path / "log", now_us=NOW)
    users = {row["user"] for row in ROWS}
    for folder, is_kept in ((log, True), (tmp_path / "log", False)):
        summary = inspect_log(folder)
        user = next(one for one in summary.features if one.name == "user")
        assert (user.buckets, user.ids, user.exact) == (None, len(users), True)
        assert (user.shared, user.values) == (None, None)
        lines = map(str.split, inspection_text(summary).splitlines())
        [row, tops] = [words for words in lines if words[:1] == ["user"]]
        assert row[4:6] == ["growing", str(len(users))]
        if is_kept:
            assert {top.value for top in user.top} <= users and tops[1].removesuffix(":") in users
        else:
            assert {top.value for top in user.top} == {None}
            assert len(tops[1]) == len("0x0123456789abcdef:") and tops[1].startswith("0x")


def test_shards_are_the_same_without_values_and_a_log_keeps_the_features_it_began_with(given, log, tmp_path):
    ingest(make_mapping(keep_values=[]), given[:1], tmp_path / "log", append=True, now_us=NOW)
    with pytest.raises(InputError, match="keep_values: none, and the mapping now has keep_values: code"):
        ingest(make_mapping(), given[1:], tmp_path / "log", now_us=NOW)
    ingest(make_mapping(keep_values=[]), given[1:], tmp_path / "log", now_us=NOW)
    without, wanted = raw_logs.log_bytes(tmp_path / "log"), raw_logs.log_bytes(log)
    shards = [name for name in wanted if name.startswith("shards/")]
    assert shards and {name: without.get(name) for name in shards} == {name: wanted[name] for name in shards}
    assert not any(name.startswith(FOLDER) for name in without)
    assert values_in(tmp_path / "log", "user") == {}


def test_features_without_raw_values_are_refused():
    allowed = f"allowed: {', '.join(KEPT)}$"
    for names, message in (
        (["price"], f"keep_values names price, whose ids say by themselves what they stand for.*{allowed}"),
        (["user", "user"], "keep_values names user twice"),
        (["nothing"], f"nothing, which is not a feature; {allowed}"),
        (["user", 3], "keep_values"),
    ):
        with pytest.raises(InputError, match=message):
            make_mapping(keep_values=names)
