"""Profile of a column: how many values, how often, and what they are: numbers, words, texts, times or lists."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.ids.arrow import is_text, text_array
from ctr.data.spelling import CASTS
from ctr.pipelines.rows.convert import parse_numbers

_MARKS = (*"|;,^#~\x01\x02\x03\x1c\x1d\x1e\x1f\t", ", ", " ")
# What no text but a list has between its parts.
_CONTROLS = "^\x01\x02\x03\x1c\x1d\x1e\x1f"
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
    if brackets := _find_brackets(texts):
        return _bracketed_form(texts, brackets)
    return next((ListForm(mark) for mark in _MARKS if _is_separator(texts, counts, mark)), None)


def is_vector(texts: Sequence[str]) -> bool:
    """Tells whether texts are lists of numbers with fractions."""
    around = _find_brackets(texts) + " "
    inner = [text.strip(around) for text in texts]
    for mark in _MARKS:
        lists = [[item for part in text.split(mark) if (item := part.strip())] for text in inner]
        bad = sum(not all(map(_NUMBER.fullmatch, items)) for items in lists)
        several = sum(len(items) > 1 for items in lists)
        fractions = sum(any(map(_FRACTION.fullmatch, items)) for items in lists)
        if bad <= _FEW_BAD * len(texts) and min(several, fractions) >= 0.5 * len(texts):
            return True
    return False


def _find_brackets(texts: Sequence[str]) -> str:
    """The pair of brackets within which nearly all texts are; empty where there is none."""
    ends = [text[:1] + text[-1:] for text in map(str.strip, texts)]
    return next((pair for pair in ("[]", "()", "{}") if ends.count(pair) >= (1 - _FEW_BAD) * len(ends)), "")


def _bracketed_form(texts: Sequence[str], brackets: str) -> ListForm | None:
    """The separator by which the items of most texts are what Python, JSON or NumPy has written."""
    written = [_written_items(text.strip()[1:-1]) for text in texts]
    if not any(written):
        return None
    quoted = any(mark in text for mark in _QUOTES for text in texts)
    strip = brackets + (_QUOTES if quoted else "") + " "
    forms = [ListForm(mark, strip) for mark in _QUOTED_MARKS]
    # The first of those that fit the most texts.
    return max(forms, key=lambda form: sum(map(list.__eq__, map(form.items, texts), written)))


def _written_items(content: str) -> list[str]:
    try:
        texts = list(map(str, ast.literal_eval(f"[{content}]")))
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
    """Returns whether lists of one length, of three items or more, have the same items at all places."""
    if len(parts[0]) < 3:
        return False
    places = [set(place) for place in zip(*parts, strict=True)]
    return len(set().union(*places)) <= 0.5 * sum(map(len, places))


LOOKED = 2000  # so many distinct values are looked at
# Texts that mean a missing value where they stand among numbers, and the first three everywhere.
NULLS = ("NULL", "null", "\\N", "NA", "N/A", "n/a", "None", "NaN", "nan", "<NA>", "#N/A")

# A column is of a type when at most this share of its values is not: such rows become rejects.
_BAD_SHARE = 0.001
_RECBOLE = re.compile(r":(token|float|token_seq|float_seq)$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WITH_COMMA = re.compile(r"[-+]?(\d+|\d*,\d+|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+)")
_DECIMAL_COMMA = re.compile(r",(\d{1,2}|\d{4,})\s*$|\.\d{3},")
_SHOWN = 24

# A vector is a list of numbers with fractions; "commas" are numbers with a decimal comma, or with commas between
# thousands. Times in text form are words (``ctr.pipelines.inference.times``).
Kind = Literal["empty", "number", "commas", "word", "list", "vector", "text", "time"]


@dataclass(frozen=True)
class ColumnProfile:
    """Values of one column in a sample of N rows, and what they are."""

    name: str
    array: pa.Array  # [N] the values, as an ingest has them
    texts: Sequence[str]  # the distinct values, in order of their first row
    codes: np.ndarray  # [N] int64, the place of each value in ``texts``; -1 where it is missing
    stem: str  # the name without what RecBole puts behind it
    words: tuple[str, ...]  # of the name, in lower case
    counts: np.ndarray  # [distinct] int64: how often each value occurs
    is_list: bool  # its type is one of lists
    numbers: (
        np.ndarray | None
    )  # [N] float64, NaN where missing or unreadable; None unless nearly all are numbers
    finite: np.ndarray  # the numbers that are finite, in order of rows; empty for other columns
    is_whole: bool  # there are numbers, and all are whole
    list_form: ListForm | None  # how text values hold lists; None unless they do
    kind: Kind
    row_numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # see ``Sample``
    file: str = ""  # of the row numbers, where there are several files

    @property
    def plain_name(self) -> str:
        return "_".join(self.words)

    @property
    def rows(self) -> int:
        return len(self.codes)

    @property
    def distinct(self) -> int:
        return len(self.texts)

    @cached_property
    def present(self) -> int:
        return int(self.counts.sum())

    @property
    def missing_share(self) -> float:
        return 1 - self.present / self.rows if self.rows else 0.0

    @cached_property
    def lower(self) -> list[str]:
        """The distinct values in lower case, without spaces around them."""
        return [text.strip().lower() for text in self.texts]

    @cached_property
    def with_points(self) -> "ColumnProfile | None":
        """Decimal commas as points; None unless all values are such: ``1,250`` may have its comma between thousands."""
        if self.kind != "commas" or not any(map(_DECIMAL_COMMA.search, self.texts)):
            return None
        pattern, spelled = CASTS["decimal_comma"]
        matches = [re.match(pattern, text) for text in self.texts]
        if not all(matches):
            return None
        texts = [match.expand(spelled) for match in matches if match is not None]
        array = pa.array(texts, pa.string()).take(pa.array(self.codes, mask=self.codes < 0))
        return _profile(self.name, array, texts, self.codes)

    def has_word(self, words: frozenset[str]) -> bool:
        """Tells whether its name has one of some words."""
        return not words.isdisjoint(self.words)

    def consists_of(self, words: frozenset[str], helpers: frozenset[str]) -> bool:
        """Tells whether its name consists of some words, at least one, and of helpers."""
        return self.has_word(words) and set(self.words) <= words | helpers

    def placed(self, text: str, rows: np.ndarray) -> str:
        """A text with the first of some rows, [N] bool: ``text, first in row 17``, where its number is known."""
        places = np.flatnonzero(rows)
        number = int(self.row_numbers[places[0]]) if len(places) and len(self.row_numbers) else 0
        return f"{text}, first in row {number}{f' of {self.file}' if self.file else ''}" if number else text

    def value_at(self, rows: np.ndarray) -> str:
        """The value in the first of some rows, [N] bool, short enough to be shown; empty where it is missing."""
        code = int(self.codes[np.flatnonzero(rows)[0]])
        return _shorten(self.texts[code]) if code >= 0 else ""

    def first_of(self, rows: np.ndarray) -> str:
        """The value in the first of some rows, [N] bool, or that there is none; and its row."""
        return self.placed(self.value_at(rows) or "no value", rows)

    def describe(self) -> str:
        """Lists some of its distinct values, and the share of rows without one."""
        if not self.present:
            return "no values"
        shown = [_shorten(self.texts[place]) for place in np.argsort(-self.counts, kind="stable")[:3]]
        text = f"{self.distinct:,} value{'s' * (self.distinct > 1)}, e.g. {', '.join(shown)}"
        return text + (f"; {percent(self.missing_share)} missing" if self.missing_share else "")


Columns = Mapping[str, ColumnProfile]


def percent(share: float) -> str:
    """Formats a share with two significant digits."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.4g}%"


