"""Columns that say what the label is: known only after it, and so no features.

Judged on the rows of a sample. A column is grouped by its values (numbers by their quantiles), missing ones being a
group; groups of few rows count as one. It leaks where the groups leave nearly nothing of the label's entropy, where a
group that holds many of the positive rows holds hardly any other, or where a group of many rows holds hardly any
positive one. A plain name of what people do after a click, such as ``watch_ratio``, is enough; elsewhere the rows must
agree with it. ``strongest_columns`` are those with the largest AUC alone: one like a model's may be an outcome.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctr.io.errors import printable
from ctr.pipelines.inference import lexicon
from ctr.pipelines.inference.columns import ColumnProfile, Columns, percent

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


def value_groups(column: ColumnProfile) -> np.ndarray:
    """Groups rows by their value, many numbers by quantiles: [N] int64, -1 where it is missing."""
    if column.numbers is None or column.distinct <= QUANTILES:
        return column.codes
    finite = np.isfinite(column.numbers)
    edges = np.unique(np.quantile(column.finite, np.linspace(0, 1, QUANTILES + 1)[1:-1]))
    # Among values that are 0 in most rows the others make groups of their own.
    edges = np.union1d(edges, np.nextafter(column.finite.min(), np.inf))
    return np.where(finite, np.searchsorted(edges, column.numbers, side="right"), -1)


def auc_alone(column: ColumnProfile, labels: np.ndarray, labeled: np.ndarray) -> float | None:
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
    columns: Columns, labels: np.ndarray, labeled: np.ndarray
) -> list[tuple[str, float, int]]:
    """Returns name, AUC and number of values of the few columns with the largest AUC alone, in that order."""
    found = [(name, auc_alone(column, labels, labeled), column.distinct) for name, column in columns.items()]
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


AFTER_CLICK = "known only after the click (leak)"  # begins every reason why a column is a leak
EXPLAINED = 0.8  # a column leaks that explains this share of the label's entropy
# A group leaks in which this share of the rows is positive, and which holds that share of all positive rows.
PURE, CAPTURED = 0.99, 0.05
# The second is at least so many times the share of positive rows: where these are many, chance makes such groups.
CAPTURED_OF_BASE = 0.2
# A group leaks that has at most this share of the positive rows that are expected of it, and covers that share of all
# rows; the last is for the smallest or largest numbers, which are several groups.
NEVER, COVERED, COVERED_RUN = 0.02, 0.1, 0.05
# The positive rows that must be expected of such a group; and the share of them that the numbers beside it have.
EXPECTED, JUMP = 20, 0.3

_OFF = frozenset(("0", "0.0", "-1", "false", "no", "n", "f", "none"))
# Where the name says the same, fewer rows are enough.
_NAMED_PURE, _NAMED_CHANCE = 0.95, 1e-4
_NAMED_NEVER, _NAMED_EXPECTED = 0.05, 10
_NAMED_AUC = 0.65

_FEW_ROWS = 10
_CHANCE = 1e-12


def find_leak(column: ColumnProfile, labels: np.ndarray, labeled: np.ndarray) -> str:
    """Tells why a column is known only after the label; empty where nothing speaks for that.

    ``labels`` is [N] 0 or 1, ``labeled`` [N] bool: the rows whose label is known.
    """
    label = labels[labeled].astype(np.int64)
    if not 0 < label.sum() < len(label):
        return ""
    codes, groups = column.codes[labeled], value_groups(column)[labeled]
    why = _explains(groups, label) or _tells_by_presence(codes, label)
    # Of a place on a page it is no wonder that nobody clicks there.
    if not why and not column.has_word(lexicon.PLACE_WORDS):
        has_quantiles = column.numbers is not None and column.distinct > QUANTILES
        why = _is_never(codes, label) or (_is_never_at_an_end(groups, label) if has_quantiles else "")
    return f"{AFTER_CLICK}: {why}" if why else ""


def _explains(groups: np.ndarray, label: np.ndarray) -> str:
    """Why it leaks that groups leave nearly nothing of the label's entropy, or that some hold positive rows alone."""
    _, groups = np.unique(groups, return_inverse=True)
    rows = np.bincount(groups)
    groups = np.where(rows[groups] < _FEW_ROWS, len(rows), groups)
    rows = np.bincount(groups, minlength=len(rows) + 1)
    clicks = np.bincount(groups, label, minlength=len(rows))
    base, positives = label.mean(), label.sum()
    entropy = len(label) * _entropy(np.array([base]))[0]
    left = float((rows * _entropy(np.divide(clicks, rows, out=np.zeros(len(rows)), where=rows > 0))).sum())
    # A few rows are explained by chance.
    explained = 1 - (left + len(rows) - 1) / entropy
    if explained > EXPLAINED:
        return f"it explains {percent(explained)} of the label's entropy"
    # Of the last group the rows have different values.
    captured = float(clicks[:-1][_is_pure(rows[:-1], clicks[:-1], base)].sum()) / positives
    if captured > max(CAPTURED, CAPTURED_OF_BASE * base):
        return f"rows with some of its values are all positive, {percent(captured)} of the positive rows"
    return ""


