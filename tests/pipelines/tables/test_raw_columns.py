"""Derived columns and numeric categories: what ingestion makes of a row is what the exported graph makes of it."""

import itertools
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.ids.graph import transform_tensors
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.tables.examples import make_examples
from ctr.pipelines.tables.input_files import Chunk


def category(source, **more):
    return {"name": f"f_{source}", "kind": "category", "source": source, "buckets": 2**31 - 1, **more}


DERIVE = {
    "hour": {"from": "time", "part": "hour"},
    "weekday": {"from": "time", "part": "weekday"},
    "half_day": {"from": "time", "every": "12h"},
}
CONTENT = {
    "input": {"type": "csv"},
    "time": {"column": "shown", "unit": "us"},
    "label": "click",
    "partition": "1d",
}


def make_mapping(**changes):
    return parse_model(Mapping, {**CONTENT, **changes}, "test")


def ingested(columns, times, mapping):
    """By feature its ids of the rows that were not rejected, and the numbers of these rows."""
    columns = {**columns, "shown": pa.array(times, pa.int64()), "click": pa.array([1] * len(times))}
    packed, _ = make_examples(mapping, 0, Chunk(0, pa.table(columns), np.arange(len(times)), []), (), 0)
    schema = mapping.feature_schema
    width = len(schema.single_valued)
    matrix = np.frombuffer(b"".join(packed.column("ids").to_pylist()), schema.id_type).reshape(-1, width)
    ids = dict(zip(schema.single_valued, matrix.T.tolist(), strict=True))
    ids |= {name: packed.column(name).to_pylist() for name in schema.multivalent}
    return ids, packed.column("@row").to_pylist()


DAYS = "1970-01-02 2000-02-29 2000-03-01 2019-11-12 2023-02-28 2024-02-29 2024-12-31 2100-03-01 9999-12-31"
MIDNIGHTS = [0, *(int(datetime.fromisoformat(f"{day}T00Z").timestamp()) * 1_000_000 for day in DAYS.split())]
NOON = 43_200_000_000
EDGES = [*MIDNIGHTS, *(midnight + NOON for midnight in MIDNIGHTS)]


def test_times_around_midnight_and_leap_days():
    """Against Python's calendar."""
    times = sorted({max(0, edge + step) for edge, step in itertools.product(EDGES, (-1, 0, 1))})
    moments = [datetime.fromtimestamp(time // 1_000_000, UTC) for time in times]
    halves = sorted({str(time // NOON) for time in times})
    words = {"hour": [str(n) for n in range(24)], "weekday": [str(n) for n in range(7)], "half_day": halves}
    features = [{"name": n, "kind": "category", "source": n, "vocabulary": own} for n, own in words.items()]
    mapping = make_mapping(derive={name: DERIVE[name] for name in words}, features=features)
    expected = {
        "hour": [1 + moment.hour for moment in moments],
        "weekday": [1 + moment.weekday() for moment in moments],
        "half_day": [1 + halves.index(str(time // NOON)) for time in times],
    }
    assert ingested({}, times, mapping)[0] == expected
    packed = transform_tensors(mapping.feature_schema, {TIME_COLUMN: tf.constant(times, tf.int64)})
    assert {name: ids.numpy().tolist() for name, ids in packed.items()} == expected


@pytest.mark.parametrize(
    ("cast", "same", "refused"),
    [
        ("integer", [["12", "12.0", "012", "+12", " 12. "], ["000", "-0", "0.0"]], ["12.5", "1e3", "x"]),
        (
            "number",
            [["12.5", "12.50", "+012.500"], ["12", "12.0"], ["-0.0", "0"], ["-12.5"]],
            ["1e3", "1.2.3"],
        ),
        # What was written.
        ("text", [["2"], ["2.0"], ["2.00"], ["02"]], []),
    ],
)
def test_casts(cast, same, refused):
    """Texts of one list have one id, other lists others; in the graph what is refused is missing."""
    texts = [*itertools.chain(*same), *refused, ""]
    features = [category("d")]
    mapping = make_mapping(derive={"d": {"from": "c", "cast": cast}}, features=features)
    ids, kept = ingested({"c": pa.array(texts)}, [0] * len(texts), mapping)
    found = dict(zip((texts[row] for row in kept), ids["f_d"], strict=True))
    assert set(texts) - set(found) == set(refused) and found[""] == 0
    assert [len({found[text] for text in group}) for group in same] == [1] * len(same)
    assert len({found[group[0]] for group in same}) == len(same)
    graph = transform_tensors(mapping.feature_schema, {"c": tf.constant(texts)})["f_d"].numpy().tolist()
    assert graph == [found.get(text, 0) for text in texts]


def test_lists_have_no_cast():
    features = [{"name": "f", "kind": "category", "source": "d", "multivalent": True}]
    mapping = make_mapping(derive={"d": {"from": "c", "cast": "integer"}}, features=features)
    with pytest.raises(InputError, match=r"derive.d: the column c is of type list<.*no cast to integer"):
        ingested({"c": pa.array([["1"]])}, [0], mapping)


@pytest.mark.parametrize("cast", [None, "integer"])
def test_whole_numbers_beside_a_missing_one_are_one_category_in_every_form(cast):
    """As pandas writes them: 12.0 in CSV and JSON, and floats in Parquet."""
    whole = [12, None, 7, 0, -3]
    columns = [
        pa.array(whole, kind) for kind in (pa.int64(), pa.float64(), pa.float32(), pa.decimal128(10, 2))
    ]
    columns += [
        pa.array([None if value is None else spelling.format(value) for value in whole])
        for spelling in ("{}", "{}.0", "{}.000")
    ]
    derive = {"d": {"from": "c", "cast": cast}} if cast else {}
    mapping = make_mapping(derive=derive, features=[category("d" if cast else "c")])
    ids = [ingested({"c": column}, [0] * 5, mapping)[0] for column in columns]
    assert len(set(*ids[0].values())) == 5 and all(found == ids[0] for found in ids), ids
