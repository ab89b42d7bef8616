"""Raw values that are kept beside a log: those of its rows, in the same bytes however it was ingested."""

import json
from itertools import pairwise

import numpy as np
import pytest

import raw_logs
from ctr.cli import main
from ctr.data.ids.arrow import string_ids
from ctr.data.kept_values import FOLDER, name_ids, read_values, values_path
from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import keeping_values, load_format
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest
from log_files import ids_of_rows

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
    content = {"features": FEATURES, "derive": {}, "joins": None, "keep_values": "all", "query": None}
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
    return read_values(log, name, {one for found in ids_of_rows(log).values() for one in found[name]})


def test_values_are_those_of_the_rows(log):
    ids = ids_of_rows(log)
    for name in KEPT:
        kept = values_in(log, name)
        assert set(kept) == {one for found in ids.values() for one in found[name]} != set()
        for row in ROWS:
            values = [kept[one] for one in ids[int(row["id"])][name]]
            if name == "code":
                # Of two ids three values share one.
                values = [value for shown in values for value in shown.split(" | ")]
                assert set(values_of(row)[name]) <= set(values)
            else:
                assert values == values_of(row)[name], name
    assert any(" | " in shown for shown in read_values(log, "code", {1, 2}).values())
    # By their fingerprints, made in another way; and ids that no row has.
    wanted = dict(zip(string_ids(np.array(["3", "7"])).tolist(), ["3", "7"], strict=True))
    assert read_values(log, "user", [*wanted, 0, 5, -1]) == wanted
    assert read_values(log, "price", [1, 2]) == {}
    name = name_ids(read_schema(log), log, {"user": [0, 5], "price": [1]})
    assert (name("user", 0), name("user", 5), name("price", 1)) == ("missing", None, "below 1")


@pytest.mark.parametrize("query", ["none", "session"])
def test_files_one_after_another_give_the_bytes_of_one_ingest(given, tmp_path, query):
    mapping = make_mapping(query=raw_logs.QUERIES[query])
    ingest(mapping, given, tmp_path / "whole", now_us=NOW)
    for path in given:
        ingest(mapping, [path], tmp_path / "log", append=path != given[-1], now_us=NOW)
    found, wanted = raw_logs.log_bytes(tmp_path / "log"), raw_logs.log_bytes(tmp_path / "whole")
    assert found == wanted
    assert sum(name.startswith(f"{FOLDER}/") for name in wanted) == len(read_manifests(tmp_path / "log"))


def test_the_log_is_the_same_without_values(given, log, tmp_path):
    ingest(make_mapping(keep_values=[]), given, tmp_path / "log", now_us=NOW)
    without = raw_logs.log_bytes(tmp_path / "log")
    wanted = raw_logs.log_bytes(log)
    assert without == {name: content for name, content in wanted.items() if not name.startswith(FOLDER)}
    assert values_in(tmp_path / "log", "user") == {}


def test_rows_that_were_held_back_without_values_have_none(given, tmp_path):
    out = tmp_path / "log"
    ingest(make_mapping(keep_values=[], partition="7d"), given[:1], out, append=True, now_us=NOW)
    ingest(make_mapping(keep_values=["user", "labels"], partition="7d"), given[1:], out, now_us=NOW)
    for name in ("user", "labels"):
        late = {value for row in ROWS[70:] for value in values_of(row)[name]}
        assert set(values_in(out, name).values()) == late


def test_a_damaged_file_is_named(given, tmp_path):
    ingest(make_mapping(), given, tmp_path / "log", now_us=NOW)
    path = values_path(tmp_path / "log", read_manifests(tmp_path / "log")[0])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=f"{path.name}: damaged"):
        read_values(tmp_path / "log", "user", [1])


def test_the_command_keeps_them_for_any_mapping(given, log, tmp_path, capsys):
    content = raw_logs.base_content(features=FEATURES, derive={}, joins=[], query="none")
    (tmp_path / "mapping.yaml").write_text(json.dumps(content))
    arguments = ["ingest", "table", *map(str, given), "--mapping", str(tmp_path / "mapping.yaml")]
    assert main([*arguments, "--out", str(tmp_path / "log"), "--keep-values", "all"]) == 0
    assert raw_logs.log_bytes(tmp_path / "log") == raw_logs.log_bytes(log)
    assert main([*arguments, "--out", str(tmp_path / "few"), "--keep-values", "user, words"]) == 0
    assert values_in(tmp_path / "few", "user") == values_in(log, "user") != {}
    assert values_in(tmp_path / "few", "labels") == {}
    capsys.readouterr()
    assert main([*arguments, "--out", str(tmp_path / "none"), "--keep-values", "price"]) == 1
    assert "keep_values names price, whose ids say by themselves" in capsys.readouterr().err
    # Also for the formats of the package.
    assert keeping_values(load_format("movielens"), "all").kept_values


def test_features_without_raw_values_are_refused():
    allowed = f"allowed: all, or {', '.join(KEPT)}$"
    for names, message in (
        (["price"], f"keep_values names price, whose ids say by themselves what they stand for.*{allowed}"),
        (["color"], "keep_values names color, whose ids say"),
        (["user", "user"], "keep_values names user twice"),
        (["nothing"], f"nothing, which is not a feature; {allowed}"),
        ({"user_price": "all"}, r"keep_values: {'user_price': 'all'} is not allowed: use all, or a list of"),
        ("user_price", "keep_values: 'user_price' is not allowed: use all, or a list of features"),
        (["user", 3], "is not allowed: use all, or a list of features"),
    ):
        with pytest.raises(InputError, match=message):
            make_mapping(keep_values=names)
