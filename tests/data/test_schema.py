"""What a schema allows, and the one line with which it refuses."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.features import LogBuckets, Number
from ctr.data.schema import Schema, differing_features, feature_meanings, id_bounds
from ctr.io.errors import InputError

CATEGORY = {"kind": "category", "name": "a", "source": "s"}
OTHER = {"kind": "category", "name": "b", "source": "t"}
TEXT = {"kind": "text", "name": "t", "source": "t"}
LIST = {"kind": "category", "name": "m", "source": "m", "multivalent": True}
NUMBER = {"kind": "number", "name": "n", "source": "s"}


def cross(name: str, *of: str, **more: Any) -> dict[str, Any]:
    return {"kind": "cross", "name": name, "of": list(of), **more}


def make(*features: dict[str, Any]) -> Schema:
    return parse_model(Schema, {"features": list(features)}, "schema.yaml")


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "features: [] is not allowed: Tuple should have at least 1 item"),
        ([{**CATEGORY, "kind": "image"}], "'category', 'number', 'vector', 'text', 'cross'"),
        ([{**CATEGORY, "name": "a b"}], "features.0.category.name: 'a b' is not allowed"),
        ([{**CATEGORY, "name": "ids"}], "feature ids has the name of a column of the log"),
        ([{**CATEGORY, "buckets": 2**31}], "features.0.category.buckets: 2147483648 is not allowed"),
        ([{**CATEGORY, "vocabulary": ["x"], "buckets": 7}], "buckets follows from the vocabulary (3)"),
        ([CATEGORY, CATEGORY], "feature a is defined twice"),
        ([{**NUMBER, "boundaries": [1], "log": {}}], "exactly one of boundaries, log, step and as is"),
        ([{**NUMBER, "boundaries": [math.nan]}], "nan is not allowed"),
        ([{**NUMBER, "step": {"low": 0, "high": 1, "size": 1e-7}}], "at most 1,000,000 buckets are allowed"),
        ([CATEGORY, cross("x", "a", "z")], "feature x crosses z, which is not a feature"),
        ([CATEGORY, OTHER, cross("x", "a", "b"), cross("y", "x", "b")], "y crosses x, itself a cross"),
        ([TEXT, LIST, cross("x", "t", "m")], "crosses more than one multivalent feature"),
        ([CATEGORY, {**NUMBER, "log": {}}], "features a and n read the column s as a number and as a string"),
    ],
)
def test_refusals_are_one_clear_line(features: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        make(*features)
    line = str(refusal.value)
    assert message in line
    assert line.startswith("schema.yaml: ")
    assert "\n" not in line


def test_features_are_parted_by_how_many_ids_they_have_and_int64_where_these_grow() -> None:
    number = {"kind": "number", "name": "n", "source": "x", "boundaries": [1, 2]}
    schema = make(TEXT, CATEGORY, LIST, number, cross("an", "a", "n", buckets=77), cross("at", "a", "t"))
    assert schema.single_valued == ("a", "n", "an")
    assert schema.multivalent == ("t", "m", "at")
    assert schema.sources == ("t", "s", "m", "x")
    assert schema.growing == ("t", "a", "m", "at")
    assert id_bounds(schema, ["n", "an", "a", "t"]) == [4, 77, None, None]
    # With a cross come its parts.
    assert schema.only(["an"]).single_valued == ("a", "n", "an") and not schema.only(["an"]).multivalent
    bounded = [{**CATEGORY, "buckets": 5}, {**OTHER, "vocabulary": ["x"]}, number, {**TEXT, "buckets": 2}]
    assert (make(*bounded).growing, make(*bounded).id_type) == ((), np.int32)
    for grown in ({**CATEGORY, "name": "c"}, {**TEXT, "name": "c"}, LIST, cross("c", "a", "b")):
        schema = make(*bounded, grown)
        assert (schema.growing, schema.id_type) == ((grown["name"],), np.int64)
        assert schema.only(["a", "n"]).id_type == np.int32


def test_the_version_depends_on_the_meaning_alone() -> None:
    spelled_out = make({"source": "s", "buckets": None, "name": "a", "kind": "category", "keep": "first"})
    assert spelled_out.version == make(CATEGORY).version
    assert make({**CATEGORY, "buckets": 100_000}).version != make(CATEGORY).version
    assert make({**CATEGORY, "width": 8}).version != make(CATEGORY).version
    assert make(CATEGORY, OTHER).version != make(OTHER, CATEGORY).version


@settings(max_examples=50)
@given(st.integers(1, 64), st.floats(1.5, 1e30), st.booleans())
def test_log_edges_rise_to_the_maximum(per_octave: int, maximum: float, signed: bool) -> None:
    log = LogBuckets(per_octave=per_octave, maximum=maximum, signed=signed)
    number = Number(name="n", source="x", log=log)
    edges = np.array(number.edges())
    assert (np.diff(edges) > 0).all()
    assert edges[-1] <= maximum < edges[-1] * 2 ** (1 / per_octave) * (1 + 1e-9)
    assert number.buckets == len(edges) + 2
    assert (edges[0] == -edges[-1]) if signed else (edges[0] == 0)


DERIVE = {
    "hour": {"from": "time", "part": "hour"},
    "zip3": {"from": "zip", "prefix": 3},
    "copy": {"from": "s"},
    "unread": {"from": "time", "every": "1d"},
}


def with_rules(*features: dict[str, Any], **derive: dict[str, Any]) -> Schema:
    rules = {name: DERIVE[name] for name in ("hour", "zip3", "copy")}
    return parse_model(Schema, {"features": list(features), "derive": derive or rules}, "schema.yaml")


def test_rules_are_part_of_the_version_and_of_what_a_feature_means() -> None:
    hour = {**CATEGORY, "source": "hour"}
    by_part, by_period = with_rules(hour, hour=DERIVE["hour"]), with_rules(hour, hour=DERIVE["unread"])
    assert by_part.version != by_period.version
    assert feature_meanings(by_part) != feature_meanings(by_period)
    (difference, *_) = differing_features(by_part, by_period)
    assert difference.startswith("derived column hour.every was None, is '1d'")


def test_rules_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"derive\.hour: no feature reads it"):
        with_rules(CATEGORY, hour=DERIVE["hour"])
    taken = "time_us: the exported model takes the row's time under this name"
    with pytest.raises(InputError, match=taken):
        with_rules({**CATEGORY, "source": "hour"}, {**OTHER, "source": "time_us"}, hour=DERIVE["hour"])
