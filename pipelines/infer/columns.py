"""Infers the kind of each column from its values alone, and its feature: category, number, list or text.

A column that alone ranks the rows with an AUC near 1 is treated as a leak: recorded only after the label.
"""

import ast
import itertools
import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.ids.arrow import is_text, text_array
from ctr.data.schema import RESERVED_NAMES
from ctr.data.spelling import CASTS, Cast
from ctr.eval.auc import roc_auc
from ctr.io.errors import printable
from ctr.pipelines.tables.convert import parse_numbers

LOOKED = 2000  # number of distinct values that are inspected
# Texts that mean a missing value where they stand among numbers, and the first three everywhere.
_NULLS = ("NULL", "null", "\\N", "NA", "N/A", "n/a", "None", "NaN", "nan", "<NA>", "#N/A")

# A column is of a kind when at most this share of its values is not: such rows become rejects.
_FEW_BAD = 0.001
# Up to this many distinct whole numbers are categories: for amounts, and for other numbers.
_FEWEST, _FEW = 20, 64
_UNIQUE, _ENOUGH = 0.999, 50
_STEPS = 40
# Share of the range: if half of the values lie in it at one end, even buckets would separate few values from many.
_TAIL = 1 / 6
_SHOWN = 24

_MARKS = (*"|;,^#~\x01\x02\x1c\x1f\t", ", ", " ")
_BRACKETED_MARKS = (",", "', '", '", "', '","', "' '", " ")
_NUMBER = r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|NaN|None|null)"
_VECTOR = re.compile(rf"[\[({{]?\s*{_NUMBER}([\s,;|^#~]+{_NUMBER})*\s*[\])}}]?")
_WITH_COMMA = re.compile(r"[-+]?(\d+|\d*,\d+|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+)")
_ITEMS = re.compile(r"""'[^']*'|"[^"]*"|[^\s,]+""")


