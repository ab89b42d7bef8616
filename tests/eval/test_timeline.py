import numpy as np
import pytest

import run_directories
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import GROUPS, MAX_WINDOWS, SERIES, Timeline


def timeline_of(rows, logit, count):
    """Of the log's parts, cut between queries; and the metrics of the pass."""
    timeline, total = Timeline(), ProgressiveMetrics()
    for place, part in enumerate(run_directories.cut_between_queries(rows, count)):
        metrics = ProgressiveMetrics()
        metrics.update(part["label"], logit[part.index], part["metric_weight"], part["query_id"])
        timeline.add(metrics, part.index[-1] + 1, (10 * place, 10 * place + 9))
        total.merge(metrics)
    return timeline, total


@pytest.fixture(scope="module")
def rows():
    return run_directories.make_rows(3, queries=300)


def test_windows_add_up_to_the_metrics_of_the_pass(rows):
    timeline, total = timeline_of(rows, run_directories.predict(rows, 1, 1.0), 12)
    assert len(timeline) == 12
    headline, whole = total.headline(), timeline.joined(np.array([0]))
    for metric in ("per_query_auc", "logloss", "calibration_ratio"):
        assert whole.estimate(metric).point[0] == pytest.approx(headline[metric], rel=1e-12)
    observed, predicted = (whole.estimate(name).point[0] for name in ("click_rate", "predicted_click_rate"))
    assert observed - predicted == pytest.approx(headline["calibration_bias"], rel=1e-9)
    # Fewer groups than buckets: another jackknife of the same queries.
    low, high = whole.estimate("logloss").interval()
    whole_low, whole_high = total.estimates()["logloss"].interval()
    assert high[-1] - low[-1] == pytest.approx(whole_high - whole_low, rel=0.5)
    # A replicate is the metric without a group of queries.
    estimate, without = timeline.estimate("logloss"), timeline.sums[1, 1:].sum(axis=0)
    assert estimate.replicates.shape == (GROUPS, 12)
    assert estimate.replicates[0, 1] == pytest.approx(without[3] / without[0], rel=1e-12)
    other, _ = timeline_of(rows, run_directories.predict(rows, 1, 1.0) + np.float32(0.05), 12)
    assert timeline.matches(other) and not timeline.matches(other.joined(np.arange(0, 12, 2)))


def test_a_long_pass_keeps_few_entries_and_loses_nothing(rows):
    _, metrics = timeline_of(rows, run_directories.predict(rows, 1, 1.0), 1)
    timeline = Timeline()
    count = 2 * MAX_WINDOWS + 77
    for place in range(count):
        timeline.add(metrics, place + 1, (place, place + 1))
    assert MAX_WINDOWS // 2 <= len(timeline) <= MAX_WINDOWS
    assert timeline.windows[:, -1].sum() == count and (timeline.windows[:-1, -1] == 4).all()
    assert timeline.windows[0].tolist()[:3] == [4, 0, 4] and timeline.windows[-1, 0] == count
    coarse = timeline.joined(np.arange(0, len(timeline), 7))
    assert len(coarse) == -(-len(timeline) // 7)
    np.testing.assert_array_equal(timeline.joined(np.arange(len(timeline))).sums, timeline.sums)
    assert coarse.windows[0, 1] == 0 and coarse.windows[-1, 0] == count
    for metric in SERIES:
        wanted, found = (of.joined(np.array([0])).estimate(metric).point[0] for of in (timeline, coarse))
        assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("cut", [3, MAX_WINDOWS, MAX_WINDOWS + 9])
def test_an_interruption_changes_no_bit(rows, cut):
    _, metrics = timeline_of(rows, run_directories.predict(rows, 1, 1.0), 1)
    whole, resumed = Timeline(), Timeline()
    for place in range(MAX_WINDOWS + 20):
        if place == cut:
            resumed = Timeline.from_arrays(resumed.to_arrays())
        for timeline in (whole, resumed):
            timeline.add(metrics, place + 1, (place, place + 1))
    for name, array in whole.to_arrays().items():
        np.testing.assert_array_equal(resumed.to_arrays()[name], array)


def test_the_ratio_of_clicks_over_time_has_the_interval_of_few_clicks(rows):
    timeline, _ = timeline_of(rows, run_directories.predict(rows, 1, 1.0), 4)
    point, low, high = timeline.series("calibration_ratio")
    jackknife = timeline.estimate("calibration_ratio")
    np.testing.assert_array_equal(point, jackknife.point)
    clicks, predicted = (timeline.sums[..., place].sum(axis=1) for place in (1, 2))
    np.testing.assert_allclose(point, predicted / clicks, rtol=1e-12)
    # Of many clicks it is the jackknife's.
    np.testing.assert_array_equal([low, high], jackknife.interval())
    # One click: the exact limits of a Poisson mean.
    timeline.sums[:, :, 1] = 0.0
    timeline.sums[:, 5, 1] = 2.0
    point, low, high = timeline.series("calibration_ratio")
    np.testing.assert_allclose(point / low, 5.571643390938898, rtol=1e-9)
    np.testing.assert_allclose(high / point, 1 / 0.025317807984289897, rtol=1e-9)


@pytest.mark.parametrize(("short", "joined"), [(False, 1), (True, 2)])
def test_the_last_window_is_joined_with_those_before_until_it_is_long_enough(rows, short, joined):
    timeline, _ = timeline_of(rows, run_directories.predict(rows, 1, 1.0), 6)
    timeline.windows[:, 3] = 500
    timeline.windows[-1, 3] = 20 if short else 510
    last = timeline.last_window()
    assert len(last) == 1
    np.testing.assert_allclose(last.sums[0], timeline.sums[-joined:].sum(axis=0))
    examples = int(timeline.windows[-joined:, 3].sum())
    begin, end = timeline.windows[-joined, 1], timeline.windows[-1, 2]
    assert last.windows[0].tolist() == [len(rows), begin, end, examples, joined]
    assert not len(Timeline().last_window())
