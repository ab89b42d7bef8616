"""Lists written as text: how their items are separated; and vectors, whose numbers are no items."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Whether lists of one length, of three items or more, have the same items at all places."""
    if len(parts[0]) < 3:
        return False
    places = [set(place) for place in zip(*parts, strict=True)]
    return len(set().union(*places)) <= 0.5 * sum(map(len, places))
