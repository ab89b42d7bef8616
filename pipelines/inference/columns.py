"""Facts about a column's values: how many, how often, numbers, texts, times, or lists and how they are written."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.ids.arrow import text_array
from ctr.data.spelling import CASTS
from ctr.pipelines.rows.convert import is_text, parse_numbers

LOOKED = 2000  # so many distinct values are looked at

_MARKS = (*"|;,^#~\x01\x02\x03\x1c\x1d\x1e\x1f\t", ", ", " ")
# What no text but a list has between its parts.
_CONTROLS = "^\x01\x02\x03\x1c\x1d\x1e\x1f"
_BRACKETS = ("[]", "()", "{}")
_QUOTES = "'\""
_QUOTED_MARKS = (",", "', '", '", "', "','", '","', "' '", " ")
_FRACTION = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][-+]?\d+)")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|nan|NaN|None|null")
_ITEMS = re.compile(r"""'[^']*'|"[^"]*"|[^\s,]+""")
_FEW_BAD = 0.01


@dataclass(frozen=True)
class ListForm:
    """Separator of the items of lists, and the characters around the items that are none of them."""

    separator: str
    strip: str = ""

    def items(self, text: str) -> list[str]:
        """The items of a text, as the feature of a mapping has them."""
        parts = text.split(self.separator)
        return [item for part in parts if (item := part.strip(self.strip) if self.strip else part)]


def find_list_form(texts: Sequence[str], counts: Sequence[int]) -> ListForm | None:
    """Finds out how distinct texts, each in so many rows, hold lists; None where they do not."""
    brackets = next((pair for pair in _BRACKETS if _are_within(texts, pair)), None)
    if brackets is not None:
        return _bracketed_form(texts, brackets)
    return next((ListForm(mark) for mark in _MARKS if _is_separator(texts, counts, mark)), None)


def is_vector(texts: Sequence[str]) -> bool:
    """Tells whether texts are lists of numbers with fractions."""
    brackets = next((pair for pair in _BRACKETS if _are_within(texts, pair)), "")
    for mark in _MARKS:
        several = fractions = bad = 0
        for text in texts:
            items = [item for part in text.strip(brackets + " ").split(mark) if (item := part.strip())]
            several += len(items) > 1
            bad += not all(map(_NUMBER.fullmatch, items))
            fractions += any(map(_FRACTION.fullmatch, items))
        few = _FEW_BAD * len(texts)
        if bad <= few and several >= 0.5 * len(texts) and fractions >= 0.5 * len(texts):
            return True
    return False


def _are_within(texts: Sequence[str], pair: str) -> bool:
    """Whether nearly all texts begin and end with a pair of brackets."""
    stripped = [text.strip() for text in texts]
    within = sum(len(text) > 1 and text[0] == pair[0] and text[-1] == pair[1] for text in stripped)
    return within >= (1 - _FEW_BAD) * len(texts)


def _bracketed_form(texts: Sequence[str], brackets: str) -> ListForm | None:
    """The separator by which the items of most texts are what Python, JSON or NumPy has written."""
    written = [_written_items(text.strip()[1:-1]) for text in texts]
    if not any(written):
        return None
    quoted = any(mark in text for mark in _QUOTES for text in texts)
    strip = brackets + (_QUOTES if quoted else "") + " "
    forms = [ListForm(mark, strip) for mark in _QUOTED_MARKS]
    fits = [
        sum(form.items(text) == items for text, items in zip(texts, written, strict=True)) for form in forms
    ]
    return forms[fits.index(max(fits))]


def _written_items(content: str) -> list[str]:
    try:
        found = ast.literal_eval(f"[{content}]")
        texts = [str(item) for item in found]
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        texts = [item[1:-1] if item[0] in _QUOTES else item for item in _ITEMS.findall(content)]
    return [item for text in texts if (item := text.strip())]


def _is_separator(texts: Sequence[str], counts: Sequence[int], mark: str) -> bool:
    """Whether distinct texts, each in so many rows, are lists of items that come back, some longer than others."""
    parts = [text.split(mark) for text in texts]
    lengths = [len(part) for part in parts]
    several = sum(length > 1 for length in lengths)
    if several < 0.05 * len(texts) or several < 3 or (len(set(lengths)) < 2 and not _change_places(parts)):
        return False
    items = [item for part in parts for item in part]
    distinct = set(items)
    if any(item != item.strip() or not item for item in distinct) and mark in (" ", ",", ", "):
        # "Smith, John", or double spaces.
        return False
    if max(map(len, distinct)) > 40:
        return False
    if mark in (" ", ", "):
        # Names such as New York have few words in common; genres are combined in many ways. What keeps quotes or
        # brackets was not cut where it should be.
        torn = sum(item[0] in "[({'\"" or item[-1] in "])}'\"," for item in distinct)
        return len(distinct) <= min(0.5 * len(texts), 200) and torn <= _FEW_BAD * len(distinct)
    if mark in _CONTROLS and len(distinct) <= 0.9 * len(items):
        return True
    rows = sum(length * count for length, count in zip(lengths, counts, strict=True))
    return len(distinct) < len(items) and len(distinct) <= 0.2 * rows


