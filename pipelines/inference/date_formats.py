"""Formats of dates and times, derived from the texts that are written in them."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from ctr.data.time_formats import MONTHS, WEEKDAYS, ZONES

_TOKEN = re.compile(
    r"(?P<clock>(?<!\d)\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,6}(?!\d))?)?(?!\d))"
    r"|(?P<half>(?<=[\d\s])[AaPp][Mm]\b)"
    r"|(?P<offset>[+-]\d{2}:?\d{2}(?![\d:]))"
    r"|(?P<word>[^\W\d_]+)|(?P<number>\d+)|(?P<other>.)",
    re.DOTALL,
)
_SPELLED = (
    {name.lower(): "%B" for name in MONTHS}
    | {name[:3].lower(): "%b" for name in MONTHS}
    | {name.lower(): "%A" for name in WEEKDAYS}
    | {name[:3].lower(): "%a" for name in WEEKDAYS}
    | {zone.lower(): "%Z" for zone in ZONES}
)
# Words that say nothing more; other words may be zones.
_PLAIN_WORDS = frozenset(("t", "at", "of", "on", "coordinated", "universal", "time", *"年月日时分秒년월일"))


def time_formats(texts: Sequence[str]) -> list[str]:
    """Derives the formats of ``strptime`` that most texts may have, the most frequent first; none for other texts."""
    found: Counter[str] = Counter()
    understood = 0
    for text in texts:
        formats = _formats_of(text)
        found.update(formats)
        understood += bool(formats)
    return [form for form, _ in found.most_common()] if 2 * understood > len(texts) else []


def _formats_of(text: str) -> list[str]:
    """The formats of one text, the likeliest first."""
    parts: list[str] = []
    numbers: list[int] = []
    has_clock = False
    tokens = list(_TOKEN.finditer(text.strip()))
    for place, token in enumerate(tokens):
        kind, value = token.lastgroup, token.group()
        if kind == "clock" and not has_clock:
            has_clock = True
            seconds = "" if value.count(":") < 2 else ":%S.%f" if "." in value else ":%S"
            parts.append(f"%H:%M{seconds}")
        elif kind == "half" and has_clock:
            parts = [part.replace("%H", "%I") for part in parts] + ["%p"]
        elif kind == "offset":
            # Before the clock it is a part of the date.
            pieces = re.findall(r"\d+|\D", value)
            if has_clock:
                parts.append("%z")
            elif len(pieces) == 2 and len(pieces[1]) == 4:
                parts += [pieces[0], "%Y"]
            else:
                return []
        elif kind == "word" or kind == "half":
            lower = value.lower()
            is_prefix = place + 1 < len(tokens) and tokens[place + 1].lastgroup == "offset" and has_clock
            if lower in _SPELLED and not (is_prefix and value in ZONES):
                parts.append(_SPELLED[lower])
            elif lower == "z" and has_clock:
                parts.append("%z")
            elif lower in _PLAIN_WORDS or value in ZONES:
                parts.append(value)
            else:
                return []
        elif kind == "number" and len(value) in (4, 8):
            parts.append("%Y" if len(value) == 4 else "%Y%m%d")
        elif kind == "number" and len(value) <= 2:
            numbers.append(len(parts))
            parts.append(value)
        elif kind == "other":
            parts.append(value.replace("%", "%%"))
        else:
            return []
    return _with_days(parts, numbers)


def _with_days(parts: list[str], numbers: list[int]) -> list[str]:
    """The formats in which numbers of one or two digits are day, month and year of two digits."""
    year = parts.index("%Y") if "%Y" in parts else None
    named = "%b" in parts or "%B" in parts
    if "%Y%m%d" in parts:
        orders = [""] if year is None and not named and not numbers else []
    elif named:
        orders = ["d"] if year is not None else ["dy"]
    elif year is not None:
        points = len(numbers) == 2 and parts[numbers[0] + 1] == "."
        orders = ["md"] if numbers and year < numbers[0] else ["dm"] if points else ["md", "dm"]
    else:
        points = len(numbers) == 3 and parts[numbers[0] + 1] == "."
        orders = ["dmy"] if points else ["mdy", "dmy", "ymd"]
    formats = []
    for order in orders:
        if len(order) == len(numbers) and len(set(parts) & {"%b", "%B"}) < 2 and parts.count("%Y") < 2:
            letters = dict(zip(numbers, order, strict=True))
            form = "".join(f"%{letters[n]}" if n in letters else part for n, part in enumerate(parts))
            formats.append(re.sub(r"\s+", " ", form))
    return formats


_DIGITS = {
    6: ("%y%m%d", "%d%m%y"),
    8: ("%Y%m%d", "%d%m%Y", "%m%d%Y", "%y%m%d%H"),
    10: ("%Y%m%d%H", "%y%m%d%H%M"),
    12: ("%Y%m%d%H%M", "%y%m%d%H%M%S", "%d%m%Y%H%M"),
    14: ("%Y%m%d%H%M%S", "%d%m%Y%H%M%S"),
    **dict.fromkeys(range(15, 21), ("%Y%m%d%H%M%S%f",)),
}

DIGIT_FORMATS = frozenset(itertools.chain.from_iterable(_DIGITS.values()))


def digit_formats(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the formats of digits that most of some texts may have."""
    lengths = Counter(len(text) for text in texts if text.isdecimal())
    if not lengths:
        return ()
    length, count = lengths.most_common(1)[0]
    return _DIGITS.get(length, ()) if 2 * count > len(texts) else ()
