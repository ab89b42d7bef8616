"""Metrics and numbers as text for people."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

METRIC_TITLES = {
    "per_query_auc": "PerQueryAUC",
    "auc": "AUC",
    "logloss": "logloss",
    "normalized_entropy": "normalized entropy",
    "calibration_bias": "calibration bias",
    "calibration_ratio": "predicted / actual clicks",
}

ABSENT = "–"

_HIGHER_IS_BETTER = {"per_query_auc": True, "auc": True, "logloss": False, "normalized_entropy": False}
_DECIMALS = 5
_MOST_DECIMALS = 9
VERDICT_WIDTH = len("not significant")


def verdict(metric: str, difference: float, significant: bool | None) -> str:
    """Returns the verdict on b - a: better, worse, differs (no better side), not significant, or no interval."""
    if significant is None:
        return "no interval"
    if not significant:
        return "not significant"
    if metric not in _HIGHER_IS_BETTER:
        return "differs"
    return "better" if (difference > 0) == _HIGHER_IS_BETTER[metric] else "worse"


def decimals_for(low: float | None, high: float | None) -> int:
    """Returns the number of decimals that shows two digits of an interval's half-width; 5 without an interval."""
    if low is None or high is None or not 0 < (half := (high - low) / 2) < math.inf:
        return _DECIMALS
    return min(max(1, math.ceil(-math.log10(half)) + 1), _MOST_DECIMALS)


@dataclass(frozen=True)
class Number:
    """A number with the ends of its interval, for tables, JSON and CSV.

    None for a missing number or end, NaN for an undefined one.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def decimals(self) -> int:
        return decimals_for(self.low, self.high)

    def text(self, decimals: int | None = None, *, signed: bool = False) -> str:
        """Formats the number alone, with the digits that its interval justifies."""
        return fixed(self.value, self.decimals if decimals is None else decimals, signed=signed)

    def bounds(self, decimals: int | None = None, *, signed: bool = False) -> str:
        return interval(self.low, self.high, self.decimals if decimals is None else decimals, signed=signed)

    def whole(self, decimals: int | None = None, *, signed: bool = False) -> str:
        """Formats the number and the ends of its interval, if there is one."""
        text, bounds = (part(decimals, signed=signed) for part in (self.text, self.bounds))
        return text if bounds == ABSENT else f"{text} {bounds}"

    def map(self, function: Callable[[float], float]) -> "Number":
        """Applies an increasing function to the value and the ends."""
        return Number(*(None if end is None else function(end) for end in (self.value, self.low, self.high)))

    def times(self, factor: float) -> "Number":
        return self.map(lambda end: factor * end)


def fixed(value: float | None, decimals: int = _DECIMALS, *, signed: bool = False) -> str:
    """Formats `value` with that many decimals; `ABSENT` for None and NaN."""
    if value is None or math.isnan(value):
        return ABSENT
    # Rounding first keeps "-0.00000" away.
    rounded = round(value, decimals) + 0.0
    return f"{rounded:{'+' if signed and rounded else ''}.{decimals}f}"


def interval(
    low: float | None, high: float | None, decimals: int = _DECIMALS, *, signed: bool = False
) -> str:
    """Formats an interval as ``[low, high]``; `ABSENT` if undefined."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ABSENT
    return f"[{fixed(low, decimals, signed=signed)}, {fixed(high, decimals, signed=signed)}]"


def amount(value: float | None) -> str:
    """Formats a count or rate with thousands separators: ``1,234,567``, ``18,530``, ``16.3``, ``0.0131``."""
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value) or value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 100 else f"{value:.1f}"


def times(ratio: float | None) -> str:
    """Formats a ratio as a factor: ``2.80×``, ``16,737×``, ``0.013×``, ``<0.001×``."""
    if ratio is None:
        return ABSENT
    if ratio >= 0.1:
        return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.2f}×"
    return f"{ratio:.3f}×" if ratio >= 0.001 or ratio <= 0 else "<0.001×"


def percent(share: float) -> str:
    """Formats a share in percent: ``93.8%``; `ABSENT` for NaN."""
    return ABSENT if math.isnan(share) else f"{100 * share:.1f}%"


def fingerprint(identifier: int) -> str:
    """Formats an id that is a fingerprint as the hexadecimal digits of its 64 bits."""
    return f"0x{identifier % 2**64:016x}"


def no_interval_lines(reasons: Mapping[str, str]) -> list[str]:
    """Explains why metrics have no interval, a line per reason; ``reasons`` by metric, empty if it has an interval."""
    metrics: dict[str, list[str]] = {}
    for metric, reason in reasons.items():
        if reason:
            metrics.setdefault(reason, []).append(METRIC_TITLES[metric])
    return [f"no interval for {', '.join(titles)}: {reason}" for reason, titles in metrics.items()]


def aligned(rows: list[list[str]]) -> list[str]:
    """Formats rows of cells as lines: the first column left-aligned, the others right-aligned, two blanks between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def paired_cells(
    metric: str,
    a: float | None,
    b: float | None,
    difference: float | None,
    low: float | None,
    high: float | None,
) -> list[str]:
    """Returns the cells for a metric of two runs: title, both values, their difference and its interval."""
    decimals = decimals_for(low, high)
    return [
        METRIC_TITLES[metric],
        fixed(a, decimals),
        fixed(b, decimals),
        fixed(difference, decimals, signed=True),
        interval(low, high, decimals, signed=True),
    ]


def nothing_learned(summary: Mapping[str, Any]) -> str:
    """Returns a one-line warning unless the predictions are significantly better than the base rate, else "".

    A constant prediction, the base rate of the same rows, has normalized entropy 1. ``summary`` has
    ``normalized_entropy`` and ``normalized_entropy_ci95``; without an interval only a value above 1 gets a warning.
    """
    value = summary.get("normalized_entropy")
    low, high = summary.get("normalized_entropy_ci95") or (None, None)
    if value is None or (value <= 1 and (high is None or high < 1)):
        return ""
    decimals = decimals_for(low, high)
    entropy = f"normalized entropy {fixed(value, decimals)}"
    if low is not None:
        entropy += f" {interval(low, high, decimals)}"
    if value > 1 and (low is None or low > 1):
        return f"nothing was learned: the predictions are worse than the base rate alone ({entropy}, above 1)"
    return f"nothing was learned beyond the base rate ({entropy}: the interval is not below 1)"
