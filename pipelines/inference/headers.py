"""Beginning of a delimited table: lines before it, and whether its first line names the columns."""

import re
from collections import Counter
from collections.abc import Sequence

from ctr.pipelines.inference.columns import NULLS
from ctr.pipelines.inference.names import (
    EXAMPLE_NAMES,
    ID_WORDS,
    LABEL_WORDS,
    PLACE_WORDS,
    QUERY_NAMES,
    TIME_NAMES,
    USER_WORDS,
)

LINES = 500  # so many lines at the beginning of a file are looked at

_MOST_SKIPPED = 100
_SEP = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_ITEM_WORDS = frozenset(("ad", "item", "product", "banner", "article"))
_KNOWN = (
    LABEL_WORDS | USER_WORDS | TIME_NAMES | QUERY_NAMES | EXAMPLE_NAMES | PLACE_WORDS | ID_WORDS | _ITEM_WORDS
)
# Values that stand for none, among numbers.
_NO_NAMES = frozenset(
    ("unknown", "missing", "none", "null", "nan", "inf", "infinity", *(text.lower() for text in NULLS))
)
# So many columns that are named 1, 2, 3, ... in order.
_NUMBERED = 5


def lines_before(text: str) -> tuple[int, str | None]:
    """Counts the lines before a table, and reads the delimiter that one of them names.

    They are empty, comments that begin with #, or Excel's ``sep=;``. A comment with as many fields as the line below is
    left: it may have the names.
    """
    lines = text.split("\n", _MOST_SKIPPED + 1)[: _MOST_SKIPPED + 1]
    count, delimiter = 0, None
    for line in lines:
        found = _SEP.fullmatch(line.strip(" \r"))
        if found is not None:
            delimiter = found[1]
        elif line.strip() and not line.startswith("#"):
            break
        count += 1
    if count == len(lines):
        # Nothing but comments.
        return 0, None
    return count, delimiter


def title_lines(text: str, rows: Sequence[Sequence[str]]) -> int:
    """Counts lines of one field, such as the title of a report, before a table of at least three."""
    fields = Counter(map(len, rows)).most_common(1)[0][0]
    count = next((place for place, row in enumerate(rows) if len(row) > 1), 0)
    if not count or fields < 3 or count > 10 or '"' in "".join(text.split("\n", count)[:count]):
        return 0
    # In lines, of which empty ones are no rows.
    places = [place for place, line in enumerate(text.split("\n", _MOST_SKIPPED)) if line.strip()]
    return places[count] if count < len(places) else 0


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tells whether the first row names the columns: words above numbers, or values unlike those below.

    Names may be numbers, such as 101 of an anonymous feature, where others are words. Rows that repeat the first one do
    not speak against it where it is a header for other reasons, as in files put together by ``cat``.
    """
    first = list(rows[0])
    below = [row for row in rows[1:] if list(row) != first]
    places = range(len(first))
    found = [{row[place] for row in below if place < len(row)} - {""} for place in places]
    filled = [name for name in first if name.strip()]
    unnamed = [place for place in places if not first[place].strip() and found[place]]
    if not filled or len(unnamed) > 1:
        return False
    words = [place for place in places if first[place].strip() and not is_number(first[place])]
    over_numbers = [place for place in words if _is_name(first[place]) and _are_numbers(found[place])]
    if len(words) < len(filled):
        return _is_numbered(first, unnamed) or (
            bool(over_numbers)
            and len(set(filled)) == len(filled)
            and all(re.fullmatch(r"\d+(\.0)?", name) for name in filled if is_number(name))
            and not any(first[place] in found[place] for place in words)
        )
    if over_numbers:
        return True
    if len(set(filled)) < 0.8 * len(filled):
        return False
    repeated = sum(bool(first[place].strip()) and first[place] in found[place] for place in places)
    if len(below) < len(rows) - 1:
        # Only values come again in whole, unless the names say that they are names.
        known = sum(bool(set(re.split(r"[^a-z]+", name.lower())) & _KNOWN) for name in filled)
        return repeated == 0 and known >= 2
    return repeated <= 0.1 * len(first)


def _is_numbered(first: Sequence[str], unnamed: Sequence[int]) -> bool:
    """Whether columns are named by their numbers, as pandas names those without names; its index has no name."""
    names = [name for place, name in enumerate(first) if place or not unnamed]
    counted = [[str(begin + place) for place in range(len(names))] for begin in (0, 1)]
    return len(names) >= (2 if unnamed == [0] else _NUMBERED) and names in counted


def _is_name(text: str) -> bool:
    text = text.strip(' "#')
    return (text[:1].isalpha() or text[:1] == "_") and text.lower() not in _NO_NAMES


def _are_numbers(values: set[str]) -> bool:
    """Whether there are values and all are numbers, but for those that mean a missing one."""
    numbers = values.difference(NULLS)
    return bool(numbers) and all(map(is_number, numbers))


def is_number(text: str) -> bool:
    """Tells whether a text is a finite or infinite decimal number; ``nan`` and ``inf`` are words."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and any(character.isdigit() for character in text)
