"""Relative prediction difference: of columns, of two tables, and of the files of two runs."""

import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctr.eval.arrays import sigmoid
from ctr.eval.prediction_difference import PredictionDifference, join_predictions, last_half, pair_predictions
from ctr.eval.states import query_bucket
from jackknife import margin_of
from run_directories import make_rows, predict, write_predictions


def prediction_difference(first: Any, second: Any) -> float:
    metric = PredictionDifference()
    metric.update(first, second, np.zeros(len(first), np.int64))
    return metric.result()


def test_pd_of_a_few_pairs_is_that_worked_by_hand():
    # 0.02 against 0.04: 0.02 / 0.03; 0 against 0.5: 2; equal: 0; both 0: 0.
    expected = (2 / 3 + 2 + 0 + 0) / 4
    assert prediction_difference([0.02, 0.0, 0.3, 0.0], [0.04, 0.5, 0.3, 0.0]) == pytest.approx(expected)
    assert prediction_difference([5e-324], [0.0]) == 2.0
    assert prediction_difference([1e-300], [3e-300]) == pytest.approx(1.0)
    assert math.isnan(prediction_difference([], []))
    assert np.isnan(PredictionDifference().estimate().interval()).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0.5, 1.1], [0.5, 0.5], [1, 2]), "first must hold probabilities from 0 to 1, got 1.1 at row 1"),
        (([0.5, 0.5], [np.nan, 0.5], [1, 2]), "second must hold probabilities from 0 to 1, got nan at row 0"),
        (([0.5], [0.5], [1, 2]), "columns must have one length, got predictions 1, query_id 2"),
        (([0.5], [0.5], [1.5]), "query_id must be int64, got float64"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        PredictionDifference().update(*columns)


# ---------------------------------------------------------------- two tables

FIRST = pd.DataFrame({"example_id": [9, -1, 4, 7], "query_id": [1, 2, 1, 3], "logit": [0.0, 1.0, -1.0, 2.0]})
SECOND = pd.DataFrame({"logit": [3.0, 0.5, -2.0], "query_id": [3, 1, 5], "example_id": [7, 9, 8]})


def test_join_aligns_by_example():
    joined = join_predictions(FIRST.assign(extra="x"), SECOND)
    assert (joined.example_id.tolist(), joined.query_id.tolist()) == ([7, 9], [3, 1])
    np.testing.assert_array_equal(joined.first, sigmoid(np.array([2.0, 0.0])))
    np.testing.assert_array_equal(joined.second, sigmoid(np.array([3.0, 0.5])))
    assert (joined.only_first, joined.only_second) == (2, 1)
    none = join_predictions(FIRST, SECOND[2:])
    assert (len(none.first), none.only_first, none.only_second) == (0, 4, 1)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (SECOND.drop(columns="logit"), "the second prediction table must have columns logit"),
        (pd.concat([SECOND, SECOND[:1]]), "second example_id must hold each example once, got 7 2 times"),
        (SECOND.assign(logit=[1.0, np.inf, 0.0]), "second logit must hold finite numbers, got inf at row 1"),
        (SECOND.assign(query_id=[3, 2, 5]), "an example must have one query_id in both prediction tables"),
    ],
)
def test_bad_tables_are_refused(second, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        join_predictions(FIRST, second)


# ---------------------------------------------------------------- the files of two runs


def plain_terms(a: pd.DataFrame, b: pd.DataFrame, since: float = -np.inf) -> tuple[np.ndarray, np.ndarray]:
    """The terms of the examples of both from a time on, and the buckets of their queries."""
    joined = a.merge(b, on="example_id")
    joined = joined[joined["query_time_x"] >= since]
    first, second = (sigmoid(joined[side]) for side in ("logit_x", "logit_y"))
    return 2 * np.abs(first - second) / (first + second), query_bucket(joined["query_id_x"].to_numpy())


@pytest.mark.parametrize(
    ("parts_a", "parts_b", "times"), [(1, 20, "apart"), (20, 1, "coarse"), (15, 7, "coarse"), (3, 5, "equal")]
)
def test_examples_of_both_are_paired_however_the_files_are_cut(tmp_path, parts_a, parts_b, times):
    rows = make_rows(4, queries=60)
    rows["query_time"] //= {"apart": 1, "coarse": 10**11, "equal": 10**16}[times]
    rng, tables, runs = np.random.default_rng(parts_a), [], []
    for name, parts, first in (("a", parts_a, 0), ("b", parts_b, len(rows) // 4)):
        table = rows.assign(logit=predict(rows, first, 1.0))[first:]
        tables.append(table[rng.random(len(table)) < 0.8])
        runs.append(write_predictions(tmp_path / name, tables[-1], parts))
    paired, (terms, buckets) = pair_predictions(*runs), plain_terms(*tables)
    unmatched = paired.only_a, paired.only_b
    assert (paired.examples, *unmatched) == (len(terms), *(len(table) - len(terms) for table in tables))
    assert min(paired.examples, *unmatched) > 0
    whole = float(paired.difference.point)
    assert whole == pytest.approx(terms.mean(), rel=1e-12)
    margin = margin_of([terms[buckets != one].mean() for one in np.unique(buckets)])
    assert paired.difference.interval() == pytest.approx((whole - margin, whole + margin), rel=1e-9)
    # The late part is that of the rows from there on; the whole pass does not depend on where it is parted.
    when = rows["query_time"].to_numpy()
    for since in (when[0], when[1] + 1, int(np.median(when)), when[-1] + 1, np.inf):
        paired, (late, _) = pair_predictions(*runs, since), plain_terms(*tables, since)
        expected = late.mean() if len(late) else np.nan
        assert float(paired.late.point) == pytest.approx(expected, rel=1e-12, nan_ok=True)
        assert float(paired.difference.point) == pytest.approx(whole, rel=1e-14)
    assert float(paired.difference.point) == whole
    # Of other times nothing counts.
    begin, since, end = (int(time) for time in np.quantile(when, [0.2, 0.5, 0.9]))
    kept = [table[(table["query_time"] >= begin) & (table["query_time"] < end)] for table in tables]
    paired, (terms, _) = pair_predictions(*runs, since, (begin, end)), plain_terms(*kept)
    assert (paired.examples, paired.only_a) == (len(terms), len(kept[0]) - len(terms))
    if len(terms):
        assert float(paired.difference.point) == pytest.approx(terms.mean(), rel=1e-12)
        assert float(paired.late.point) == pytest.approx(plain_terms(*kept, since)[0].mean(), rel=1e-12)
    assert pair_predictions(*runs, since, (int(when[-1]) + 1, np.inf)).examples == 0


def test_the_last_half_begins_in_the_middle_of_the_time(tmp_path):
    rows = make_rows(3, queries=120)
    table, times = rows.assign(logit=predict(rows, 1, 1.0)), rows["query_time"].to_numpy()
    run = write_predictions(tmp_path / "a", table, 4)
    expected = last_half(run)
    assert 0 <= 2 * expected - times[0] - times[-1] <= 1
    begin, end = (int(time) for time in np.quantile(times, [0.2, 0.9]))
    assert abs(last_half(run, (begin, end)) - (begin + end) / 2) <= 1
    assert last_half(run, (times[0] - 5, end)) == last_half(run, (-np.inf, end))
    # Files without rows do not count.
    for name in ("0" * 20, "9" * 20):
        table.iloc[:0].to_parquet(run / "predictions" / f"{name}.parquet", index=False)
    assert last_half(run) == expected
    assert last_half(write_predictions(tmp_path / "none", table, 0)) is None
