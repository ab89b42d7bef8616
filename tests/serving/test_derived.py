"""Models of derived features and histories: the server gives raw columns, and gets what the trainer predicts."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.scorer import Scorer
from model_cases import make_case

HISTORY = {"by": "user", "of": "item", "after": "10m", "last": 5}
FEATURES = [
    {"name": "item", "kind": "category", "source": "item", "buckets": 50, "width": 4},
    {"name": "block", "kind": "category", "source": "block", "buckets": 40, "width": 4},
    {"name": "area", "kind": "category", "source": "area", "buckets": 60, "width": 4},
    {"name": "age", "kind": "number", "source": "age", "boundaries": [20, 40], "width": 2},
    {"name": "age_copy", "kind": "category", "source": "age_text", "buckets": 30, "width": 2},
    {"name": "item_x_block", "kind": "cross", "of": ["item", "block"], "buckets": 200, "width": 4},
    {"name": "hour", "kind": "number", "source": "hour", "boundaries": [6, 18], "width": 2, "tower": "ui"},
    {"name": "user", "kind": "category", "source": "user"},
    {"name": "liked", "kind": "category", "buckets": 50, "width": 4, "history": HISTORY},
    {"name": "size", "kind": "category", "source": "whole_size", "buckets": 30, "width": 2, "tower": "ui"},
]
DERIVE = {
    "block": {"from": "time", "every": "12h"},
    "hour": {"from": "time", "part": "hour"},
    "area": {"from": "zip", "prefix": 2},
    "age_text": {"from": "age"},
    "whole_size": {"from": "size", "cast": "integer"},
}
SCHEMA = parse_model(Schema, {"features": FEATURES, "derive": DERIVE}, "test")
INPUTS = {"item", TIME_COLUMN, "zip", "age", "size", "liked"}
MODEL = {
    "crosses": {"layers": 1, "rank": 3, "ramp": [10, 110]},
    "deep": {"units": [8]},
    "prior": 0.2,
    "factorized": {"width": 4, "ui_units": [8]},
    "pooling": {"liked": "target"},
    "without": ["user"],
}
START = datetime(2024, 2, 28, 23, 59, 59, tzinfo=UTC)


HOUR_US = 3_600_000_000


def draw(count=90):
    rng = np.random.default_rng(5)

    def some(values):
        return [values[n] for n in rng.integers(0, len(values), count)]

    def some_items(size):
        return [f"i{n}" for n in rng.integers(0, 20, size)]

    steps = [timedelta(microseconds=us) for us in (0, 999_999, 1_000_000, *range(0, 40 * HOUR_US, HOUR_US))]
    times = [START + step for step in some(steps)]
    return {
        "item": some(["a", "12", "12.0", 12, "b", ""]),
        "zip": some(["日本語", "日本", "é1", "90210", "", "9.0"]),
        "age": some([None, 25.0, 40.0, 12.5]),
        "size": some(["7", "7.0", "07", "", "12"]),
        "liked": [some_items(rng.integers(0, 6)) for _ in range(count)],
        TIME_COLUMN: [round(time.timestamp() * 1e6) for time in times],
    }


def texts(raw):
    """As a request or a CSV file has the values."""

    def text(value):
        return " ".join(value) if isinstance(value, list) else "" if value is None else str(value)

    return {name: values if name == TIME_COLUMN else [*map(text, values)] for name, values in raw.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    raw = draw()
    # Ingestion has the column as text.
    table = {**raw, "item": [str(value) for value in raw["item"]], "user": ["u"] * len(raw["item"])}
    case = make_case(MODEL, "float32", tmp_path_factory.mktemp("run"), schema=SCHEMA, raw=table)
    return raw, case, publish(case.snapshot, tmp_path_factory.mktemp("models")).path


def test_predictions_are_the_trainers(made):
    raw, case, path = made
    scorer = Scorer(path)
    assert np.ptp(case.logit) > 1
    for given in (raw, texts(raw)):
        np.testing.assert_allclose(scorer.score(given)["logit"], case.logit, rtol=0, atol=1e-5)
    found = scorer.combine(scorer.quality(raw), scorer.ui(raw))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-case.logit)), rtol=0, atol=1e-5)
    # Without the Scorer: strings and int64 as TensorFlow Serving gets them.
    loaded = tf.saved_model.load(str(path)).signatures
    given = {name: tf.constant(values) for name, values in texts(raw).items()}
    np.testing.assert_allclose(loaded["predict"](**given)["logit"], case.logit, rtol=0, atol=1e-5)
    for name in ("predict", "quality", "ui"):
        assert TIME_COLUMN in loaded[name].structured_input_signature[1]


def test_nothing_derived_is_asked_of_the_caller_and_what_he_has_to_bring_is_told(made):
    *_, path = made
    metadata = read_metadata(path)
    signatures, requests = metadata["signatures"], metadata["requests"]
    functions = ("predict", "quality", "ui")
    columns = {name: {i["column"] for i in signatures[name]["inputs"].values()} for name in functions}
    quality = {"item", TIME_COLUMN, "zip", "age", "liked"}
    assert columns == {"predict": INPUTS, "quality": quality, "ui": {TIME_COLUMN, "size"}}
    assert signatures["predict"]["inputs"][TIME_COLUMN]["dtype"] == "int64"
    assert set(requests["inputs"]) == INPUTS
    time = requests["inputs"][TIME_COLUMN]
    assert time["unit"] == "microseconds since 1970-01-01 00:00 UTC"
    assert time["features"] == ["block", "hour"]
    assert set(requests["derived"]) == set(DERIVE)
    assert requests["derived"]["block"] == "whole periods of 12h between 1970-01-01 00:00 UTC and time_us"
    assert [text.partition(":")[0] for text in requests["not_in_the_model"]][:2] == ["joins", "parsing"]


def test_other_ways_to_say_a_time(made):
    raw, _, path = made
    scorer = Scorer(path)
    expected = scorer.predict(raw)
    times = [
        START.replace(microsecond=0) + timedelta(microseconds=us - round(START.timestamp() * 1e6))
        for us in raw[TIME_COLUMN]
    ]
    plain = [time.replace(tzinfo=None) for time in times]
    arrays = np.array(plain, "datetime64[us]"), pd.Series(times), np.array(raw[TIME_COLUMN])
    for given in (times, plain, *arrays):
        np.testing.assert_array_equal(scorer.predict({**raw, TIME_COLUMN: given}), expected)
    one = scorer.predict({**raw, TIME_COLUMN: START})
    np.testing.assert_array_equal(one, scorer.predict({**raw, TIME_COLUMN: [START] * len(expected)}))
    missing = [scorer.predict({**raw, TIME_COLUMN: [value] * 90}) for value in (None, pd.NaT, 0)]
    np.testing.assert_array_equal(missing[0], missing[1])
    assert not np.array_equal(missing[0], missing[2])
    for values, words in (
        (["2024"] * 90, "column time_us, row 0: '2024' is not allowed: microseconds since 1970-01-01 UTC"),
        ([0, -5] * 45, "column time_us, row 1: -5 is not allowed: a time from 1970 on"),
    ):
        with pytest.raises(InputError, match=words):
            scorer.predict({**raw, TIME_COLUMN: values})
