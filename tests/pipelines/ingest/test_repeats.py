"""Rows that come again are recognized whatever their file is called, and times that are unlikely are named."""

import numpy as np
import pytest

import raw_logs
from ctr.pipelines.ingest.repeats import Repeats
from ctr.pipelines.ingest.run import ingest

NOW = 1_700_000_000_000_000


def test_a_renamed_copy_in_one_command(tmp_path):
    rows = raw_logs.make_rows(300, seed=1)
    mapping = raw_logs.make_mapping(example_id=None, query=None)
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


@pytest.mark.parametrize("form", ["csv.gz", "jsonl"])
def test_a_copy_in_another_form_that_is_added_later(tmp_path, form):
    rows = raw_logs.make_rows(300, seed=2)
    kind = form.partition(".")[0]
    first = raw_logs.write_rows(tmp_path / "in", rows, "csv", name="a")
    plain = {"example_id": None, "query": None, "partition": "7d"}
    ingest(raw_logs.make_mapping(**plain), [first], tmp_path / "log", append=True, now_us=NOW)
    copy = raw_logs.write_rows(tmp_path / "in", [*rows, *raw_logs.make_rows(100, seed=3)], form, name="b")
    mapping = raw_logs.make_mapping(**plain, input={"type": kind})
    result = ingest(mapping, [copy], tmp_path / "log", append=True, now_us=NOW)
    # What stands in one block with new rows is not recognized.
    assert 200 <= result.repeated_rows <= 300
    assert result.warnings[0].endswith("unless the repetition is intended")
    assert "b." + form + " repeats" in result.warnings[0]
    assert result.held_rows == 700


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
        ("ms", "40 of 40 times lie before the year 2000, the earliest at 1970-01-19T"),
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
