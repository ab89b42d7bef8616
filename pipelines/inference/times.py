"""Columns that hold times, and their units and formats, which are derived from the texts."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ctr.data.mapping import Time, TimeUnit
from ctr.data.time_formats import MONTHS, WEEKDAYS, ZONES
from ctr.data.times import DAY_US
from ctr.pipelines.inference.columns import ColumnFacts, percent
from ctr.pipelines.inference.features import FEW
from ctr.pipelines.inference.names import (
    ATTRIBUTE_WORDS,
    OTHER_EVENT_WORDS,
    TIME_NAMES,
    TIME_PART_WORDS,
    TIME_WORDS,
    WEAK_TIME_WORDS,
)
from ctr.pipelines.rows.convert import SERIAL_OF_1970, is_text, parse_times

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


# Values are taken for times between 1990 and 2100 only.
FIRST_DAY, LAST_DAY = "1990-01-01", "2099-12-31"
FIRST_US, LAST_US = 631_152_000_000_000, 4_102_444_800_000_000
BAD_SHARE = 0.005  # at most this share of the rows may become rejects for their time without a question
_UNITS: tuple[tuple[TimeUnit, float], ...] = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))
_SERIAL_DAYS = 7305
_LOOKED, _FEW = 500, 40
# The wrong order of day and month spreads the rows this many times wider, if not all days of a month are there.
_WIDER = 5
_VERSIONS = ("%d.%m.%y", "%m-%d-%y", "%d-%m-%y", "%y-%m-%d")
# So many dates written in digits alone are no other numbers.
_DATES = 20
_DATE_AND_CLOCK = re.compile(r"\d{1,4}[-/. ]\w{1,9}[-/. ,]+\d{1,4}\D+\d{1,2}:\d{2}")
# A column of times: at most this share of what it has is none.
_STRANGE = 0.05


@dataclass(frozen=True)
class TimeColumn:
    """A column that can be read as a time in most of N rows."""

    facts: ColumnFacts
    time: Time
    us: np.ndarray  # [N] int64 microseconds since 1970; 0 where ``bad``
    bad: np.ndarray  # [N] bool, the rows without a readable time
    rank: float  # how much its name, and that it only grows, speak for the time of the row
    other: str = ""  # another format that reads as many of its values
    is_open: bool = False  # nothing speaks for one of the two formats

    @property
    def bad_share(self) -> float:
        return float(self.bad.mean())

    @property
    def rejects(self) -> str:
        """Tells how many rows have no readable time, and the first; empty where all have one."""
        if not self.bad.any():
            return ""
        share = f"{int(self.bad.sum()):,} of {len(self.bad):,} rows have no readable time ({percent(self.bad_share)})"
        return f"{share}: {show_value(self.facts, self.bad)}"


def show_value(facts: ColumnFacts, rows: np.ndarray) -> str:
    """Formats the value of the first of some rows, [N] bool, and its number where that is known."""
    code = int(facts.codes[np.argmax(rows)])
    return facts.placed("no value" if code < 0 else repr(" ".join(facts.texts[code].split())[:60]), rows)


def name_rank(facts: ColumnFacts) -> int:
    """Rates how much a name speaks for the time of a row.

    3: it says so. 1 or 2: it may be it. 0: it says nothing. -1: the time of another event such as the outcome. -2: that
    of a thing, such as a birthday.
    """
    if facts.plain_name in TIME_NAMES:
        return 3
    words = set(facts.words)
    strong = words & TIME_WORDS or any(word.endswith(("timestamp", "datetime")) for word in words)
    if strong or words & WEAK_TIME_WORDS:
        return _other_rank(words) or (2 if strong else 1)
    return 0


def _other_rank(words: set[str]) -> int:
    return -2 if words & ATTRIBUTE_WORDS else -1 if words & OTHER_EVENT_WORDS else 0


def promised_rank(facts: ColumnFacts) -> int:
    """Rates a name that promises a time; 0 for others, such as that of a duration or a part of a date."""
    rank, words = name_rank(facts), facts.words
    weak = set(words) & {"date", "dt", "epoch", "utc", "when"} or words[-1:] == ("at",)
    if facts.is_list or pa.types.is_boolean(facts.array.type) or (rank == 1 and not weak):
        return 0
    return rank if rank > 0 and not (rank < 3 and set(words) & TIME_PART_WORDS) else 0


def find_time(facts: ColumnFacts, head_rows: int, named: bool = False) -> TimeColumn | None:
    """Reads a column as a time in the way that fits most of its rows; None for a column of something else.

    The first ``head_rows`` stand together in the file. A column ``named`` by the user may have any unit that gives a
    time of our days.
    """
    rank = name_rank(facts)
    readings = []
    for time in _ways(facts, named or rank > 0):
        us, bad = _read(facts.array, time)
        is_number = time.unit is not None or time.format in DIGIT_FORMATS
        good = us[:head_rows][~bad[:head_rows]]
        grows = len(good) > 1 and bool((np.diff(good) >= 0).all()) and bool(good[-1] > good[0])
        # Numbers such as ids, and versions such as 1.2.10.
        unlike = (is_number and not (grows and facts.distinct > 2)) or time.format in _VERSIONS
        if rank == 0 and not named and unlike:
            continue
        # A date needs no word for time in its name.
        speaks = rank or (0 if is_number else _other_rank(set(facts.words)))
        reading = TimeColumn(facts, time, us, bad, speaks + (0.5 if grows else 0.0))
        readings.append(reading)
        if reading.bad_share <= BAD_SHARE and (time.unit is not None or time.format == "iso8601"):
            break
    # Digits are a date sooner than a number; units do not overlap.
    formats = [
        reading for reading in readings if reading.time.unit is None and reading.bad_share <= BAD_SHARE
    ]
    readings = formats or readings
    if not readings:
        return None
    # 3/4/2019 is read either way: that which keeps the rows in order, then that which keeps them together.
    least = min(reading.bad_share for reading in readings)
    best, *others = sorted((reading for reading in readings if reading.bad_share == least), key=_oddity)
    others = [other for other in others if not np.array_equal(other.us, best.us)]
    if not others:
        return best
    (falls, span), (_, other_span) = _oddity(best), _oddity(others[0])
    is_open = falls > 0 and other_span < _WIDER * span
    return replace(best, other=others[0].time.form.removeprefix("format "), is_open=is_open)


def read_as(facts: ColumnFacts, time: Time) -> TimeColumn:
    """Reads a column in a given way, or raises InputError; if most times are not of our days, all of them count."""
    us, bad = _read(facts.array, time)
    if bad.mean() > 0.5:
        us, bad = parse_times(facts.array, time)
    return TimeColumn(facts, time, us, bad, name_rank(facts))


def is_other_time(facts: ColumnFacts) -> bool:
    """Tells whether a column that is not the time of the row holds times, or is named or written like one."""
    found = find_time(facts, 0)
    if found is None and facts.distinct >= _DATES:
        found = find_time(facts, 0, named=True)
        if found and not (found.time.format in DIGIT_FORMATS and "%Y" in (found.time.format or "")):
            found = None
    if found is not None and int((found.bad & (facts.codes >= 0)).sum()) <= _STRANGE * facts.present:
        return True
    rank = promised_rank(facts)
    if facts.numbers is not None:
        return rank > 1 and facts.distinct > FEW
    pattern = re.compile(r"\d.*\d") if rank else _DATE_AND_CLOCK
    texts = facts.texts[:_FEW]
    return 2 * sum(bool(pattern.search(text)) for text in texts) > len(texts)


def with_range(found: TimeColumn) -> Time:
    """Adds the range to a time by which a mapping rejects what was not taken for one, such as 0 for none."""
    us, bad = parse_times(found.facts.array, found.time)
    early, late = bool((us[found.bad & ~bad] < FIRST_US).any()), bool((us[found.bad & ~bad] >= LAST_US).any())
    days = {"first": FIRST_DAY if early else None, "last": LAST_DAY if late else None}
    return Time.model_validate(found.time.model_dump() | days)


def _read(values: pa.Array, time: Time) -> tuple[np.ndarray, np.ndarray]:
    us, bad = parse_times(values, time)
    bad = bad | (us < FIRST_US) | (us >= LAST_US)
    return np.where(bad, 0, us), bad


def _ways(facts: ColumnFacts, named: bool) -> list[Time]:
    """The ways to read a column as a time that its first values allow, the best first."""
    name, kind = facts.name, facts.array.type
    if not facts.present or facts.is_list or pa.types.is_boolean(kind):
        return []
    if pa.types.is_temporal(kind):
        fits = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return [Time(column=name, format="iso8601")] if fits else []
    texts = [text.strip() for text in facts.texts[:_LOOKED]]
    forms = list(digit_formats(texts)) if is_text(kind) or pa.types.is_integer(kind) else []
    ways = [Time(column=name, format=form) for form in forms]
    numbers = _numbers(facts)
    if len(numbers):
        middle = float(np.median(numbers))
        ways = [time for time in ways if _reads_some(time, texts)]
        ways += [Time(column=name, unit=unit) for unit, us in _UNITS if FIRST_US <= middle * us < LAST_US]
        first, last = (SERIAL_OF_1970 + us / DAY_US for us in (FIRST_US, LAST_US))
        low, high = np.quantile(numbers, [0.01, 0.99])
        # Seconds of a day are numbers like these, but spread wider.
        is_serial = named and first <= middle < last and high - low <= _SERIAL_DAYS
        return [*ways, Time(column=name, unit="serial")] if is_serial else ways
    if not is_text(kind):
        return []
    ways = [Time(column=name, format=form) for form in time_formats(texts[:_FEW])]
    begins = r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}[T ][0-9]{4}"
    if 2 * sum(bool(re.match(begins, text)) for text in texts) > len(texts):
        ways.insert(0, Time(column=name, format="iso8601"))
    return [time for time in ways if _reads_some(time, texts)]


def _numbers(facts: ColumnFacts) -> np.ndarray:
    """The numbers of a column in which most values are some; empty for others."""
    if facts.numbers is not None:
        return facts.finite
    texts = [text.strip() for text in facts.texts[:_LOOKED]]
    numbers = [float(text) for text in texts if re.fullmatch(r"[0-9]+([.][0-9]*)?", text)]
    return np.array(numbers if 2 * len(numbers) > len(texts) else [])


def _reads_some(time: Time, texts: list[str]) -> bool:
    _, bad = _read(pa.array(texts, pa.string()), time)
    return bool(bad.mean() < 0.5)


def _oddity(found: TimeColumn) -> tuple[int, int]:
    """How often the time falls from row to row, one number for all that are in no order; and its span."""
    us = found.us[:5000][~found.bad[:5000]]
    if not len(us):
        return 0, 0
    falls = int((np.diff(us) < 0).sum())
    return (falls if 4 * falls < len(us) else len(us)), int(us.max() - us.min())
