import numpy as np
import pandas as pd
import pytest

from ctr.eval.prediction_difference import last_half, pair_predictions
from run_directories import make_rows, predict, write_predictions


@pytest.fixture(scope="module")
def rows():
    return make_rows(3, queries=120)


def brute_pd(a: pd.DataFrame, b: pd.DataFrame, since: float) -> float:
    joined = a.merge(b, on="example_id")
    joined = joined[joined["query_time_x"] >= since]
    p, q = (1 / (1 + np.exp(-joined[side].to_numpy(np.float64))) for side in ("logit_x", "logit_y"))
    return float(np.mean(2 * np.abs(p - q) / (p + q)))


@pytest.mark.parametrize(("parts_a", "parts_b"), [(1, 1), (3, 5), (7, 2)])
def test_the_late_part_is_that_of_the_rows_from_there_on(rows, tmp_path, parts_a, parts_b):
    tables = [rows.assign(logit=predict(rows, seed, 1.0)) for seed in (1, 2)]
    a = write_predictions(tmp_path / "a", tables[0], parts_a)
    b = write_predictions(tmp_path / "b", tables[1], parts_b)
    times = rows["query_time"].to_numpy()
    for since in (times[0], times[1] + 1, int(np.median(times)), times[-1]):
        paired = pair_predictions(a, b, since)
        assert float(paired.late.point) == pytest.approx(brute_pd(*tables, since), rel=1e-12)
        assert float(paired.difference.point) == pytest.approx(brute_pd(*tables, -np.inf), rel=1e-12)
        assert paired.examples == len(rows)
    for since in (times[-1] + 1, np.inf):
        paired = pair_predictions(a, b, since)
        assert np.isnan(paired.late.point)
        assert paired.examples == len(rows)
    # The whole pass does not depend on where it is parted, to the last bit.
    assert float(pair_predictions(a, b).difference.point) == pytest.approx(
        float(paired.difference.point), abs=0
    )


@pytest.mark.parametrize(("parts_a", "parts_b"), [(1, 1), (3, 5)])
def test_of_other_times_nothing_counts(rows, tmp_path, parts_a, parts_b):
    tables = [rows.assign(logit=predict(rows, seed, 1.0)) for seed in (1, 2)]
    a = write_predictions(tmp_path / "a", tables[0], parts_a)
    b = write_predictions(tmp_path / "b", tables[1], parts_b)
    times = rows["query_time"].to_numpy()
    begin, since, end = (int(time) for time in np.quantile(times, [0.2, 0.5, 0.9]))
    inside = (times >= begin) & (times < end)
    kept = [table[inside] for table in tables]
    paired = pair_predictions(a, b, since, (begin, end))
    assert paired.examples == inside.sum() > 0
    assert (paired.only_a, paired.only_b) == (0, 0)
    assert float(paired.difference.point) == pytest.approx(brute_pd(*kept, -np.inf), rel=1e-12)
    assert float(paired.late.point) == pytest.approx(brute_pd(*kept, since), rel=1e-12)
    assert abs(last_half(a, (begin, end)) - (begin + end) / 2) <= 1
    assert last_half(a, (times[0] - 5, end)) == last_half(a, (-np.inf, end))
    assert pair_predictions(a, b, since, (int(times[-1]) + 1, np.inf)).examples == 0


def test_the_last_half_begins_in_the_middle_of_the_time(rows, tmp_path):
    table = rows.assign(logit=predict(rows, 1, 1.0))
    first, last = int(table["query_time"].iloc[0]), int(table["query_time"].iloc[-1])
    begin = last_half(write_predictions(tmp_path / "a", table, 4))
    assert begin - first in (last - begin, last - begin + 1)


def test_files_without_rows_do_not_count(rows, tmp_path):
    table = rows.assign(logit=predict(rows, 1, 1.0))
    run = write_predictions(tmp_path / "a", table, 3)
    expected = last_half(run)
    for name in ("0" * 20, "9" * 20):
        table.iloc[:0].to_parquet(run / "predictions" / f"{name}.parquet", index=False)
    assert last_half(run) == expected
    assert last_half(write_predictions(tmp_path / "none", table, 0)) is None
