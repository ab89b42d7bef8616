"""Rows that come again are recognized whatever their file is called, and times that are unlikely are named."""

import re

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
PLAIN = {"example_id": None, "query": None}


def write(folder, seed, *names, form="csv", rows=300):
    return [
        raw_logs.write_rows(folder / "in", raw_logs.make_rows(rows, seed=seed), form, name=name)
        for name in names
    ]


def test_a_renamed_copy_in_one_command(tmp_path):
    mapping = raw_logs.make_mapping(**PLAIN, features=raw_logs.GROWING_FEATURES)
    paths = write(tmp_path, 1, "day", "day (1)")
    single = ingest(mapping, paths[:1], tmp_path / "single", now_us=NOW)
    assert (single.repeated_rows, single.repeated_share, raw_logs.other_warnings(single)) == (0, 0.0, [])
    double = ingest(mapping, paths, tmp_path / "double", now_us=NOW)
    assert (double.rows, double.examples, double.repeated_rows, double.repeated_share) == (600, 600, 300, 0.5)
    (warning,) = raw_logs.other_warnings(double)
    told = "300 of 600 rows (50%) were seen before: day (1).csv repeats 300 rows of day.csv"
    assert warning.startswith(told) and f"\nwarning: {warning}" in double.as_text()
    # Files of the same length and columns are no copies.
    others = [*paths[:1], *write(tmp_path, 5, "other"), *write(tmp_path, 6, "third")]
    assert ingest(mapping, others, tmp_path / "others", now_us=NOW).repeated_rows == 0


@pytest.mark.parametrize(
    ("form", "features", "seed"),
    # Of either seed one of the rows ends a block, which the hash of one in a thousand does.
    [("csv.gz", raw_logs.FEATURES, 2), ("jsonl", raw_logs.GROWING_FEATURES, 7)],
    ids=["bucketed", "growing"],
)
def test_a_copy_in_another_form_that_is_added_later(tmp_path, form, features, seed):
    rows = raw_logs.make_rows(300, seed=seed)
    plain = {**PLAIN, "partition": "7d", "features": features}
    (first,) = write(tmp_path, seed, "a")
    ingest(raw_logs.make_mapping(**plain), [first], tmp_path / "log", append=True, now_us=NOW)
    copy = raw_logs.write_rows(tmp_path / "in", [*rows, *raw_logs.make_rows(100, seed=3)], form, name="b")
    mapping = raw_logs.make_mapping(**plain, input={"type": form.partition(".")[0]})
    result = ingest(mapping, [copy], tmp_path / "log", append=True, now_us=NOW)
    # What stands in one block with new rows is not recognized.
    assert 200 <= result.repeated_rows <= 300
    assert f"b.{form} repeats" in raw_logs.other_warnings(result)[0]
    assert raw_logs.other_warnings(result)[0].endswith("unless the repetition is intended")
    assert result.held_rows == 700


def plain_features(count: int, **buckets: int | None) -> Mapping:
    """Of ``count`` categories and a multivalent one, with some buckets or with ids that grow."""
    features = [
        {"kind": "category", "name": f"c{at}", "source": "user", "multivalent": at == count, **buckets}
        for at in range(count + 1)
    ]
    return raw_logs.make_mapping(example_id=None, query=None, features=features)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(0, 3), st.booleans())
def test_a_row_that_differs_in_a_bit_of_an_id_has_another_hash(data, count, growing):
    mapping = plain_features(count, buckets=None if growing else 2**31 - 1)
    schema = mapping.feature_schema
    low, high = (-(2**63), 2**63 - 1) if growing else (0, 2**31 - 2)
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
    columns = {"label": [0, 1], "train_weight": pa.array([1, 0.5], pa.float32()), "query_time": [7, 8]}
    columns |= {"ids": pack_ids(np.array([[1, 2], [3, 99]], np.int32))}
    columns |= {"c2": pa.array([[1, 5], []], pa.list_(pa.int32()))}
    found = hash_rows(plain_features(2, buckets=100), pa.table(columns))
    assert found.tolist() == [18197815969206509959, 13950089570427028828]


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
    ("unit", "now", "warning"),
    [
        ("s", NOW, None),
        (
            "ms",
            NOW,
            r"40 of 40 times lie before the year 1990, the earliest at 1970-01-19T.*check time.unit or",
        ),
        ("s", 1_600_000_000_000_000, "40 of 40 times lie in the future, the latest at 2020-09-13T"),
    ],
)
def test_unlikely_times_are_named(tmp_path, unit, now, warning):
    mapping = raw_logs.make_mapping(time={"column": "time", "unit": unit}, query=None)
    result = ingest(mapping, write(tmp_path, 0, "rows", rows=40), tmp_path / "log", now_us=now)
    assert len(raw_logs.other_warnings(result)) == (warning is not None)
    assert all(re.match(warning, one) for one in raw_logs.other_warnings(result))


HOURS = [
    f"2025-10-26T{hour:02d}:{minute:02d}:00" for hour in (0, 1, 2, 2, 3, 4) for minute in range(0, 60, 10)
]


@pytest.mark.parametrize(
    ("texts", "warned"),
    [
        (HOURS, True),
        ([text.replace("T", " ") for text in HOURS], True),
        (sorted(HOURS), False),
        ([f"{text}Z" for text in HOURS], False),
        ([f"{text}+02:00" for text in HOURS], False),
        (HOURS * 2, False),
        (HOURS + HOURS[:3], False),
    ],
    ids=["local", "blank", "sorted", "utc", "offset", "unordered", "repeated"],
)
@pytest.mark.parametrize("block_bytes", [1 << 20, 200])
def test_local_times_that_go_back_by_an_hour_are_named(texts, warned, block_bytes, tmp_path):
    """In a file, wherever it is cut; the rows of two hours share one time."""
    rows = [{"time": text, "user": number, "label": 0} for number, text in enumerate(texts)]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / "rows.csv").write_text("".join(f"{line}\n" for line in lines))
    mapping = raw_logs.make_mapping(
        input={"type": "csv"},
        time={"column": "time", "format": "iso8601"},
        label={"column": "label"},
        **dict.fromkeys(("joins", "query", "example_id", "weight", "derive")),
        features=[{"name": "user", "kind": "category", "source": "user"}],
    )
    result = ingest(mapping, [tmp_path / "rows.csv"], tmp_path / "log", now_us=2**62, block_bytes=block_bytes)
    found = [one for one in result.warnings if "daylight saving" in one]
    assert len(found) == warned
    assert all("almost an hour, at 2025-10-26T02:00:00Z" in one for one in found)
