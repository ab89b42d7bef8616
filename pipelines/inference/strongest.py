"""AUC of each column alone on a sample: a column that ranks rows like a model may be an outcome."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctr.io.errors import printable
from ctr.pipelines.inference.columns import ColumnFacts

SHOWN = 3  # columns
QUANTILES = 40  # numbers with more values than this are grouped by so many quantiles
# A column is suspicious whose AUC alone is at least the first; or, if it has few values, at least the third and, above
# 0.5, the second's share of the model's. (The id of an ad may well say nearly all that can be known.)
ALONE, OF_MODEL, LOWEST, FEW_VALUES = 0.85, 0.9, 0.7, 10

# Rows that follow one another, such as those of a query, stay together; what drifts is in both halves.
_BLOCKS = 20
# A value is held to be like all rows by so many rows of these.
_PRIOR_ROWS = 10.0
_FEWEST = 10


def value_groups(facts: ColumnFacts) -> np.ndarray:
    """Groups rows by their value, many numbers by quantiles: [N] int64, -1 where it is missing."""
    if facts.numbers is None or facts.distinct <= QUANTILES:
        return facts.codes
    finite = np.isfinite(facts.numbers)
    edges = np.unique(np.quantile(facts.finite, np.linspace(0, 1, QUANTILES + 1)[1:-1]))
    # Among values that are 0 in most rows the others make groups of their own.
    edges = np.union1d(edges, np.nextafter(facts.finite.min(), np.inf))
    return np.where(finite, np.searchsorted(edges, facts.numbers, side="right"), -1)


def auc_alone(facts: ColumnFacts, labels: np.ndarray, labeled: np.ndarray) -> float | None:
    """AUC of the share of positive rows of each value, where every other block of rows gives the shares.

    ``labels`` is [N] 0 or 1, ``labeled`` [N] bool: the rows whose label is known. The mean of the two halves; None
    where one has too few rows of a class.
    """
    label = labels[labeled].astype(np.int64)
    _, groups = np.unique(value_groups(facts)[labeled], return_inverse=True)
    count = int(groups.max(initial=0)) + 1
    odd = np.arange(len(label)) * _BLOCKS // max(len(label), 1) % 2 == 1
    found = []
    for judged, learned in ((odd, ~odd), (~odd, odd)):
        if not _FEWEST <= label[judged].sum() <= judged.sum() - _FEWEST:
            return None
        rows = np.bincount(groups[learned], minlength=count)
        clicks = np.bincount(groups[learned], label[learned], minlength=count)
        shares = (clicks + _PRIOR_ROWS * label[learned].mean()) / (rows + _PRIOR_ROWS)
        found.append(_auc(shares, groups[judged], label[judged]))
    return sum(found) / len(found)


def _auc(scores: np.ndarray, groups: np.ndarray, label: np.ndarray) -> float:
    """The AUC of rows whose score is that of their group; equal scores count half."""
    _, levels = np.unique(scores, return_inverse=True)
    positive = np.bincount(levels[groups], label, minlength=len(levels))
    negative = np.bincount(levels[groups], 1 - label, minlength=len(levels))
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum()))


def strongest_columns(
    columns: Mapping[str, ColumnFacts], labels: np.ndarray, labeled: np.ndarray
) -> list[tuple[str, float, int]]:
    """Returns name, AUC and number of values of the few columns with the largest AUC alone, in that order."""
    found = [(name, auc_alone(facts, labels, labeled), facts.distinct) for name, facts in columns.items()]
    known = [(name, auc, values) for name, auc, values in found if auc is not None]
    return sorted(known, key=lambda one: -one[1])[:SHOWN]


def is_suspicious(auc: float, values: int, model_auc: float | None) -> bool:
    """Tells whether a column alone ranks rows so well that it may say what the label is."""
    if auc >= ALONE or model_auc is None:
        return auc >= ALONE
    return auc >= LOWEST and values <= FEW_VALUES and (auc - 0.5) - OF_MODEL * (model_auc - 0.5) >= 0


def strongest_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Formats the strongest columns (``column``, ``auc``, ``suspicious``); empty where there are none."""
    if not found:
        return ""
    shown = ", ".join(f"{printable(one['column'])} {one['auc']:.3f}" for one in found)
    lines = [f"The strongest columns alone, by their AUC in the sample: {shown}"]
    if names := [one["column"] for one in found if one["suspicious"]]:
        shown = " ".join(f"--drop {shlex.quote(name)}" for name in names)
        lines.append(
            f"  Suspiciously strong: {printable(', '.join(names))}. Known only after the click? "
            f"Then train without: {printable(shown)}"
        )
    return "\n".join(lines)
