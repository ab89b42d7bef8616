"""Predictions against the base rate: where they are no better than it, nothing was learned."""

from collections.abc import Mapping
from typing import Any

from ctr.eval.display import decimals_for, fixed, interval


def nothing_learned(summary: Mapping[str, Any]) -> str:
    """Says in a line that predictions are no better than the base rate; empty where they are.

    The base rate is that of the same rows, known in advance: its normalized entropy is 1. ``summary`` has
    ``normalized_entropy`` and ``normalized_entropy_ci95``.
    """
    value = summary.get("normalized_entropy")
    low, high = summary.get("normalized_entropy_ci95") or (None, None)
    if value is None or (value <= 1 and (high is None or high < 1)):
        return ""
    decimals = decimals_for(low, high)
    shown = f"normalized entropy {fixed(value, decimals)}"
    if low is not None:
        shown += f" {interval(low, high, decimals)}"
    if value > 1 and (low is None or low > 1):
        return f"nothing was learned: the predictions are worse than the base rate alone ({shown}, above 1)"
    return f"nothing was learned beyond the base rate ({shown}: the interval is not below 1)"
