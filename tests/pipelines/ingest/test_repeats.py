"""Rows that come again are recognized whatever their file is called, and times that are unlikely are named."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raw_logs
from ctr.data.mapping import Mapping
from ctr.data.shards import pack_ids
from ctr.pipelines.ingest.repeats import Repeats, hash_rows
from ctr.pipelines.ingest.run import ingest

NOW = 1_700_000_000_000_000


BUCKETED_AND_GROWING = pytest.mark.parametrize(
    "features", [raw_logs.FEATURES, raw_logs.GROWING_FEATURES], ids=["bucketed", "growing"]
)


@BUCKETED_AND_GROWING
def test_a_renamed_copy_in_one_command(tmp_path, features):
    rows = raw_logs.make_rows(300, seed=1)
    mapping = raw_logs.make_mapping(example_id=None, query=None, features=features)
    paths = [raw_logs.write_rows(tmp_path / "in", rows, name=name) for name in ("day", "day (1)")]
    single = ingest(mapping, paths[:1], tmp_path / "single", now_us=NOW)
    assert (single.repeated_rows, single.repeated_share, single.warnings) == (0, 0.0, [])
    double = ingest(mapping, paths, tmp_path / "double", now_us=NOW)
    assert (double.rows, double.examples, double.repeated_rows, double.repeated_share) == (600, 600, 300, 0.5)
    (warning,) = double.warnings
    assert warning.startswith(
        "300 of 600 rows (50%) were seen before: day (1).csv repeats 300 rows of day.csv"
    )
    assert f"\nwarning: {warning}" in double.as_text()


@BUCKETED_AND_GROWING
@pytest.mark.parametrize("form", ["csv.gz", "jsonl"])
def test_a_copy_in_another_form_that_is_added_later(tmp_path, form, features):
    # Rows of which one ends a block, which the hash of one in a thousand does.
    rows = raw_logs.make_rows(300, seed=2 if features is raw_logs.FEATURES else 7)
    kind = form.partition(".")[0]
    first = raw_logs.write_rows(tmp_path / "in", rows, "csv", name="a")
    plain = {"example_id": None, "query": None, "partition": "7d", "features": features}
    ingest(raw_logs.make_mapping(**plain), [first], tmp_path / "log", append=True, now_us=NOW)
    copy = raw_logs.write_rows(tmp_path / "in", [*rows, *raw_logs.make_rows(100, seed=3)], form, name="b")
    mapping = raw_logs.make_mapping(**plain, input={"type": kind})
    result = ingest(mapping, [copy], tmp_path / "log", append=True, now_us=NOW)
    # What stands in one block with new rows is not recognized.
    assert 200 <= result.repeated_rows <= 300
    assert result.warnings[0].endswith("unless the repetition is intended")
    assert "b." + form + " repeats" in result.warnings[0]
    assert result.held_rows == 700


def plain_features(count: int, **buckets: int | None) -> Mapping:
    """Of ``count`` categories and a multivalent one, with some buckets or with ids that grow."""
    features = [
        {"kind": "category", "name": f"c{at}", "source": "user", "multivalent": at == count, **buckets}
        for at in range(count + 1)
    ]
    return raw_logs.make_mapping(example_id=None, query=None, features=features)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 3), st.booleans())
def test_a_row_that_differs_in_a_bit_of_an_id_has_another_hash(data, count, growing):
    mapping = plain_features(count, buckets=None if growing else 2**31 - 1)
    schema = mapping.feature_schema
    low = -(2**63) if growing else 0
    high = 2**63 - 1 if growing else 2**31 - 2
    ids = data.draw(st.lists(st.integers(low, high), min_size=count + 2, max_size=count + 2))
    row, place = np.array(ids, schema.id_type), data.draw(st.integers(0, count + 1))
    other = row.copy()
    other[place] ^= schema.id_type.type(1) << data.draw(st.integers(0, 62 if growing else 30))

    def table(rows):
        columns = {name: np.zeros(len(rows), np.int64) for name in ("label", "train_weight", "query_time")}
        if count:
            columns["ids"] = pack_ids(np.stack(rows)[:, :count])
        lists = [one[count:].tolist() for one in rows]
        columns[f"c{count}"] = pa.array(lists, pa.list_(pa.from_numpy_dtype(schema.id_type)))
        return pa.table(columns)

    first, changed, again = hash_rows(mapping, table([row, other, row]))
    assert first == again != changed
    # The same in any cut of the rows.
    assert hash_rows(mapping, table([row, other, row]).slice(1)).tolist() == [changed, again]


def test_hashes_of_bucketed_ids_are_those_that_earlier_ingests_remember():
    mapping = plain_features(2, buckets=100)
    ids = pack_ids(np.array([[1, 2], [3, 99]], np.int32))
    table = pa.table(
        {
            **{"label": [0, 1], "train_weight": pa.array([1, 0.5], pa.float32()), "query_time": [7, 8]},
            **{"ids": ids, "c2": pa.array([[1, 5], []], pa.list_(pa.int32()))},
        }
    )
    assert hash_rows(mapping, table).tolist() == [18197815969206509959, 13950089570427028828]


def test_files_of_the_same_length_and_columns_are_no_copies(tmp_path):
    mapping = raw_logs.make_mapping(example_id=None, query=None)
    paths = [
        raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(300, seed=n), name=f"{n}") for n in range(3)
    ]
    assert ingest(mapping, paths, tmp_path / "log", now_us=NOW).repeated_rows == 0


def test_rows_without_a_time_are_recognized(tmp_path):
    rows = raw_logs.make_rows(300, seed=4)
    order = {"row_order": {"start": "2020-01-01T00:00:00Z", "step_us": 1_000_000}}
    mapping = raw_logs.make_mapping(time=order, query=None, example_id=None, derive={
        "hour": {"from": "rating"}, "zone": {"from": "code", "prefix": 2}})  # fmt: skip
    paths = [raw_logs.write_rows(tmp_path / "in", rows, name=name) for name in "ab"]
    assert ingest(mapping, paths, tmp_path / "log", now_us=NOW).repeated_rows == 300


def test_copies_are_found_wherever_they_begin_and_however_rows_come():
    hashes = np.random.default_rng(1).integers(0, 2**63, 50_000).astype(np.uint64)
    for step in (50_000, 777):
        repeats = Repeats({}, 5)
        shifted = np.concatenate([hashes[40_000:40_500], hashes[3_000:30_000]])
        for file, rows in enumerate((hashes, shifted)):
            for first in range(0, len(rows), step):
                repeats.add(file, rows[first : first + step])
        repeats.finish()
        ((pair, count),) = repeats.repeated.items()
        assert pair == (6, 5)
        assert 20_000 < count <= 27_500
        assert sum(number == 5 for _, number in repeats.new) > 20


@pytest.mark.parametrize(
    ("unit", "warning"),
    [
        ("ms", "40 of 40 times lie before the year 1990, the earliest at 1970-01-19T"),
        ("s", None),
    ],
)
def test_seconds_that_are_read_as_milliseconds(tmp_path, unit, warning):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(40))
    mapping = raw_logs.make_mapping(time={"column": "time", "unit": unit}, query=None)
    result = ingest(mapping, [path], tmp_path / "log", now_us=NOW)
    assert [found[: len(warning or "")] for found in result.warnings] == ([warning] if warning else [])
    assert not warning or result.warnings[0].endswith("check time.unit or time.format of the mapping")


def test_times_in_the_future(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(40))
    result = ingest(raw_logs.make_mapping(query=None), [path], tmp_path / "log", now_us=1_600_000_000_000_000)
    (warning,) = result.warnings
    assert warning.startswith("40 of 40 times lie in the future, the latest at 2020-09-13T")
