"""Feature that a column becomes: a category, a number in buckets, a list of categories or a text."""

import itertools
import math
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctr.data.schema import RESERVED_NAMES
from ctr.data.spelling import Cast
from ctr.pipelines.inference import lexicon
from ctr.pipelines.inference.columns import LOOKED, ColumnProfile, ListForm

# So few whole numbers are categories, each with its own id: if they are amounts, and if they are not.
FEWEST, FEW = 20, 64

_UNIQUE = 0.999
_ENOUGH = 50
# Of positive numbers: from the middle to the largest.
_WIDE = 20.0
_STEPS = 40
# Of the range: where half of the values lie in it at one end, even buckets would part few values from many.
_TAIL = 1 / 6


@dataclass(frozen=True)
class Decision:
    """Decision about a column: a feature, or why it is none."""

    becomes: str
    because: str  # without the values themselves
    feature: dict[str, Any] | None = None  # of the mapping, without its name
    cast: Cast | None = None  # of the column, before the feature reads it (``ctr.data.derived``)
    is_outcome: bool = False  # it is no feature because it seems to be known only after the impression


def dropped(because: str) -> Decision:
    """Returns the decision not to use a column."""
    return Decision("not used", because)


def decide_feature(column: ColumnProfile) -> Decision:
    """Decides which feature a column without a role becomes, or why none."""
    if column.kind == "empty":
        return dropped("it has no values")
    if column.distinct == 1 and not column.missing_share:
        return dropped("it is constant")
    if column.kind == "vector":
        return dropped("lists of fractions (vectors): their numbers are no categories")
    if column.kind == "list":
        return _list_feature(column)
    if column.kind == "text":
        feature = {"kind": "text", "source": column.name}
        return Decision("text, its words", "most values are several words", feature)
    if column.kind == "number":
        return _number_or_category(column)
    if column.kind == "time":
        return dropped("a time that is not the time of the row")
    if column.with_points is not None:
        decision = _number_or_category(column.with_points)
        if decision.feature is not None and decision.feature["kind"] == "number":
            because = f"{decision.because}; with a decimal comma"
            return replace(decision, because=because, cast="decimal_comma")
    return _category(column, "")


def _category(column: ColumnProfile, because: str) -> Decision:
    if column.kind == "commas":
        because = "numbers with a comma are read as texts: write a decimal point to use them as numbers"
    if is_unique(column):
        why = "unique per row, so useless as a feature"
        return dropped(f"{because}; {why}" if column.kind == "commas" else why)
    feature: dict[str, Any] = {"kind": "category", "source": column.name}
    if column.has_word(lexicon.PLACE_WORDS) and column.distinct <= FEW:
        feature["tower"] = "ui"
        because = because or "named like a place on the page"
    return Decision("category", because, feature)


def is_unique(column: ColumnProfile) -> bool:
    """Tells whether nearly every row has its own value."""
    return column.present >= _ENOUGH and column.distinct > _UNIQUE * column.present


def _list_feature(column: ColumnProfile) -> Decision:
    form = column.list_form or ListForm("|")
    if {item for text in column.texts[:LOOKED] for item in form.items(text)} <= {"0", "1", "0.0", "1.0"}:
        return dropped("lists of 0 and 1 (vectors): what their places mean is not known")
    feature: dict[str, Any] = {"kind": "category", "source": column.name, "multivalent": True}
    feature["separator"], because = form.separator, "the values are lists"
    if column.is_list:
        # What joins the items where a model takes texts must be in none of them.
        items = column.array.flatten().drop_null().to_pylist()
        if any("|" in str(item) for item in items) or not "".join(column.texts).strip("|"):
            feature["separator"] = "\x1f"
    else:
        shown = {" ": "space-separated", ",": "comma-separated"}.get(form.separator)
        shown = shown or f"separated by {form.separator!r}"
        because = f"lists in brackets, {shown}" if form.strip else f"{shown}; the items recur"
        feature |= {"strip": form.strip} if form.strip else {}
    return Decision("categories, a list", because, feature)


def _number_or_category(column: ColumnProfile) -> Decision:
    whole, is_quantity = column.is_whole, column.has_word(lexicon.NUMBER_WORDS)
    counts_something = _counts_something(column.finite)
    # A flight's number is a name; a number of flights is an amount.
    is_numbered = {*column.words[-1:]} <= {"number", "num", "no", "nr"} and {
        *column.words[-2:-1]
    } & lexicon.NUMBERED_WORDS
    # The first rule that holds is the one.
    categories = {
        "its name says so": column.name.endswith(":token"),
        "few whole numbers": whole and column.distinct <= (FEWEST if counts_something else FEW),
        "named like a version": column.has_word(lexicon.VERSION_WORDS) and not is_quantity,
        "named like the number of something": whole and is_numbered,
        "named like an id or a kind": whole and column.has_word(lexicon.ID_WORDS) and not is_quantity,
    }
    for because, holds in categories.items():
        if holds:
            return _category(column, because)
    if not whole or is_quantity or column.name.endswith(":float"):
        return _number(column, "named like a quantity" if whole else "fractions")
    if is_unique(column) and bool((np.diff(column.finite) > 0).all()):
        return dropped("a number of the row: it grows from row to row")
    if counts_something:
        return _number(column, "looks like a count")
    return _category(column, "whole numbers spread like ids")


