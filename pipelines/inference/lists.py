"""Lists in texts: the mark between their items, what stands around them, and vectors of numbers."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

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