@dataclass(frozen=True)
class Column:
    """Values of one column in a sample of N rows."""

    name: str
    array: pa.Array  # [N] the values, as an ingest reads them
    texts: Sequence[str]  # the distinct values, in order of their first row
    codes: np.ndarray  # [N] int64, the index of each value in ``texts``; -1 where it is missing
    counts: np.ndarray  # [distinct] int64, how often each value occurs
    # [N] float64, NaN where missing or unreadable; None unless nearly all are numbers
    numbers: np.ndarray | None

    @property
    def distinct(self) -> int:
        return len(self.texts)

    @property
    def present(self) -> int:
        return int(self.counts.sum())

    @property
    def missing_share(self) -> float:
        return 1 - self.present / len(self.codes)

    @property
    def is_list(self) -> bool:
        return isinstance(self.array, pa.ListArray | pa.LargeListArray)

    @cached_property
    def finite(self) -> np.ndarray:
        """Returns the finite numbers in row order; empty if the column is not numeric."""
        return np.zeros(0) if self.numbers is None else self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def is_whole(self) -> bool:
        return bool(len(self.finite)) and bool((self.finite == np.floor(self.finite)).all())

    @cached_property
    def is_unique(self) -> bool:
        """Returns whether nearly every row has a distinct value."""
        return self.present >= _ENOUGH and self.distinct > _UNIQUE * self.present

    def describe(self) -> str:
        """Describes the number of distinct values, the three most frequent ones, and the share of missing values."""
        if not self.present:
            return "no values"
        common = [self.texts[index] for index in np.argsort(-self.counts, kind="stable")[:3]]
        lines = [" ".join(text.split()) or repr(text) for text in common]
        examples = [line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..." for line in lines]
        text = f"{self.distinct:,} value{'s' * (self.distinct > 1)}, e.g. {', '.join(examples)}"
        return text + (f"; {percent(self.missing_share)} missing" if self.missing_share else "")


Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Decision:
    """Decision on the use of a column: a role, a feature, or nothing."""

    becomes: str
    because: str
    feature: dict[str, Any] | None = None  # of the mapping, without its name
    cast: Cast | None = None  # of the column, before the feature reads it (``ctr.data.derived``)


def not_used(because: str) -> Decision:
    """Returns the decision not to use a column."""
    return Decision("not used", because)


def percent(share: float) -> str:
    """Formats a share as a percentage with two significant digits, four from 99.5% on."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.4g}%"


def find_nulls(columns: Mapping[str, pa.Array]) -> tuple[str, ...]:
    """Finds the non-empty texts in columns of a delimited file that mean a missing value."""
    nulls: dict[str, None] = {}
    for array in columns.values():
        distinct = pc.unique(array.drop_null()).to_pylist() if is_text(array.type) else []
        if not (nulls_here := [text for text in _NULLS if text in distinct]):
            continue
        others = pa.array([text for text in distinct if text and text not in _NULLS], pa.string())
        between_numbers = len(others) > 0 and not parse_numbers(others)[1].any()
        nulls |= dict.fromkeys(text for text in nulls_here if between_numbers or text in _NULLS[:3])
    return tuple(nulls)


def profile_column(name: str, array: pa.Array, nulls: Sequence[str] = ()) -> Column:
    """Profiles a column; empty text and ``nulls`` are missing, as in an ingest."""
    if nulls and is_text(array.type):
        array = pc.if_else(pc.is_in(array, pa.array(nulls, array.type)), None, array)
    values = array
    if isinstance(array, pa.ListArray | pa.LargeListArray):
        rows = [row and ["" if item is None else str(item) for item in row] for row in array.to_pylist()]
        values = pa.array([None if row is None else "|".join(row) for row in rows], pa.string())
    elif pa.types.is_temporal(array.type) or pa.types.is_null(array.type):
        values = array.cast(pa.string())
    values = text_array(values).cast(pa.large_string())
    encoded = pc.if_else(pc.equal(values, ""), None, values).dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = encoded.dictionary.to_pylist()
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    return Column(name, array, texts, codes, counts, _numbers(array, texts, codes, counts))


def _numbers(
    array: pa.Array, texts: Sequence[str], codes: np.ndarray, counts: np.ndarray
) -> np.ndarray | None:
    kind = array.type
    if is_text(kind) and texts:
        values = pa.array(texts, pa.string())
        # 01234 is a code. Parsing all of many words that are not numbers would be slow.
        is_code = pc.any(pc.match_substring_regex(values, r"^-?0[0-9]")).as_py()
        if is_code or parse_numbers(values[:100])[1].mean() > 0.5:
            return None
        parsed, bad = parse_numbers(values)
        if counts[bad].sum() > _FEW_BAD * counts.sum():
            return None
        parsed = parsed.take(pa.array(codes, mask=codes < 0))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        parsed, _ = parse_numbers(array)
    else:
        return None
    numbers = pc.fill_null(parsed, np.nan).to_numpy(zero_copy_only=False)
    return numbers if np.isfinite(numbers).any() else None


def decide_feature(column: Column, whole: bool = True) -> Decision:
    """Decides which feature a column becomes, or why it is unused; ``whole``: whether the sample is the whole table."""
    texts = column.texts[:LOOKED]
    if not texts:
        return not_used("it has no values")
    if column.distinct == 1 and not column.missing_share and whole:
        return not_used("it is constant")
    if pa.types.is_temporal(column.array.type):
        return not_used("a time that is not the time of the row")
    if column.is_list or (is_text(column.array.type) and column.numbers is None):
        if _is_vector(column, texts):
            return not_used("lists of numbers with fractions (vectors), which are no categories")
        if column.is_list:
            return _list_feature(column, "|")
        if any("," in text for text in texts) and all(_WITH_COMMA.fullmatch(text.strip()) for text in texts):
            if (numbers := _with_points(column)) is not None:
                decision = _number_or_category(numbers)
                because = f"{decision.because}; with a decimal comma"
                return replace(decision, because=because, cast="decimal_comma")
            because = "numbers with a comma are read as texts: write a decimal point to use them as numbers"
            return _category(column, because)
        if (separated := find_list_form(texts, column.counts[:LOOKED].tolist())) is not None:
            return _list_feature(column, *separated)
        if _is_prose(texts):
            feature = {"kind": "text", "source": column.name}
            return Decision("text, its words", "most values are several words", feature)
    if column.numbers is not None:
        return _number_or_category(column)
    return _category(column, "")


def _category(column: Column, because: str) -> Decision:
    if column.is_unique:
        return not_used("unique per row, so useless as a feature")
    return Decision("category", because, {"kind": "category", "source": column.name})


def _list_feature(column: Column, separator: str, strip: str = "") -> Decision:
    items = {item for text in column.texts[:LOOKED] for item in split_items(text, separator, strip)}
    if items <= {"0", "1", "0.0", "1.0"}:
        return not_used("lists of 0 and 1 (vectors): what their places mean is not known")
    if column.is_list and any("|" in str(item) for item in column.array.flatten().drop_null().to_pylist()):
        # A separator that joins items for a model that takes texts must not occur in them.
        separator = "\x1f"
    feature = {"kind": "category", "source": column.name, "multivalent": True, "separator": separator}
    because = "lists" if column.is_list else f"lists in brackets, {separator!r} between the items" if strip else (
        f"{separator!r} between items that recur")  # fmt: skip
    return Decision("categories, a list", because, {**feature, "strip": strip} if strip else feature)


def split_items(text: str, separator: str, strip: str) -> list[str]:
    """Splits a text into its non-empty items, as the feature of the mapping does."""
    parts = text.split(separator)
    return [item for part in parts if (item := part.strip(strip) if strip else part)]


def _is_vector(column: Column, texts: Sequence[str]) -> bool:
    """Returns whether the values are lists of numbers with fractions."""
    if column.is_list and pa.types.is_floating(column.array.type.value_type):
        values = column.array.flatten().drop_null().cast(pa.float64())
        return bool(pc.any(pc.not_equal(values, pc.floor(values)), min_count=0).as_py())
    matches = [match for text in texts if (match := _VECTOR.fullmatch(text.strip())) is not None]
    several = [match for match in matches if match[1] is not None and re.search(r"\.\d|\de", match[0])]
    return len(matches) >= 0.99 * len(texts) and len(several) >= 0.5 * len(texts)


def find_list_form(texts: Sequence[str], counts: Sequence[int]) -> tuple[str, str] | None:
    """Returns the separator of lists and the characters around items, or None if the distinct texts are not lists."""
    ends = [text[:1] + text[-1:] for text in map(str.strip, texts)]
    brackets = next((pair for pair in ("[]", "()", "{}") if ends.count(pair) >= 0.99 * len(ends)), None)
    if brackets is None:
        return next(((mark, "") for mark in _MARKS if _is_separator(texts, counts, mark)), None)
    strip = brackets + "'\" "
    written = [_written_items(text.strip()[1:-1]) for text in texts]
    if not any(written):
        return None
    # The first mark of the best fit.
    fits = [
        sum(split_items(text, mark, strip) == items for text, items in zip(texts, written, strict=True))
        for mark in _BRACKETED_MARKS
    ]
    return _BRACKETED_MARKS[int(np.argmax(fits))], strip


def _written_items(content: str) -> list[str]:
    """Returns the items of a list as written by Python, JSON or NumPy."""
    try:
        texts = list(map(str, ast.literal_eval(f"[{content}]")))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        texts = [item[1:-1] if item[0] in "'\"" else item for item in _ITEMS.findall(content)]
    return [item for text in texts if (item := text.strip())]


def _is_separator(texts: Sequence[str], counts: Sequence[int], mark: str) -> bool:
    """Returns whether ``mark`` splits distinct texts, with their row counts, into varying lists of recurring items."""
    parts = [text.split(mark) for text in texts]
    lengths = [len(part) for part in parts]
    several = sum(length > 1 for length in lengths)
    if several < max(3, 0.05 * len(texts)) or len(set(lengths)) < 2:
        return False
    items = [item for part in parts for item in part]
    distinct = set(items)
    if max(map(len, distinct)) > 40:
        return False
    if mark in (" ", ",", ", ") and any(item != item.strip() or not item for item in distinct):
        # "Smith, John", or double spaces.
        return False
    if mark in (" ", ", "):
        # Names such as New York have few words in common; genres are combined in many ways.
        return len(distinct) <= min(0.5 * len(texts), 200)
    if not mark.isprintable() or mark == "^":
        return len(distinct) <= 0.9 * len(items)
    rows = sum(length * count for length, count in zip(lengths, counts, strict=True))
    return len(distinct) < len(items) and len(distinct) <= 0.2 * rows


def _is_prose(texts: Sequence[str]) -> bool:
    """Returns whether most values are several words each, from a large vocabulary."""
    tokens = [word for text in texts for word in text.lower().split()]
    several = sum(len(text.split()) > 1 for text in texts)
    return several > 0.5 * len(texts) and len(set(tokens)) > max(50, 0.1 * len(tokens))


def _with_points(column: Column) -> Column | None:
    """Converts decimal commas to points; None if a value does not fit or all may separate thousands (``1,250``)."""
    pattern, spelled = CASTS["decimal_comma"]
    matches = [match for text in column.texts if (match := re.match(pattern, text))]
    is_decimal = any(re.search(r",(\d{1,2}|\d{4,})\s*$", text) for text in column.texts)
    if not is_decimal or len(matches) < column.distinct:
        return None
    texts = pa.array([match.expand(spelled) for match in matches], pa.string())
    return profile_column(column.name, texts.take(pa.array(column.codes, mask=column.codes < 0)))


def _number_or_category(column: Column) -> Decision:
    if not column.is_whole:
        return _number(column, "fractions")
    # Amounts begin near 0, and small ones are the most frequent; -1 or 0 may stand for none, before ids.
    positive = column.finite[column.finite > 0]
    is_amount = len(positive) > 0 and positive.min() <= 10 and 4 * np.median(positive) < positive.max()
    if column.distinct <= (_FEWEST if is_amount else _FEW):
        return _category(column, "few whole numbers")
    if column.is_unique and bool((np.diff(column.finite) > 0).all()):
        return not_used("a number of the row: it grows from row to row")
    if is_amount:
        return _number(column, "looks like a count")
    return _category(column, "whole numbers spread like ids")


def _number(column: Column, because: str) -> Decision:
    feature: dict[str, Any] = {"kind": "number", "source": column.name}
    values = column.finite
    low, high = (float(edge) for edge in np.quantile(values, [0.005, 0.995], method="nearest"))
    because = f"{because}; from {values.min():.15g} to {values.max():.15g}"
    size = _round_step((high - low) / _STEPS)
    if size > 0 and _is_even(values, low, high, size):
        size = max(size, 1.0) if column.is_whole else size
        begin, end = (
            float(f"{edge:.10g}") for edge in (math.floor(low / size) * size, math.ceil(high / size) * size)
        )
        if begin < end and max(abs(begin), abs(end)) < 1e30:
            feature["step"] = {"low": begin, "high": end, "size": float(f"{size:.10g}")}
            return Decision("number, even buckets", because, feature)
    edges = sorted({float(f"{edge:.4g}") for edge in np.quantile(values, np.linspace(0, 1, 33)[1:-1])})
    edges = [edge for edge in edges if abs(edge) < 1e30 and edge > float(values.min())]
    if not edges and values.min() < values.max():
        edges = [float(f"{float(values[values > values.min()].min()):.4g}")]
    if not edges:
        return _category(column, because)
    feature["boundaries"] = edges
    return Decision(f"number, {len(edges) + 1} buckets", f"{because}; as many rows in each bucket", feature)


def _is_even(values: np.ndarray, low: float, high: float, size: float) -> bool:
    """Returns whether even buckets separate values well: no bucket has too many, and no end has half of them."""
    distinct, counts = np.unique(values, return_counts=True)
    fullest = np.unique(np.floor(values / size), return_counts=True)[1].max()
    if fullest > max(0.3 * len(values), 1.2 * counts.max()):
        return False
    others = values[values != distinct[counts.argmax()]]
    return not len(others) or _TAIL <= (float(np.median(others)) - low) / (high - low) <= 1 - _TAIL


def _round_step(size: float) -> float:
    """Returns the largest 1, 2 or 5 times a power of ten up to ``size``; 0 if ``size`` is out of range."""
    if not 1e-20 < size < 1e20:
        return 0.0
    power = 10.0 ** math.floor(math.log10(size))
    return next(step * power for step in (5.0, 2.0, 1.0) if step * power <= size * (1 + 1e-9))


def feature_name(column: str, taken: Collection[str]) -> str:
    """Returns a name for a column's feature that is neither ``taken`` nor reserved for a column of a log.

    Letters and digits of all scripts, _ . and - are unchanged; each run of other characters becomes one _.
    """
    letters = (
        letter if letter in "_.-" or unicodedata.category(letter)[0] in "LM" or letter.isdecimal() else " "
        for letter in column
    )
    name = "_".join("".join(letters).split()).strip("_") or "column"
    name = (name if name[0].isalpha() else f"c_{name}")[:90]
    name += "_value" if name in RESERVED_NAMES else ""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken and name not in RESERVED_NAMES)


LEAK = 0.99  # a column with this AUC alone is refused
SHOWN = 3  # columns
QUANTILES = 40  # numbers with more distinct values than this are grouped by this many quantiles

# Consecutive rows, such as a query's, stay together; both halves see drift.
_BLOCKS = 20
# Number of prior rows, at the overall rate, in the smoothed rate of a value.
_PRIOR_ROWS = 10.0
_FEWEST_OF_A_CLASS = 10


def _value_groups(column: Column) -> np.ndarray:
    # Many numbers are grouped by quantiles; -1 where the value is missing.
    if column.numbers is None or column.distinct <= QUANTILES:
        return column.codes
    edges = np.unique(np.quantile(column.finite, np.linspace(0, 1, QUANTILES + 1)[1:-1]))
    # If most values are 0, the others form separate groups.
    edges = np.union1d(edges, np.nextafter(column.finite.min(), np.inf))
    finite = np.isfinite(column.numbers)
    return np.where(finite, np.searchsorted(edges, column.numbers, side="right"), -1)


def auc_alone(column: Column, labels: np.ndarray, labeled: np.ndarray) -> float | None:
    """Computes the AUC of a column alone: each value predicts its share of positive rows in the other half of the rows.

    ``labels`` is [N] 0 or 1; ``labeled``, [N] bool, marks the rows with a label. Every other block of rows is in one
    half. Returns the mean over both halves, or None if one has too few rows of a class.
    """
    label = labels[labeled].astype(np.int64)
    _, groups = np.unique(_value_groups(column)[labeled], return_inverse=True)
    count = int(groups.max(initial=0)) + 1
    odd = np.arange(len(label)) * _BLOCKS // max(len(label), 1) % 2 == 1
    aucs = []
    for judged, learned in ((odd, ~odd), (~odd, odd)):
        if not _FEWEST_OF_A_CLASS <= label[judged].sum() <= judged.sum() - _FEWEST_OF_A_CLASS:
            return None
        rows = np.bincount(groups[learned], minlength=count)
        clicks = np.bincount(groups[learned], label[learned], minlength=count)
        shares = (clicks + _PRIOR_ROWS * label[learned].mean()) / (rows + _PRIOR_ROWS)
        aucs.append(roc_auc(label[judged], shares[groups[judged]]))
    return sum(aucs) / len(aucs)


def strongest_columns(columns: Columns, labels: np.ndarray, labeled: np.ndarray) -> list[tuple[str, float]]:
    """Returns the name and AUC of each column for which ``auc_alone`` is defined, largest first."""
    aucs = [(name, auc_alone(column, labels, labeled)) for name, column in columns.items()]
    return sorted([(name, auc) for name, auc in aucs if auc is not None], key=lambda pair: -pair[1])


def strongest_text(strongest: list[tuple[str, float]]) -> str:
    """Formats the three strongest columns with their AUCs; empty if there are none."""
    if not strongest:
        return ""
    aucs = ", ".join(f"{printable(name)} {auc:.3f}" for name, auc in strongest[:SHOWN])
    return (
        f"The strongest columns alone, by their AUC in the sample: {aucs}. One that is known only after the click has "
        "no place in a model: --drop COLUMN --out OTHER trains without it"
    )