def _tells_by_presence(codes: np.ndarray, label: np.ndarray) -> str:
    """Why it leaks that nearly all rows that have a value are positive."""
    present = codes >= 0
    rows, clicks = present.sum(), label[present].sum()
    if 0 < rows < len(label) and _is_pure(rows, clicks, label.mean()) and clicks > CAPTURED * label.sum():
        return f"{percent(clicks / rows)} of the rows that have a value are positive"
    return ""


def _is_never(codes: np.ndarray, label: np.ndarray) -> str:
    """Why it leaks that many rows with one value are hardly ever positive."""
    share = _never_rows(*_rates(codes, label), label.mean()) / len(label)
    if share >= COVERED:
        return f"rows with one of its values are never positive, {percent(share)} of the rows"
    return ""


def _is_never_at_an_end(groups: np.ndarray, label: np.ndarray) -> str:
    """Why it leaks that many rows with the smallest or the largest numbers are hardly ever positive."""
    base, there = label.mean(), groups >= 0
    rows, clicks = _rates(groups[there], label[there])
    for end, order in (("smallest", slice(None)), ("largest", slice(None, None, -1))):
        # The rate of what really grows with a number is low beside the rows without clicks; that of a leak is not.
        # The group beside these may hold some of them.
        high = np.append(clicks[order] >= JUMP * base * rows[order], [False, False])
        edge = high[1:-1] | high[2:]
        sums = np.cumsum(rows[order])[edge], np.cumsum(clicks[order])[edge]
        if (share := _never_rows(*sums, base) / len(label)) >= COVERED_RUN:
            return f"rows with its {end} numbers are never positive, {percent(share)} of the rows"
    return ""


def _rates(groups: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of each group, in the order of the groups' numbers, and its positive ones."""
    _, groups = np.unique(groups, return_inverse=True)
    return np.bincount(groups), np.bincount(groups, label)


def _is_pure(rows: np.ndarray, clicks: np.ndarray, base: float) -> np.ndarray:
    """Returns whether nearly all rows of groups are positive, and not by chance."""
    return (clicks >= PURE * rows) & (clicks * np.log(base) < np.log(_CHANCE))


def _never_rows(rows: np.ndarray, clicks: np.ndarray, base: float) -> int:
    """The rows of the largest group that has hardly any positive row; 0 where there is none."""
    never = (base * rows >= EXPECTED) & (clicks <= NEVER * base * rows)
    return int(rows[never].max(initial=0))


def _entropy(share: np.ndarray) -> np.ndarray:
    inner = np.clip(share, 1e-12, 1 - 1e-12)
    entropy: np.ndarray = -(inner * np.log(inner) + (1 - inner) * np.log(1 - inner))
    return entropy


def find_outcome(column: ColumnProfile, labels: np.ndarray, labeled: np.ndarray) -> str:
    """Tells why a name is that of something which people do after the impression; arguments as in ``find_leak``."""
    name = {word for word in column.words if not word.isdigit()}
    named = name - lexicon.OUTCOME_HELPERS - lexicon.SPAN_WORDS - lexicon.TIME_ENDINGS
    if not named or not named <= lexicon.OUTCOME_WORDS | lexicon.DEED_WORDS:
        return ""
    if named <= lexicon.DEED_WORDS:
        if column.distinct + (column.missing_share > 0) <= 2:
            return f"{AFTER_CLICK}: named like another outcome"
        is_spent = named & lexicon.SPENT_WORDS and name & lexicon.SPAN_WORDS
        if is_spent or column.words[-1] in lexicon.TIME_ENDINGS:
            return f"{AFTER_CLICK}: named like what follows a click"
    if _agrees(column, labels, labeled):
        return f"{AFTER_CLICK}: named like an outcome, and the label agrees"
    return ""


def _agrees(column: ColumnProfile, labels: np.ndarray, labeled: np.ndarray) -> bool:
    """Returns whether the rows in which something happened, or the others, are all positive or all negative."""
    off_codes = [place for place, text in enumerate(column.lower) if text in _OFF]
    happened = ((column.codes >= 0) & ~np.isin(column.codes, off_codes))[labeled]
    label = labels[labeled].astype(bool)
    base = label.mean()
    for side in (happened, ~happened):
        rows, clicks = int(side.sum()), int((side & label).sum())
        if clicks >= _NAMED_PURE * rows and clicks * np.log(base) < np.log(_NAMED_CHANCE):
            return True
        if base * rows >= _NAMED_EXPECTED and clicks <= _NAMED_NEVER * base * rows:
            return True
    auc = auc_alone(column, labels, labeled)
    return auc is not None and auc >= _NAMED_AUC