def count_rows(rows: np.ndarray) -> str:
    """Formats how many rows are meant, [N] bool: ``60 of 3,000 rows``."""
    return f"{int(rows.sum()):,} of {len(rows):,} rows"


def _shorten(text: str) -> str:
    text = " ".join(text.split()) or repr(text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def profile_column(
    name: str, array: pa.Array, row_numbers: np.ndarray | None = None, file: str = ""
) -> ColumnProfile:
    """Profiles a column; empty text is missing, as in an ingest."""
    values = array
    if _is_list(array.type):
        items = array.cast(pa.list_(pa.string())) if not pa.types.is_null(array.type.value_type) else array
        joined = [None if row is None else "|".join(item or "" for item in row) for row in items.to_pylist()]
        values = pa.array(joined, pa.string())
    elif pa.types.is_temporal(array.type) or pa.types.is_null(array.type):
        values = array.cast(pa.string())
    values = text_array(values).cast(pa.large_string())
    encoded = pc.if_else(pc.equal(values, ""), None, values).dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    found = _profile(name, array, encoded.dictionary.to_pylist(), codes)
    return found if row_numbers is None else replace(found, row_numbers=row_numbers, file=file)


def _profile(name: str, array: pa.Array, texts: Sequence[str], codes: np.ndarray) -> ColumnProfile:
    stem = _RECBOLE.sub("", name)
    words = tuple(word.lower() for word in re.findall(r"[A-Za-z0-9]+", _CAMEL.sub("_", stem)))
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    is_list = _is_list(array.type)
    numbers = None if is_list or not len(texts) else _numbers(array, texts, codes, counts)
    finite = np.zeros(0) if numbers is None else numbers[np.isfinite(numbers)]
    is_whole = bool(len(finite)) and bool((finite == np.floor(finite)).all())
    kind, form = _kind(name, array, texts[:LOOKED], counts[:LOOKED].tolist(), numbers is not None)
    return ColumnProfile(
        name, array, texts, codes, stem, words, counts, is_list, numbers, finite, is_whole, form, kind
    )


def _kind(
    name: str, array: pa.Array, texts: Sequence[str], counts: Sequence[int], is_number: bool
) -> tuple[Kind, ListForm | None]:
    """The kind of values of which some are looked at, each in so many rows, and how they hold lists."""
    if not texts:
        return "empty", None
    if pa.types.is_temporal(array.type):
        return "time", None
    if _is_list(array.type):
        return "vector" if _has_fractions(array, texts) else "list", None
    if is_number:
        return "number", None
    stripped = [text.strip() for text in texts]
    if any("," in text for text in stripped) and all(map(_WITH_COMMA.fullmatch, stripped)):
        return "commas", None
    if is_text(array.type) and is_vector(texts):
        return "vector", None
    is_prose = _is_prose(texts)
    has_spaces = name.endswith((":token_seq", ":float_seq")) and not is_prose
    if form := ListForm(" ") if has_spaces else find_list_form(texts, counts):
        return "list", form
    return "text" if is_prose else "word", None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _numbers(
    array: pa.Array, texts: Sequence[str], codes: np.ndarray, counts: np.ndarray
) -> np.ndarray | None:
    kind = array.type
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        return None
    if is_text(kind):
        values = pa.array(texts, pa.string())
        if pc.any(pc.match_substring_regex(values, r"^-?0[0-9]")).as_py():
            # 01234 is a code.
            return None
        parsed, bad = parse_numbers(values)
        if counts[bad].sum() > _BAD_SHARE * counts.sum():
            return None
        parsed = parsed.take(pa.array(codes, mask=codes < 0))
    else:
        parsed, _ = parse_numbers(array)
    numbers = pc.fill_null(parsed, np.nan).to_numpy(zero_copy_only=False)
    return numbers if np.isfinite(numbers).any() else None


def _has_fractions(lists: pa.Array, texts: Sequence[str]) -> bool:
    """Returns whether lists hold numbers with fractions."""
    items = lists.flatten().drop_null()
    if not pa.types.is_floating(items.type) and not pa.types.is_decimal(items.type):
        return is_text(items.type) and bool(len(items)) and is_vector(texts)
    values = items.cast(pa.float64())
    return bool(pc.any(pc.not_equal(values, pc.floor(values))).as_py())


def _is_prose(texts: Sequence[str]) -> bool:
    """Returns whether most values are several words each, and few of the words come back often."""
    words = [word for text in texts for word in text.lower().split()]
    several = sum(len(text.split()) > 1 for text in texts)
    return several > 0.5 * len(texts) and len(set(words)) > max(50, 0.1 * len(words))


def find_nulls(columns: Mapping[str, pa.Array]) -> tuple[str, ...]:
    """Finds the texts in columns of a delimited file that mean a missing value, apart from the empty one."""
    found: dict[str, None] = {}
    for array in columns.values():
        if not is_text(array.type):
            continue
        distinct = pc.unique(array.drop_null()).to_pylist()
        if not (words := [text for text in NULLS if text in distinct]):
            continue
        others = pa.array([text for text in distinct if text and text not in NULLS], pa.string())
        between_numbers = len(others) > 0 and not parse_numbers(others)[1].any()
        found |= dict.fromkeys(word for word in words if between_numbers or word in NULLS[:3])
    return tuple(found)


def without_nulls(array: pa.Array, nulls: Sequence[str]) -> pa.Array:
    """Makes texts of a column missing that mean a missing value."""
    if not nulls or not is_text(array.type):
        return array
    return pc.if_else(pc.is_in(array, pa.array(nulls, array.type)), None, array)
