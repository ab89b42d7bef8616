"""How well a column alone ranks the rows: one with an AUC near 1 is known only after the label."""

import numpy as np

from ctr.io.errors import printable
from ctr.pipelines.infer.columns import Column, Columns

LEAK = 0.99  # a column with this AUC alone is refused
SHOWN = 3  # columns
QUANTILES = 40  # numbers with more values than this are grouped by so many quantiles

# Rows that follow one another, such as those of a query, stay together; what drifts is in both halves.
_BLOCKS = 20
# A value is held to be like all rows by so many rows of these.
_PRIOR_ROWS = 10.0
_FEWEST = 10


def value_groups(column: Column) -> np.ndarray:
    """Groups rows by their value, many numbers by quantiles: [N] int64, -1 where it is missing."""
    if column.numbers is None or column.distinct <= QUANTILES:
        return column.codes
    edges = np.unique(np.quantile(column.finite, np.linspace(0, 1, QUANTILES + 1)[1:-1]))
    # Among values that are 0 in most rows the others make groups of their own.
    edges = np.union1d(edges, np.nextafter(column.finite.min(), np.inf))
    finite = np.isfinite(column.numbers)
    return np.where(finite, np.searchsorted(edges, column.numbers, side="right"), -1)


def auc_alone(column: Column, labels: np.ndarray, labeled: np.ndarray) -> float | None:
    """AUC of the share of positive rows of each value, where every other block of rows gives the shares.

    ``labels`` is [N] 0 or 1, ``labeled`` [N] bool: the rows whose label is known. The mean of the two halves; None
    where one has too few rows of a class.
    """
    label = labels[labeled].astype(np.int64)
    _, groups = np.unique(value_groups(column)[labeled], return_inverse=True)
    count = int(groups.max(initial=0)) + 1
    odd = np.arange(len(label)) * _BLOCKS // max(len(label), 1) % 2 == 1
    found = []
    for judged, learned in ((odd, ~odd), (~odd, odd)):
        if not _FEWEST <= label[judged].sum() <= judged.sum() - _FEWEST:
            return None
        rows = np.bincount(groups[learned], minlength=count)
        clicks = np.bincount(groups[learned], label[learned], minlength=count)
        shares = (clicks + _PRIOR_ROWS * label[learned].mean()) / (rows + _PRIOR_ROWS)
        # The AUC of rows whose score is that of their group; equal scores count half.
        _, levels = np.unique(shares, return_inverse=True)
        positive = np.bincount(levels[groups[judged]], label[judged], minlength=len(levels))
        negative = np.bincount(levels[groups[judged]], 1 - label[judged], minlength=len(levels))
        below = np.cumsum(negative) - negative
        found.append(float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum())))
    return sum(found) / len(found)


def strongest_columns(columns: Columns, labels: np.ndarray, labeled: np.ndarray) -> list[tuple[str, float]]:
    """Returns name and AUC of the columns whose AUC alone is known, the largest first."""
    found = [(name, auc_alone(column, labels, labeled)) for name, column in columns.items()]
    return sorted([(name, auc) for name, auc in found if auc is not None], key=lambda pair: -pair[1])


def strongest_text(found: list[tuple[str, float]]) -> str:
    """Formats the few strongest columns; empty where there are none."""
    if not found:
        return ""
    shown = ", ".join(f"{printable(name)} {auc:.3f}" for name, auc in found[:SHOWN])
    return (
        f"The strongest columns alone, by their AUC in the sample: {shown}. One that is known only after the click has "
        "no place in a model: --drop COLUMN --out OTHER trains without it"
    )