def _counts_something(values: np.ndarray) -> bool:
    """Returns whether whole numbers are like amounts: they begin near 0, and small ones are the most frequent."""
    # -1 or 0 may stand for none, before ids.
    positive = values[values > 0]
    if not len(positive):
        return False
    return float(positive.min()) <= 10 and 4 * float(np.median(positive)) < float(positive.max())


def _range(values: np.ndarray) -> str:
    """The smallest and the largest value, in as few digits as do not shut any of them out."""
    low, high = float(values.min()), float(values.max())
    begin = next(text for digits in (6, 9, 17) if float(text := f"{low:.{digits}g}") <= low)
    end = next(text for digits in (6, 9, 17) if float(text := f"{high:.{digits}g}") >= high)
    return f"from {begin} to {end}"


def _number(column: ColumnProfile, because: str) -> Decision:
    feature: dict[str, Any] = {"kind": "number", "source": column.name}
    values = column.finite
    low, high = (float(edge) for edge in np.quantile(values, [0.005, 0.995], method="nearest"))
    middle = float(np.median(np.abs(values)))
    largest = max(abs(low), abs(high))
    if largest > _WIDE * max(middle, 1.0) and column.is_whole:
        maximum = float(10 ** math.ceil(math.log10(max(largest, 10.0))))
        feature["log"] = {"maximum": min(maximum, 1e30), **({"signed": True} if values.min() < 0 else {})}
        return Decision("number, log buckets", f"{because}; {_range(values)}", feature)
    size = _round_step((high - low) / _STEPS)
    if size > 0 and _is_spread(values, size) and not _is_heavy_tailed(values, low, high):
        size = max(size, 1.0) if column.is_whole else size
        begin, end = math.floor(low / size) * size, math.ceil(high / size) * size
        if begin < end and max(abs(begin), abs(end)) < 1e30:
            feature["step"] = {"low": _tidy(begin), "high": _tidy(end), "size": _tidy(size)}
            return Decision("number, even buckets", f"{because}; {_range(values)}", feature)
    edges = sorted({float(f"{edge:.4g}") for edge in np.quantile(values, np.linspace(0, 1, 33)[1:-1])})
    edges = [edge for edge in edges if abs(edge) < 1e30 and edge > float(values.min())]
    if not edges and values.min() < values.max():
        edges = [float(f"{float(values[values > values.min()].min()):.4g}")]
    if not edges and column.missing_share:
        return _category(column, because)
    if not edges:
        return dropped("it is constant but for missing values")
    feature["boundaries"] = edges
    return Decision(f"number, {len(edges) + 1} buckets", f"{because}; as many rows in each bucket", feature)


def _is_spread(values: np.ndarray, size: float) -> bool:
    """Returns whether no bucket of a size holds many more values than the most frequent value is."""
    most = np.unique(values, return_counts=True)[1].max()
    buckets = np.unique(np.floor(values / size), return_counts=True)[1].max()
    return bool(buckets <= max(0.3 * len(values), 1.2 * most))


def _is_heavy_tailed(values: np.ndarray, low: float, high: float) -> bool:
    """Returns whether half of all but the most frequent value lie at one end of the range from ``low`` to ``high``."""
    found, counts = np.unique(values, return_counts=True)
    others = values[values != found[counts.argmax()]]
    if not len(others):
        return False
    middle = (float(np.median(others)) - low) / (high - low)
    return not _TAIL <= middle <= 1 - _TAIL


def _round_step(size: float) -> float:
    """1, 2 or 5 times a power of ten, at most ``size``; 0 where that is no number to count by."""
    if not 1e-20 < size < 1e20:
        return 0.0
    power = 10.0 ** math.floor(math.log10(size))
    return next(step * power for step in (5.0, 2.0, 1.0) if step * power <= size * (1 + 1e-9))


def _tidy(value: float) -> float:
    return float(f"{value:.10g}")


def feature_name(stem: str, taken: Collection[str]) -> str:
    """Makes a name like the column's, which no other feature and no column of a log has.

    Letters and digits of all scripts, _ . and - stay as they are; whatever else becomes _.
    """
    name = "".join(letter if _stays(letter) else " " for letter in stem)
    name = "_".join(name.split()).strip("_") or "column"
    if not (name[0].isalpha() or name[0] == "_"):
        name = f"c_{name}"
    name = name[:90]
    if name in RESERVED_NAMES:
        name += "_value"
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken and name not in RESERVED_NAMES)


def _stays(letter: str) -> bool:
    kind = unicodedata.category(letter)
    return letter in "_.-" or kind[0] in "LM" or kind == "Nd"
