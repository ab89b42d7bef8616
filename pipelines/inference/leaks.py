"""Columns that say what the label is: known only after it, and so no features.

Judged on the rows of a sample. A column is grouped by its values (numbers by their quantiles), missing ones being a
group; groups of few rows count as one. It leaks where the groups leave nearly nothing of the label's entropy, or where
a group that holds many of the positive rows holds hardly any other.
"""

import numpy as np

from ctr.pipelines.inference.columns import ColumnFacts, percent

EXPLAINED = 0.8
"""A column leaks that explains this share of the label's entropy."""

PURE, CAPTURED = 0.99, 0.05
"""A group leaks in which this share of the rows is positive, and which holds that share of all positive rows."""

_FEW_ROWS = 10
_CHANCE = 1e-12
_QUANTILES = 40


def find_leak(facts: ColumnFacts, labels: np.ndarray, labeled: np.ndarray) -> str:
    """Why a column is known only after the label; empty where nothing speaks for that.

    Args:
        facts: of the column.
        labels: [N] 0 or 1.
        labeled: [N] bool, the rows whose label is known.
    """
    groups = _groups(facts)[labeled]
    label = labels[labeled].astype(np.int64)
    positives = int(label.sum())
    if not 0 < positives < len(label):
        return ""
    _, groups = np.unique(groups, return_inverse=True)
    rows = np.bincount(groups)
    groups = np.where(rows[groups] < _FEW_ROWS, len(rows), groups)
    rows = np.bincount(groups, minlength=len(rows) + 1)
    clicks = np.bincount(groups, label, minlength=len(rows))
    base = positives / len(label)
    entropy = len(label) * _entropy(np.array([base]))[0]
    left = float((rows * _entropy(np.divide(clicks, rows, out=np.zeros(len(rows)), where=rows > 0))).sum())
    # A few rows are explained by chance.
    explained = 1 - (left + len(rows) - 1) / entropy
    if explained > EXPLAINED:
        return f"it leaks the label: it explains {percent(explained)} of the label's entropy"
    # Of the last group the rows have different values.
    pure = (clicks[:-1] >= PURE * rows[:-1]) & (clicks[:-1] * np.log(base) < np.log(_CHANCE))
    captured = float(clicks[:-1][pure].sum()) / positives
    if captured > CAPTURED:
        share = percent(captured)
        return (
            f"it leaks the label: rows with some of its values are all positive, {share} of the positive rows"
        )
    return _presence_leak(facts, labels, labeled)


def _presence_leak(facts: ColumnFacts, labels: np.ndarray, labeled: np.ndarray) -> str:
    """Why it leaks whether there is a value at all."""
    present = (facts.codes >= 0)[labeled]
    label = labels[labeled].astype(bool)
    rows, clicks = int(present.sum()), int((present & label).sum())
    if rows == len(label) or not rows:
        return ""
    base = label.mean()
    pure = clicks >= PURE * rows and clicks * np.log(base) < np.log(_CHANCE)
    if pure and clicks > CAPTURED * label.sum():
        return f"it leaks the label: {percent(clicks / rows)} of the rows that have a value are positive"
    return ""


def _groups(facts: ColumnFacts) -> np.ndarray:
    """[N] int64: the group of each row."""
    if facts.numbers is None or facts.distinct <= _QUANTILES:
        return facts.codes
    finite = np.isfinite(facts.numbers)
    edges = np.unique(np.quantile(facts.finite, np.linspace(0, 1, _QUANTILES + 1)[1:-1]))
    # Among values that are 0 in most rows the others make groups of their own.
    edges = np.union1d(edges, np.nextafter(facts.finite.min(), np.inf))
    return np.where(finite, np.searchsorted(edges, facts.numbers, side="right"), -1)


def _entropy(share: np.ndarray) -> np.ndarray:
    inner = np.clip(share, 1e-12, 1 - 1e-12)
    entropy: np.ndarray = -(inner * np.log(inner) + (1 - inner) * np.log(1 - inner))
    return entropy
