"""What an ingest says of values that share an id."""

import json

import numpy as np
import pyarrow as pa
import pytest

import event_files
import raw_logs
from ctr.cli import main
from ctr.config import parse_model
from ctr.data.ids.arrow import string_ids
from ctr.data.inspection import inspect_log, shared_buckets
from ctr.data.inspection_text import inspection_text
from ctr.data.log import read_manifests
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids
from ctr.pipelines import collisions
from ctr.pipelines.collisions import Collisions
from ctr.pipelines.ingest.run import ingest
from log_files import rows_of

NOW = 2_000_000_000_000_000
FEATURES = [
    {"name": "person", "kind": "category", "source": "user", "buckets": 300},
    {"name": "many", "kind": "category", "source": "user", "buckets": 500_000},
    {"name": "own", "kind": "category", "source": "user"},
    {"name": "labels", "kind": "text", "source": "tags", "buckets": 3},
    {"name": "color", "kind": "category", "source": "color", "vocabulary": ["red"]},
]


@pytest.fixture(scope="module")
def rows():
    rows = raw_logs.make_rows(400, seed=2)
    for place, row in enumerate(rows):
        row["user"] = f"person {place % 200}"
    return rows


@pytest.fixture(scope="module")
def given(rows, tmp_path_factory):
    return raw_logs.write_rows(tmp_path_factory.mktemp("in"), rows)


def make_mapping(**changes):
    content = {"features": FEATURES, "derive": {}, "joins": None, "query": None}
    return raw_logs.make_mapping(**{**content, **changes})


# The second one estimates what it does not count.
MARKED = pytest.mark.parametrize("marked", [collisions._MARKED, 0])


@MARKED
def test_the_share_is_about_that_of_the_values(rows, given, tmp_path, monkeypatch, marked):
    monkeypatch.setattr(collisions, "_MARKED", marked)
    result = ingest(make_mapping(), [given], tmp_path / "log", now_us=NOW)
    values = np.array(sorted({row["user"] for row in rows}))
    buckets = string_ids(values).view(np.uint64) % np.uint64(299)
    _, place, counts = np.unique(buckets, return_inverse=True, return_counts=True)
    shared = float((counts[place] > 1).mean())
    assert result.shared_ids["person"] == pytest.approx(shared, abs=0.08)
    assert result.shared_ids["many"] < 0.001
    assert set(result.shared_ids) == {"person", "many", "labels"}
    [warning] = result.warnings
    assert warning.startswith(
        "hash collisions: in 2 features more than 10% of the values share a bucket with another one: "
    )
    # Both buckets of the labels are in use: there are two of them or more.
    assert "labels 50.0% (" in warning and f"person {100 * result.shared_ids['person']:.1f}% (" in warning
    assert warning.endswith("leave buckets out of the mapping, and each value has an id of its own")


@MARKED
def test_missing_values_are_no_ids_that_collide(monkeypatch, marked):
    monkeypatch.setattr(collisions, "_MARKED", marked)
    feature = {"name": "user", "kind": "category", "source": "user", "buckets": 3}
    found = Collisions(parse_model(Schema, {"features": [feature]}, "test"))
    found.add(pa.table({"ids": pack_ids(np.array([[0], [1], [1]], np.int32))}))
    one = found.shares()["user"]
    found.add(pa.table({"ids": pack_ids(np.array([[0], [2]], np.int32))}))
    # Both of the buckets that values have are in use: there may be any number of values.
    assert one == pytest.approx(shared_buckets(1, 2)[1]) and found.shares()["user"] == pytest.approx(0.5)


@pytest.mark.parametrize("kept", [[], ["own"]])
def test_inspection_shows_growing_ids_with_their_values_or_fingerprints(rows, given, tmp_path, kept):
    ingest(make_mapping(keep_values=kept), [given], tmp_path / "log", now_us=NOW)
    summary = inspect_log(tmp_path / "log")
    own = next(one for one in summary.features if one.name == "own")
    assert (own.buckets, own.ids, own.exact, own.shared, own.values) == (None, 200, True, None, None)
    lines = [line.split() for line in inspection_text(summary).splitlines()]
    [row, tops] = [words for words in lines if words[:1] == ["own"]]
    assert row[4:6] == ["growing", "200"]
    if kept:
        assert own.top[0].value in {row["user"] for row in rows} and tops[1] == "person"
    else:
        assert all(top.value is None for top in own.top)
        assert len(tops[1]) == len("0x0123456789abcdef:") and tops[1].startswith("0x")


@MARKED
def test_parts_that_are_merged_know_what_the_whole_knows(given, tmp_path, monkeypatch, marked):
    monkeypatch.setattr(collisions, "_MARKED", marked)
    mapping = make_mapping()
    ingest(mapping, [given], tmp_path / "log", now_us=NOW)
    rows = pa.concat_tables(rows_of(tmp_path / "log", one) for one in read_manifests(tmp_path / "log"))
    whole = Collisions(mapping.feature_schema)
    whole.add(rows)
    merged = Collisions(mapping.feature_schema)
    monkeypatch.setattr(collisions, "_BLOCK_ROWS", 32)
    for begin in range(0, rows.num_rows, 70):
        part = Collisions(mapping.feature_schema)
        part.add(rows.slice(begin, 70))
        merged.merge(part.to_arrays())
    assert merged.shares() == whole.shares() != {}
    assert list(merged.warnings()) == list(whole.warnings())


@pytest.mark.parametrize("more", [[], ["--follow", "--drain"]])
def test_the_command_for_events_warns_or_names_the_command_that_does(tmp_path, capsys, more):
    events, log = event_files.draw_events(600), tmp_path / "log"
    for event in events["impressions"]:
        event["color"] = f"color {event['impression_id'] % 200}"
    event_files.write_events(tmp_path / "events", events)
    buckets = {"person": {"buckets": 300}, "many": {"buckets": 500_000}, "own": {}}
    features = [{"name": n, "kind": "category", "source": "color", **own} for n, own in buckets.items()]
    (tmp_path / "mapping.yaml").write_text(json.dumps(event_files.content(features=features)))
    arguments = ["ingest", "events", str(tmp_path / "events"), "--mapping", str(tmp_path / "mapping.yaml")]
    assert main([*arguments, "--out", str(log), "--max-reject-share", "1", *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    if more:
        assert f"ctr inspect {log} estimates how many values share an id" in lines
    else:
        [person] = [one for one in inspect_log(log).features if one.name == "person"]
        told = "hash collisions: in 1 feature more than 10% of the values share a bucket with another one: person "
        warning = f"warning: {told}{person.shared:.1%} ("
        assert any(line.startswith(warning) for line in lines) and person.shared > 0.2