def _change_places(parts: Sequence[Sequence[str]]) -> bool:
    """Whether lists of one length, of three items or more, have the same items at all places."""
    if len(parts[0]) < 3:
        return False
    places = [set(place) for place in zip(*parts, strict=True)]
    return len(set().union(*places)) <= 0.5 * sum(map(len, places))


# Texts that mean a missing value where they stand among numbers, and the first three everywhere.
NULLS = ("NULL", "null", "\\N", "NA", "N/A", "n/a", "None", "NaN", "nan", "<NA>", "#N/A")
# A column is of a type when at most this share of its values is not: such rows become rejects.
BAD_SHARE = 0.001

_RECBOLE = re.compile(r":(token|float|token_seq|float_seq)$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WITH_COMMA = re.compile(r"[-+]?(\d+|\d*,\d+|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+)")
_DECIMAL_COMMA = re.compile(r",(\d{1,2}|\d{4,})\s*$|\.\d{3},")
_SHOWN = 24

Kind = Literal["empty", "number", "word", "list", "text", "time"]


@dataclass(frozen=True)
class ColumnFacts:
    """Values of one column in a sample of N rows."""

    name: str
    array: pa.Array  # [N] the values, as an ingest has them
    texts: Sequence[str]  # the distinct values, in order of their first row
    codes: np.ndarray  # [N] int64, the place of each value in ``texts``; -1 where it is missing
    row_numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # see ``Sample``
    file: str = ""  # of the row numbers, where there are several files

    @property
    def stem(self) -> str:
        """The name without what RecBole puts behind it."""
        return _RECBOLE.sub("", self.name)

    @cached_property
    def words(self) -> tuple[str, ...]:
        parts = re.split(r"[^A-Za-z0-9]+", _CAMEL.sub("_", self.stem))
        return tuple(part.lower() for part in parts if part)

    @property
    def plain_name(self) -> str:
        return "_".join(self.words)

    @property
    def rows(self) -> int:
        return len(self.codes)

    @cached_property
    def counts(self) -> np.ndarray:
        """[distinct] int64: how often each value occurs."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

    @property
    def distinct(self) -> int:
        return len(self.texts)

    @cached_property
    def present(self) -> int:
        return int((self.codes >= 0).sum())

    @property
    def missing_share(self) -> float:
        return 1 - self.present / self.rows if self.rows else 0.0

    @cached_property
    def is_list(self) -> bool:
        kind = self.array.type
        return pa.types.is_list(kind) or pa.types.is_large_list(kind)

    @cached_property
    def numbers(self) -> np.ndarray | None:
        """[N] float64, NaN where missing or unreadable; None unless nearly all values are numbers."""
        kind = self.array.type
        if not self.present or self.is_list or pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
            return None
        if is_text(kind):
            values = pa.array(self.texts, pa.string())
            if pc.any(pc.match_substring_regex(values, r"^-?0[0-9]")).as_py():
                # 01234 is a code.
                return None
            parsed, bad = parse_numbers(values)
            if self.counts[bad].sum() > BAD_SHARE * self.present:
                return None
            distinct = pc.fill_null(parsed, np.nan).to_numpy(zero_copy_only=False)
            numbers = np.where(self.codes >= 0, distinct[self.codes], np.nan)
        else:
            parsed, _ = parse_numbers(self.array)
            numbers = pc.fill_null(parsed, np.nan).to_numpy(zero_copy_only=False)
        return numbers if np.isfinite(numbers).any() else None

    @cached_property
    def finite(self) -> np.ndarray:
        """The numbers that are finite, in order of rows; empty for other columns."""
        return np.zeros(0) if self.numbers is None else self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def is_whole(self) -> bool:
        return bool(len(self.finite)) and bool((self.finite == np.floor(self.finite)).all())

    @cached_property
    def has_commas(self) -> bool:
        """Whether the values are numbers with a decimal comma, or with commas between thousands."""
        if self.is_list or self.numbers is not None or not self.present:
            return False
        texts = [text.strip() for text in self.texts[:LOOKED]]
        return any("," in text for text in texts) and all(map(_WITH_COMMA.fullmatch, texts))

    @cached_property
    def with_points(self) -> "ColumnFacts | None":
        """Decimal commas as points; None unless all values are such: ``1,250`` may have its comma between thousands."""
        if not self.has_commas or not any(map(_DECIMAL_COMMA.search, self.texts)):
            return None
        pattern, spelled = CASTS["decimal_comma"]
        matches = [re.match(pattern, text) for text in self.texts]
        if not all(matches):
            return None
        texts = [match.expand(spelled) for match in matches if match is not None]
        array = pa.array(texts, pa.string()).take(pa.array(self.codes, mask=self.codes < 0))
        return ColumnFacts(self.name, array, texts, self.codes)

    @cached_property
    def list_form(self) -> ListForm | None:
        """How text values hold lists; None unless they do."""
        if self.is_list or self.numbers is not None or not self.present or self.has_commas:
            return None
        texts, counts = self.texts[:LOOKED], self.counts[:LOOKED].tolist()
        if self.name.endswith((":token_seq", ":float_seq")) and not self._is_prose(texts):
            return ListForm(" ")
        return find_list_form(texts, counts)

    @cached_property
    def is_vector(self) -> bool:
        """Whether the values are lists of numbers with fractions."""
        if self.is_list:
            items = self.array.flatten().drop_null()
            if not pa.types.is_floating(items.type) and not pa.types.is_decimal(items.type):
                return is_text(items.type) and bool(len(items)) and is_vector(self.texts[:LOOKED])
            values = items.cast(pa.float64())
            return bool(pc.any(pc.not_equal(values, pc.floor(values))).as_py())
        if self.numbers is not None or not self.present or self.has_commas or not is_text(self.array.type):
            return False
        return is_vector(self.texts[:LOOKED])

    @cached_property
    def kind(self) -> Kind:
        """What the values are, times in text form apart (``ctr.pipelines.inference.times``)."""
        if not self.present:
            return "empty"
        if pa.types.is_temporal(self.array.type):
            return "time"
        if self.is_list or self.is_vector or self.list_form is not None:
            return "list"
        if self.numbers is not None:
            return "number"
        return "text" if self._is_prose(self.texts[:LOOKED]) else "word"

    @staticmethod
    def _is_prose(texts: Sequence[str]) -> bool:
        """Whether most values are several words each, and few of the words come back often."""
        words = [word for text in texts for word in text.lower().split()]
        several = sum(len(text.split()) > 1 for text in texts)
        return several > 0.5 * len(texts) and len(set(words)) > max(50, 0.1 * len(words))

    def placed(self, text: str, rows: np.ndarray) -> str:
        """A text with the first of some rows, [N] bool: ``text, first in row 17``, where its number is known."""
        places = np.flatnonzero(rows)
        number = int(self.row_numbers[places[0]]) if len(places) and len(self.row_numbers) else 0
        return f"{text}, first in row {number}{f' of {self.file}' if self.file else ''}" if number else text

    def value_at(self, rows: np.ndarray) -> str:
        """The value in the first of some rows, [N] bool, short enough to be shown; empty where it is missing."""
        code = int(self.codes[np.flatnonzero(rows)[0]])
        return _shorten(self.texts[code]) if code >= 0 else ""

    def describe(self) -> str:
        """Lists some of its distinct values, and the share of rows without one."""
        if not self.present:
            return "no values"
        shown = [_shorten(self.texts[place]) for place in np.argsort(-self.counts, kind="stable")[:3]]
        text = f"{self.distinct:,} value{'s' * (self.distinct > 1)}, e.g. {', '.join(shown)}"
        return text + (f"; {percent(self.missing_share)} missing" if self.missing_share else "")


def percent(share: float) -> str:
    """Formats a share with two significant digits."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.4g}%"


def _shorten(text: str) -> str:
    text = " ".join(text.split()) or repr(text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def column_facts(
    name: str, array: pa.Array, row_numbers: np.ndarray | None = None, file: str = ""
) -> ColumnFacts:
    """Collects the facts of a column; empty text is missing, as in an ingest."""
    values = array
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        items = array.cast(pa.list_(pa.string())) if not pa.types.is_null(array.type.value_type) else array
        joined = [None if row is None else "|".join(item or "" for item in row) for row in items.to_pylist()]
        values = pa.array(joined, pa.string())
    elif pa.types.is_temporal(array.type) or pa.types.is_null(array.type):
        values = array.cast(pa.string())
    values = text_array(values).cast(pa.large_string())
    values = pc.if_else(pc.equal(values, ""), None, values)
    encoded = values.dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = np.zeros(0, np.int64) if row_numbers is None else row_numbers
    return ColumnFacts(name, array, encoded.dictionary.to_pylist(), codes, numbers, file)


def find_nulls(columns: dict[str, pa.Array]) -> tuple[str, ...]:
    """Finds the texts in columns of a delimited file that mean a missing value, apart from the empty one."""
    found: dict[str, None] = {}
    for array in columns.values():
        if not is_text(array.type):
            continue
        distinct = pc.unique(array.drop_null()).to_pylist()
        words = [text for text in NULLS if text in distinct]
        if not words:
            continue
        others = pa.array([text for text in distinct if text and text not in NULLS], pa.string())
        _, bad = parse_numbers(others)
        between_numbers = len(others) > 0 and not bad.any()
        found |= dict.fromkeys(word for word in words if between_numbers or word in NULLS[:3])
    return tuple(found)


def without_nulls(array: pa.Array, nulls: Sequence[str]) -> pa.Array:
    """Makes texts of a column missing that mean a missing value."""
    if not nulls or not is_text(array.type):
        return array
    return pc.if_else(pc.is_in(array, pa.array(nulls, array.type)), None, array)
