"""Data of a run's figures, derived from its sums: base-rate baselines, and metrics over the pass."""

import numpy as np
import pandas as pd

from ctr.eval.arrays import FloatArray, IntArray, ratio
from ctr.eval.intervals import Estimate, all_but_one, quotient
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.states import BUCKETS
from ctr.eval.timeline import Timeline

_DAY = 86_400_000_000
_FIRST_TIME, _LAST_TIME = np.array(["0001-01-02", "9999-12-30"], "datetime64[us]").astype(np.int64)
_MAX_POINTS, _LEAST_POINTS, _ENOUGH = 50, 5, 400


def baseline_loglosses(metrics: ProgressiveMetrics) -> dict[str, Estimate]:
    """Returns the logloss of base-rate predictions, by name.

    ``the base rate`` is the click rate of all rows. For each feature whose slices cover all rows, ``base rate by
    FEATURE`` is the smoothed click rate of the row's value in other query buckets, so that no row knows its label.
    Families of bias constraints are not used: their slices may depend on the run's predictions.
    """
    loss, entropy = metrics.logloss.estimate(), metrics.logloss.normalized_entropy_estimate()
    baselines = {"the base rate": quotient(loss, entropy)}
    weight = metrics.logloss.class_weight.sum(axis=1)
    clicks, total = metrics.logloss.class_weight.sum(axis=0)[1], weight.sum()
    for feature, state in metrics.slices.items():
        arrays = state.to_arrays()
        slices, buckets = arrays["key"] // BUCKETS, arrays["key"] % BUCKETS
        rows, clicked = arrays["sums"][:2]
        if feature.startswith("constraint:") or not total or not np.isclose(rows.sum(), total):
            # It is a family of bias constraints, or some rows are in no slice.
            continue
        others, others_clicked = (np.bincount(slices, sums)[slices] - sums for sums in (rows, clicked))
        rate = np.clip((others_clicked + clicks / total) / (others + 1), 1e-6, 1 - 1e-6)
        losses = -(clicked * np.log(rate) + (rows - clicked) * np.log1p(-rate))
        by_bucket = np.bincount(buckets, losses, BUCKETS).astype(np.float64)
        baselines[f"base rate by {feature}"] = Estimate(
            np.array(ratio(by_bucket.sum(), total)),
            ratio(all_but_one(by_bucket), all_but_one(weight)),
            weight > 0,
            "log",
        )
    return baselines


def has_event_time(timeline: Timeline) -> bool:
    """Returns whether the windows have valid event times, ascending and more than half of them distinct."""
    times = timeline.windows[:, 1:3]
    if not len(times) or times.min() < _FIRST_TIME or times.max() > _LAST_TIME:
        return False
    middle = middle_times(timeline)
    return 2 * len(np.unique(middle)) > len(middle) and bool(np.all(np.diff(middle) >= 0))


def middle_times(timeline: Timeline) -> IntArray:
    """Returns the midpoint of each window's event times, int64 [W], in microseconds."""
    begin, end = timeline.windows[:, 1], timeline.windows[:, 2]
    middle: IntArray = begin + (end - begin) // 2
    return middle


def by_day(timeline: Timeline) -> tuple[list[str], Timeline]:
    """Joins windows by the UTC day of their midpoints; returns days and timeline, empty unless `has_event_time`."""
    if not has_event_time(timeline):
        return [], Timeline()
    days = middle_times(timeline) // _DAY
    starts = np.flatnonzero(np.diff(days, prepend=days[0] - 1))
    return [str(np.datetime64(int(day), "D")) for day in days[starts]], timeline.joined(starts)


def point_starts(examples: IntArray) -> IntArray:
    """Returns the first window of each point of a line, ascending from 0, from the windows' sizes [W].

    A point joins the windows that begin in one of 5 to 50 equal parts of the pass, if possible of 400 examples or more.
    """
    if not len(examples):
        return np.zeros(0, np.int64)
    total = int(examples.sum())
    count = min(max(total // _ENOUGH, _LEAST_POINTS), _MAX_POINTS)
    starts = np.flatnonzero(np.diff((np.cumsum(examples) - examples) * count // total, prepend=-1))
    # The last point may have few rows.
    return starts[:-1] if len(starts) > 1 and 2 * count * examples[starts[-1] :].sum() < total else starts


def merged_course(windows: pd.DataFrame, metric: str) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Averages a metric of `ctr.eval.run_files.read_windows` over the windows of each of P points, weighted.

    Returns the rows of the log up to each point's end, the values and both ends of their intervals, each [P].
    """
    starts = point_starts(windows["window_examples"].to_numpy())
    group = np.searchsorted(starts, np.arange(len(windows)), side="right")
    weight = windows["weight_sum"].where(windows[metric].notna(), 0.0)
    margin = weight * (windows[f"{metric}_high"] - windows[f"{metric}_low"]) / 2
    parts = pd.DataFrame(
        {"weight": weight, "value": windows[metric].fillna(0.0) * weight, "margin": margin**2}
    )
    sums = parts.groupby(group).sum(min_count=1)
    value, spread = ratio(sums["value"], sums["weight"]), ratio(np.sqrt(sums["margin"]), sums["weight"])
    ends = windows["examples"].groupby(group).last().to_numpy()
    return ends, value, value - spread, value + spread
