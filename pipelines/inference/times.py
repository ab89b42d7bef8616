"""The time of the rows: columns that can be read as one, in which unit or format, and which of them it is."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from ctr.config import describe_validation_error
from ctr.data.ids.arrow import is_text
from ctr.data.mapping import Time, TimeUnit
from ctr.data.time_formats import MONTHS, WEEKDAYS, ZONES
from ctr.data.times import DAY_US
from ctr.io.errors import InputError
from ctr.pipelines.inference import lexicon
from ctr.pipelines.inference.columns import ColumnProfile, Columns, percent
from ctr.pipelines.inference.features import FEW
from ctr.pipelines.inference.roles import (
    NONE,
    TOLERANCE,
    Choice,
    Doubt,
    Roles,
    TimeColumn,
    find_column,
    show_value,
)
from ctr.pipelines.rows.convert import SERIAL_OF_1970, parse_times
from ctr.pipelines.rows.rejects import MAX_REJECT_SHARE

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


def _time_formats(texts: Sequence[str]) -> list[str]:
    """The formats of ``strptime`` that most texts may have, the most frequent first; none for other texts."""
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

_DIGIT_FORMATS = frozenset(itertools.chain.from_iterable(_DIGITS.values()))


def _digit_formats(texts: Sequence[str]) -> tuple[str, ...]:
    """The formats of digits that most of some texts may have."""
    lengths = Counter(len(text) for text in texts if text.isdecimal())
    if not lengths:
        return ()
    length, count = lengths.most_common(1)[0]
    return _DIGITS.get(length, ()) if 2 * count > len(texts) else ()


# Values are taken for times between 1990 and 2100 only.
FIRST_DAY, LAST_DAY = "1990-01-01", "2099-12-31"
FIRST_US, LAST_US = 631_152_000_000_000, 4_102_444_800_000_000
# What may follow the column of --time.
FORMS = "s, ms, us, ns (since 1970), serial (days, as spreadsheets count), iso8601, or a format of strptime"

_UNIT_US: dict[TimeUnit, float] = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
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
_FILE_ORDER = Choice(NONE, "the order of the file is the time")


def _name_rank(column: ColumnProfile) -> int:
    """Returns how much a name speaks for the time of a row.

    3: it says so. 1 or 2: it may be it. 0: it says nothing. -1: the time of another event such as the outcome. -2: that
    of a thing, such as a birthday.
    """
    if column.plain_name in lexicon.TIME_NAMES:
        return 3
    words = set(column.words)
    strong = words & lexicon.TIME_WORDS or any(word.endswith(("timestamp", "datetime")) for word in words)
    if strong or words & lexicon.WEAK_TIME_WORDS:
        return _other_rank(words) or (2 if strong else 1)
    return 0


def _other_rank(words: set[str]) -> int:
    return -2 if words & lexicon.ATTRIBUTE_WORDS else -1 if words & lexicon.OTHER_EVENT_WORDS else 0


def _promised_rank(column: ColumnProfile) -> int:
    """The rank of a name that promises a time; 0 for others, such as that of a duration or a part of a date."""
    rank, words = _name_rank(column), column.words
    weak = set(words) & {"date", "dt", "epoch", "utc", "when"} or words[-1:] == ("at",)
    if column.is_list or pa.types.is_boolean(column.array.type) or (rank == 1 and not weak):
        return 0
    return rank if rank > 0 and not (rank < 3 and set(words) & lexicon.TIME_PART_WORDS) else 0


def find_time(column: ColumnProfile, head_rows: int, named: bool = False) -> TimeColumn | None:
    """Reads a column as a time in the way that fits most of its rows; None for a column of something else.

    The first ``head_rows`` stand together in the file. A column ``named`` by the user may have any unit that gives a
    time of our days.
    """
    rank = _name_rank(column)
    readings = []
    for time in _ways(column, named or rank > 0):
        us, bad = _read(column.array, time)
        is_number = time.unit is not None or time.format in _DIGIT_FORMATS
        good = us[:head_rows][~bad[:head_rows]]
        grows = len(good) > 1 and bool((np.diff(good) >= 0).all()) and bool(good[-1] > good[0])
        # Numbers such as ids, and versions such as 1.2.10.
        unlike = (is_number and not (grows and column.distinct > 2)) or time.format in _VERSIONS
        if rank == 0 and not named and unlike:
            continue
        # A date needs no word for time in its name.
        speaks = rank or (0 if is_number else _other_rank(set(column.words)))
        reading = TimeColumn(column, time, us, bad, speaks + (0.5 if grows else 0.0))
        readings.append(reading)
        if reading.bad_share <= TOLERANCE and (time.unit is not None or time.format == "iso8601"):
            break
    # Digits are a date sooner than a number; units do not overlap.
    formats = [one for one in readings if one.time.unit is None and one.bad_share <= TOLERANCE]
    readings = formats or readings
    if not readings:
        return None
    # 3/4/2019 is read either way: that which keeps the rows in order, then that which keeps them together.
    least = min(one.bad_share for one in readings)
    best, *others = sorted((one for one in readings if one.bad_share == least), key=_oddity)
    others = [other for other in others if not np.array_equal(other.us, best.us)]
    if not others:
        return best
    (falls, span), (_, other_span) = _oddity(best), _oddity(others[0])
    is_open = falls > 0 and other_span < _WIDER * span
    return replace(best, other=others[0].time.form.removeprefix("format "), is_open=is_open)


def _oddity(found: TimeColumn) -> tuple[int, int]:
    """Returns how often the time falls from row to row, one number for all that are in no order; and its span."""
    us = found.us[:5000][~found.bad[:5000]]
    if not len(us):
        return 0, 0
    falls = int((np.diff(us) < 0).sum())
    return (falls if 4 * falls < len(us) else len(us)), int(us.max() - us.min())


def _read(values: pa.Array, time: Time) -> tuple[np.ndarray, np.ndarray]:
    us, bad = parse_times(values, time)
    bad = bad | (us < FIRST_US) | (us >= LAST_US)
    return np.where(bad, 0, us), bad


def _ways(column: ColumnProfile, named: bool) -> list[Time]:
    """The ways to read a column as a time that its first values allow, the best first."""
    name, kind = column.name, column.array.type
    if not column.present or column.is_list or pa.types.is_boolean(kind):
        return []
    if pa.types.is_temporal(kind):
        fits = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return [Time(column=name, format="iso8601")] if fits else []
    texts = [text.strip() for text in column.texts[:_LOOKED]]
    forms = list(_digit_formats(texts)) if is_text(kind) or pa.types.is_integer(kind) else []
    numbers = column.finite
    if column.numbers is None:
        # Numbers in most rows, words in the others.
        some = [float(text) for text in texts if re.fullmatch(r"[0-9]+([.][0-9]*)?", text)]
        numbers = np.array(some if 2 * len(some) > len(texts) else [])
    if len(numbers):
        middle = float(np.median(numbers))
        ways = [time for form in forms if _reads_some(time := Time(column=name, format=form), texts)]
        units = [unit for unit, us in _UNIT_US.items() if FIRST_US <= middle * us < LAST_US]
        first, last = (SERIAL_OF_1970 + us / DAY_US for us in (FIRST_US, LAST_US))
        low, high = np.quantile(numbers, [0.01, 0.99])
        # Seconds of a day are numbers like these, but spread wider.
        if named and first <= middle < last and high - low <= _SERIAL_DAYS:
            units.append("serial")
        return [*ways, *(Time(column=name, unit=unit) for unit in units)]
    if not is_text(kind):
        return []
    begins = r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}[T ][0-9]{4}"
    is_iso = 2 * sum(bool(re.match(begins, text)) for text in texts) > len(texts)
    forms = ["iso8601"] * is_iso + _time_formats(texts[:_FEW])
    return [time for form in forms if _reads_some(time := Time(column=name, format=form), texts)]


def _reads_some(time: Time, texts: list[str]) -> bool:
    _, bad = _read(pa.array(texts, pa.string()), time)
    return bool(bad.mean() < 0.5)


def is_other_time(column: ColumnProfile) -> bool:
    """Tells whether a column that is not the time of the row holds times, or is named or written like one."""
    found = find_time(column, 0)
    if found is None and column.distinct >= _DATES:
        found = find_time(column, 0, named=True)
        if found and not (found.time.format in _DIGIT_FORMATS and "%Y" in (found.time.format or "")):
            found = None
    if found is not None and int((found.bad & (column.codes >= 0)).sum()) <= _STRANGE * column.present:
        return True
    rank = _promised_rank(column)
    if column.numbers is not None:
        return rank > 1 and column.distinct > FEW
    pattern = re.compile(r"\d.*\d") if rank else _DATE_AND_CLOCK
    texts = column.texts[:_FEW]
    return 2 * sum(bool(pattern.search(text)) for text in texts) > len(texts)


def with_range(found: TimeColumn) -> Time:
    """Adds the range to a time by which a mapping rejects what was not taken for one, such as 0 for none."""
    us, bad = parse_times(found.column.array, found.time)
    left_out = us[found.bad & ~bad]
    days = {
        "first": FIRST_DAY if (left_out < FIRST_US).any() else None,
        "last": LAST_DAY if (left_out >= LAST_US).any() else None,
    }
    return Time.model_validate(found.time.model_dump() | days)


def choose_time(roles: Roles) -> TimeColumn | Doubt | None:
    """Chooses the time of the rows, given by ``--time`` or certain; None: it is the order of the file.

    A column that is named like a time and is not read as one is a question, unless another one is the time. Raises
    InputError: --time names no column, or one that cannot be read as a time.
    """
    text = roles.options.time
    if roles.is_none(text):
        return None
    if text is not None:
        return _given(text, roles)
    found = {column.name: find_time(column, roles.sample.head_rows) for column in roles.free}
    read = {name: one for name, one in found.items() if one is not None and one.bad_share <= TOLERANCE}
    ranked = sorted(read.values(), key=lambda one: -one.rank)
    own = [one for one in ranked if one.rank >= 0]
    best = own[0] if own else None
    others = [one for one in ranked if -1 <= one.rank < 0]
    promised = {name: _promised_rank(roles.columns[name]) for name in found if name not in read}
    failed = []
    for name, rank in sorted(promised.items(), key=lambda pair: -pair[1]):
        column = roles.columns[name]
        # What is certainly no time at all, such as the number of minutes, is a question only where nothing else is one.
        may_be = found[name] is not None or column.numbers is None
        if rank > 0 and (best is None or (rank > best.rank and may_be)):
            failed.append((column, found[name]))
    if best is not None and not failed:
        if best.is_open:
            return _open_order(best)
        if best.rank > 0 and all(one.rank < best.rank for one in own[1:]):
            return best
    return _doubt(own, failed, others) if own or failed or others else None


def _given(text: str, roles: Roles) -> TimeColumn | Doubt:
    name, form = _parted(text, roles.columns)
    column = find_column(name, roles.columns, "--time")
    if form is None:
        found = find_time(column, roles.sample.head_rows, named=True)
        if found is None:
            raise InputError(
                f"--time {text}: {_first_strange(column, None).removeprefix('is ')}; name its form with "
                f"--time '{column.name}=FORM': {FORMS} such as %d.%m.%y"
            )
        if found.is_open:
            return _open_order(found)
    else:
        way = {"unit" if form in (*_UNIT_US, "serial") else "format": form}
        try:
            time = Time.model_validate({"column": column.name, **way})
        except ValidationError as error:
            raise InputError(describe_validation_error(error, Time, f"--time {text!r}")) from None
        try:
            us, bad = _read(column.array, time)
            if bad.mean() > 0.5:
                # Most times are not of our days, so all of them count.
                us, bad = parse_times(column.array, time)
        except InputError as error:
            raise InputError(f"--time {text}: the column {column.name} is {error}") from None
        found = TimeColumn(column, time, us, bad, _name_rank(column))
    if found.bad_share > MAX_REJECT_SHARE:
        raise InputError(
            f"--time {text}: {found.rejects}; allowed: a time (read as {found.time.form}) in at least "
            f"{percent(1 - MAX_REJECT_SHARE)} of the rows, or another form: {FORMS}"
        )
    return found


def _parted(text: str, columns: Columns) -> tuple[str, str | None]:
    """The column and the form that ``--time`` gives; a column may have = in its name."""
    if text in columns or "=" not in text:
        return text, None
    cuts = [place for place, mark in enumerate(text) if mark == "="]
    cut = next((place for place in cuts if text[:place] in columns), cuts[0])
    return text[:cut], text[cut + 1 :]


def _open_order(found: TimeColumn) -> Doubt:
    name, forms = found.column.name, (found.time.format or "", found.other)
    choices = [Choice(f"{name}={form}", "reads all values", name) for form in forms]
    both = f"{' and '.join(forms)} both read {found.column.texts[0]!r}"
    return Doubt("--time", f"which form the dates of {name} have: {both}", (*choices, _FILE_ORDER))


def _doubt(
    own: Sequence[TimeColumn],
    failed: Sequence[tuple[ColumnProfile, TimeColumn | None]],
    others: Sequence[TimeColumn],
) -> Doubt:
    """Asks which column is the time: one that is read as such, or one of the others.

    ``failed`` are named like times and not read as such, the likeliest first; ``others`` are named like other events.
    """
    choices, why = [], ""
    for column, found in failed:
        if found is not None and found.bad_share <= MAX_REJECT_SHARE:
            because = f"{found.time.form}; the {int(found.bad.sum()):,} become rejects"
            choices.append(Choice(column.name, because))
        elif found is None and column.numbers is not None and column.finite.min() >= 0:
            because = "seconds as they are, whenever they begin"
            choices.append(Choice(f"{column.name}=s", because, column.name))
    choices += [Choice(one.column.name, f"{one.time.form}; {one.column.describe()}") for one in own]
    if not own:
        choices += [Choice(one.column.name, f"{one.time.form}, named like another event's") for one in others]
    if failed:
        column, found = failed[0]
        why = f": {column.name} is named like it, but {_first_strange(column, found)}"
        if found is not None and found.bad_share > MAX_REJECT_SHARE:
            why += f", more than the {percent(MAX_REJECT_SHARE)} that may become rejects"
        why += f" (name another form with --time '{column.name}=%d.%m.%y %H:%M', =ms or the like)"
    elif not own:
        names = " and ".join(one.column.name for one in others)
        why = f": {names} may be that of the outcome or of another event"
    return Doubt("--time", f"which column is the time of the row{why}", (*choices, _FILE_ORDER))


def _first_strange(column: ColumnProfile, found: TimeColumn | None) -> str:
    if found is not None:
        return found.rejects
    if not column.present:
        return "has no values"
    return f"is not read as a time: {show_value(column, column.codes >= 0)}"
