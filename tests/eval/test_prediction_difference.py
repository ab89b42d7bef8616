import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.eval.logistic import sigmoid
from ctr.eval.prediction_difference import PredictionDifference, join_predictions
from ctr.eval.states import query_bucket

PROBABILITIES = st.floats(0, 1)
PAIRS = st.lists(st.tuples(PROBABILITIES, PROBABILITIES), min_size=1, max_size=30)


def plain(first: Any, second: Any) -> float:
    terms = [
        abs(p1 - p2) / ((p1 + p2) / 2) if p1 or p2 else 0.0 for p1, p2 in zip(first, second, strict=True)
    ]
    return math.fsum(terms) / len(terms)


def prediction_difference(first: Any, second: Any) -> float:
    metric = PredictionDifference()
    metric.update(first, second, np.zeros(len(first), np.int64))
    return metric.result()


def test_pd_of_a_few_pairs_is_that_worked_by_hand() -> None:
    # 0.02 against 0.04: 0.02 / 0.03; 0 against 0.5: 2; equal: 0; both 0: 0.
    expected = (2 / 3 + 2 + 0 + 0) / 4
    assert prediction_difference([0.02, 0.0, 0.3, 0.0], [0.04, 0.5, 0.3, 0.0]) == pytest.approx(expected)


def test_smallest_probabilities() -> None:
    assert prediction_difference([5e-324], [0.0]) == 2.0
    assert prediction_difference([1e-300], [3e-300]) == pytest.approx(1.0)
    assert math.isnan(prediction_difference([], []))


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_symmetric_and_between_0_and_2(pairs: list[tuple[float, float]]) -> None:
    first, second = zip(*pairs, strict=True)
    assert prediction_difference(first, second) == prediction_difference(second, first)
    assert 0 <= prediction_difference(first, second) <= 2 + 1e-15
    assert prediction_difference(first, first) == 0


def make_pairs(seed: int, rows: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    logit = rng.normal(-3, 1, rows)
    return sigmoid(logit), sigmoid(logit + rng.normal(0, 0.2, rows)), rng.integers(0, rows // 4, rows)


def test_stream_agrees_at_every_prefix_and_merges() -> None:
    first, second, query = make_pairs(0, 200)
    whole, parts = PredictionDifference(), [PredictionDifference(), PredictionDifference()]
    for batch, start in enumerate(range(0, 200, 17)):
        rows = slice(start, start + 17)
        whole.update(first[rows], second[rows], query[rows])
        parts[batch % 2].update(first[rows], second[rows], query[rows])
        assert whole.result() == pytest.approx(plain(first[: rows.stop], second[: rows.stop]), rel=1e-12)
    parts[0].merge(parts[1])
    np.testing.assert_allclose(parts[0].difference, whole.difference, rtol=1e-12)
    np.testing.assert_array_equal(parts[0].examples, whole.examples)
    again = PredictionDifference.from_arrays(whole.to_arrays())
    np.testing.assert_array_equal(again.difference, whole.difference)


def test_replicates_leave_out_one_bucket_each_and_the_interval_covers() -> None:
    first, second, query = make_pairs(1, 20_000)
    metric = PredictionDifference()
    metric.update(first, second, query)
    own = query_bucket(query)
    for bucket in range(3):
        expected = plain(first[own != bucket], second[own != bucket])
        assert metric.estimate().replicates[bucket] == pytest.approx(expected, rel=1e-12)
    low, high = metric.estimate().interval()
    # For p << 1 the difference is that of the logits, N(0, 0.2): its mean magnitude is 0.2 * sqrt(2 / pi).
    truth = prediction_difference(*make_pairs(2, 1_000_000)[:2])
    assert low < truth < high
    assert truth == pytest.approx(0.2 * math.sqrt(2 / math.pi), rel=0.1)
    assert high - low < 0.1 * truth


def test_pd_and_its_interval_are_nan_without_examples() -> None:
    assert math.isnan(PredictionDifference().result())
    assert np.isnan(PredictionDifference().estimate().interval()).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0.5, 1.1], [0.5, 0.5], [1, 2]), "first must hold probabilities from 0 to 1, got 1.1 at row 1"),
        (([0.5, 0.5], [np.nan, 0.5], [1, 2]), "second must hold probabilities from 0 to 1, got nan at row 0"),
        (([0.5], [0.5, 0.5], [1, 2]), "columns must have one length, got first 1, second 2"),
        (([0.5], [0.5], [1, 2]), "columns must have one length, got predictions 1, query_id 2"),
        (([0.5], [0.5], [1.5]), "query_id must be int64, got float64"),
    ],
)
def test_bad_columns_are_refused(columns: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PredictionDifference().update(*columns)


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


FIRST = table(
    example_id=[9, -1, 4, 7], query_id=[1, 2, 1, 3], logit=[0.0, 1.0, -1.0, 2.0], extra=list("abcd")
)
SECOND = table(logit=[3.0, 0.5, -2.0], query_id=[3, 1, 5], example_id=[7, 9, 8])


def test_join_aligns_by_example() -> None:
    joined = join_predictions(FIRST, SECOND)
    np.testing.assert_array_equal(joined.example_id, [7, 9])
    np.testing.assert_array_equal(joined.query_id, [3, 1])
    np.testing.assert_array_equal(joined.first, sigmoid(np.array([2.0, 0.0])))
    np.testing.assert_array_equal(joined.second, sigmoid(np.array([3.0, 0.5])))
    assert (joined.only_first, joined.only_second) == (2, 1)


def test_join_without_common_examples() -> None:
    joined = join_predictions(FIRST, SECOND[2:])
    assert (len(joined.first), joined.only_first, joined.only_second) == (0, 4, 1)
    assert math.isnan(prediction_difference(joined.first, joined.second))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (SECOND.drop(columns="logit"), "the second prediction table must have columns logit"),
        (
            pd.concat([SECOND, SECOND[:1]]),
            "second example_id must hold each example once, got 7 2 times",
        ),
        (SECOND.assign(example_id=[7.0, 9.0, 8.0]), "second example_id must be int64, got float64"),
        (SECOND.assign(logit=[1.0, np.inf, 0.0]), "second logit must hold finite numbers, got inf at row 1"),
        (
            SECOND.assign(query_id=[3, 2, 5]),
            "an example must have one query_id in both prediction tables, got 1 and 2 for example_id 9",
        ),
    ],
)
def test_bad_tables_are_refused(second: pd.DataFrame, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        join_predictions(FIRST, second)
