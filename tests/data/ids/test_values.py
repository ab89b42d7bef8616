"""Ids of raw values are those that ingestion gives; values without one are refused."""

import pyarrow as pa
import pytest

from ctr.data.ids.tables import transform_table
from ctr.data.ids.values import feature_ids
from ctr.data.schema import Schema
from ctr.io.errors import InputError

SCHEMA = Schema.model_validate(
    {
        "features": [
            {"name": "site", "kind": "category", "source": "site", "buckets": 100_000},
            {"name": "grown", "kind": "category", "source": "site"},
            {"name": "small", "kind": "category", "source": "site", "buckets": 3},
            {"name": "known", "kind": "category", "source": "site", "vocabulary": ["a", "7", "true"]},
            {"name": "age", "kind": "number", "source": "age", "boundaries": [18, 30, 65.5]},
            {"name": "tags", "kind": "category", "source": "tags", "multivalent": True},
            {"name": "words", "kind": "text", "source": "site"},
            {"name": "cross", "kind": "cross", "of": ["site", "age"]},
            {"name": "long", "kind": "category", "source": "f", "vocabulary": [f"v{i}" for i in range(500)]},
        ]
    }
)


def ingested(name, column):
    """The ids that ``transform_table`` gives a column of the feature's source."""
    schema = SCHEMA.only([name])
    return transform_table(schema, pa.table({SCHEMA.by_name[name].source: column}))[0][:, 0].tolist()


@pytest.mark.parametrize("name", ["site", "known", "grown"])
def test_categories_have_the_ids_that_ingestion_gives(name):
    for values, kind in (
        (["a", "7", "", "true"], pa.string()),
        ([7, None], pa.int64()),
        ([True, None], pa.bool_()),
        ([7.0, None], pa.float64()),
        ([], pa.string()),
    ):
        ids = feature_ids(SCHEMA, name, values)
        assert ids.dtype == ("int64" if name == "grown" else "int32")
        assert ids.tolist() == ingested(name, pa.array(values, kind))


def test_only_buckets_make_different_values_share_an_id():
    assert len(set(feature_ids(SCHEMA, "grown", [f"s{i}" for i in range(1000)]).tolist())) == 1000
    with pytest.raises(InputError, match="feature grown: 7 and '7' have the same id"):
        feature_ids(SCHEMA, "grown", ["7", 7])


def test_numbers_stand_for_their_bucket():
    values = [-3, 18, 30.25, 1e9, None]
    assert feature_ids(SCHEMA, "age", values).tolist() == [1, 2, 3, 4, 0]
    assert ingested("age", pa.array(values)) == [1, 2, 3, 4, 0]
    assert feature_ids(SCHEMA, "age", [""]).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("sight", ["a"], "sight is not a feature of the log; allowed: site, grown, small, known, age, tags"),
        ("tags", ["a"], "feature tags is a multivalent category"),
        ("cross", ["a"], "feature cross is a cross"),
        ("age", [20, "old"], "feature age: 'old' is not a number"),
        ("known", ["a", "b"], "feature known: 'b' is not in its vocabulary; allowed: a, 7, true"),
        ("site", ["7.0", 7], "feature site: 7 and '7.0' have the same id"),
        ("long", ["x"], r"v0, v1, .*v19, \.\.\.$"),
        ("age", [20, 29], "feature age: 29 and 20 have the same id 2; name one of them"),
        ("small", ["a", "b", "c"], "feature small: .* have the same id"),
    ],
)
def test_values_that_a_feature_cannot_have_are_refused(name, values, message):
    with pytest.raises(InputError, match=message):
        feature_ids(SCHEMA, name, values)
