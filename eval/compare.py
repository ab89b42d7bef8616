"""Two runs over the same log, side by side."""

import numpy as np
import pandas as pd

from ctr.eval.arrays import ratio
from ctr.eval.intervals import difference
from ctr.eval.progressive import ProgressiveMetrics

_ROUNDING = 1e-12
"""A smaller difference is rounding: equal runs may have summed in different orders."""


def compare(a: ProgressiveMetrics, b: ProgressiveMetrics) -> pd.DataFrame:
    """The metrics of two runs and their paired difference.

    The interval pairs the runs query bucket by query bucket, so it is far narrower than the intervals of the
    runs themselves: most of their spread is that of the queries, which both share. It supposes that both
    scored the same examples; `same_examples` tells.

    Args:
        a: the run to compare with.
        b: the run under study.

    Returns:
        Rows auc, per_query_auc, logloss, normalized_entropy, calibration_bias (index ``metric``); columns a,
        b, difference (b - a), relative_percent (100 * difference / abs(a)), ci95_low, ci95_high (of the
        difference), significant (the interval excludes 0). NaN where undefined, and then not significant.
    """
    estimates_a, estimates_b = a.estimates(), b.estimates()
    rows = []
    for metric, estimate_a in estimates_a.items():
        paired = difference(estimate_a, estimates_b[metric])
        low, high = paired.interval()
        excludes_zero = low > 0 or high < 0
        beyond_rounding = abs(paired.point) > _ROUNDING
        rows.append(
            {
                "metric": metric,
                "a": float(estimate_a.point),
                "b": float(estimates_b[metric].point),
                "difference": float(paired.point),
                "relative_percent": 100 * float(ratio(paired.point, np.abs(estimate_a.point))),
                "ci95_low": float(low),
                "ci95_high": float(high),
                "significant": bool(excludes_zero and beyond_rounding),
            }
        )
    return pd.DataFrame(rows).set_index("metric")


def same_examples(a: ProgressiveMetrics, b: ProgressiveMetrics) -> bool:
    """Whether two runs read the same number of examples and of queries, and clicks of equal weight.

    Weights are compared per query bucket and class, to rounding: the runs may have batched them differently.
    """
    counts_agree = a.traffic.examples == b.traffic.examples and a.traffic.queries == b.traffic.queries
    weights_agree = np.allclose(a.logloss.class_weight, b.logloss.class_weight, rtol=1e-9, atol=0)
    return bool(counts_agree and weights_agree)
