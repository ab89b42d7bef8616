"""Compares two runs over the same log."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.click_ratio import distance
from ctr.eval.display import verdict
from ctr.eval.intervals import Estimate, difference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.io.documents import json_number

_ROUNDING = 1e-12  # a smaller difference is rounding: equal runs may have summed in different orders


def compare(a: ProgressiveMetrics, b: ProgressiveMetrics) -> pd.DataFrame:
    """Compares metrics of two runs over the same examples, with their paired difference, b - a.

    The interval pairs the runs query bucket by query bucket, so it is far narrower than the interval of
    each run: most of the spread comes from the queries. Rows auc, per_query_auc, logloss,
    normalized_entropy, calibration_bias, calibration_ratio (index ``metric``); columns a, b, difference,
    relative_percent (100 * difference / abs(a)), ci95_low, ci95_high (of the difference), significant (the
    interval excludes 0), no_interval (why there is none, else empty), verdict (of calibration_ratio: whose
    ratio is closer to 1). NaN where undefined; so is the relative change of a value that is not
    distinguishable from 0.

    Example:
        >>> runs = ProgressiveMetrics(), ProgressiveMetrics()
        >>> for run, logit in zip(runs, ([0.1, 0.3, 0.2], [0.1, 0.2, 0.3]), strict=True):
        ...     run.update(label=[0, 0, 1], logit=logit, weight=[1, 1, 1], query_id=[7, 7, 7])
        >>> compare(*runs).loc[["auc", "per_query_auc"], ["a", "b", "difference"]]
                         a    b  difference
        metric
        auc            0.5  1.0         0.5
        per_query_auc  0.5  1.0         0.5
    """
    estimates_a, estimates_b = (
        {**run.estimates(), "calibration_ratio": run.calibration.ratio_estimate()} for run in (a, b)
    )
    rows = []
    for metric, estimate_a in estimates_a.items():
        paired = difference(estimate_a, estimates_b[metric])
        low, high = paired.interval()
        no_interval, significant = paired.no_interval(), is_beyond_noise(paired)
        says = verdict(metric, float(paired.point), None if no_interval else significant)
        if metric == "calibration_ratio" and significant:
            says = _closer(estimate_a, estimates_b[metric])
        rows.append(
            {
                "metric": metric,
                "a": float(estimate_a.point),
                "b": float(estimates_b[metric].point),
                "difference": float(paired.point),
                "relative_percent": _relative_percent(paired, estimate_a),
                "ci95_low": float(low),
                "ci95_high": float(high),
                "significant": significant,
                "no_interval": no_interval,
                "verdict": says,
            }
        )
    return pd.DataFrame(rows).set_index("metric")


def compared_records(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Converts rows of ``compare`` to JSON, by metric."""
    return {
        str(metric): {
            **{key: json_number(row[key]) for key in ("a", "b", "difference")},
            "ci95": [json_number(row["ci95_low"]), json_number(row["ci95_high"])],
            "relative_percent": json_number(row["relative_percent"]),
            "significant": None if row["no_interval"] else bool(row["significant"]),
            "no_interval": row["no_interval"] or None,
            "verdict": row["verdict"],
        }
        for metric, row in table.iterrows()
    }


def _closer(a: Estimate, b: Estimate) -> str:
    """Compares the distance of predicted over actual clicks from 1: b is better, worse or differs."""
    change = difference(distance(a), distance(b))
    if not is_beyond_noise(change):
        return "differs"
    return "better" if change.point < 0 else "worse"


def _relative_percent(change: Estimate, reference: Estimate) -> float:
    low, high = reference.interval()
    if low <= 0 <= high:
        return math.nan
    return 100 * float(ratio(change.point, np.abs(reference.point)))


@dataclass(frozen=True)
class ScoredExamples:
    """Counts that distinguish one run's examples from another's."""

    examples: int
    queries: int
    class_weight: FloatArray  # [K, 2], weight of non-clicks and of clicks by query bucket

    def same_as(self, other: "ScoredExamples") -> bool:
        """Returns whether counts are equal, and weights up to rounding, because the runs' batches may differ."""
        counts_agree = self.examples == other.examples and self.queries == other.queries
        return counts_agree and np.allclose(self.class_weight, other.class_weight, rtol=1e-9, atol=0)


def scored_examples(metrics: ProgressiveMetrics) -> ScoredExamples:
    """Counts the examples that a run scored."""
    traffic = metrics.traffic
    return ScoredExamples(int(traffic.examples), int(traffic.queries), metrics.logloss.class_weight)


def same_examples(a: ProgressiveMetrics, b: ProgressiveMetrics) -> bool:
    """Returns whether two runs scored the same examples, as far as `ScoredExamples` shows."""
    return scored_examples(a).same_as(scored_examples(b))


def is_beyond_noise(change: Estimate) -> bool:
    """Returns whether the interval of a scalar difference excludes 0, and the difference exceeds rounding."""
    low, high = change.interval()
    return bool((low > 0 or high < 0) and abs(change.point) > _ROUNDING)
