"""Reads the columns with the roles label, time, query and weight, and finds other columns that could have one."""

import re
import shlex
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from ctr.config import describe_validation_error
from ctr.data.ids.arrow import is_text
from ctr.data.mapping import Label, Time, TimeUnit
from ctr.data.times import DAY_US, read_duration
from ctr.io.errors import InputError, joined, listed
from ctr.pipelines.infer.columns import Column, Columns, percent
from ctr.pipelines.tables.convert import parse_labels, parse_times, parse_weights
from ctr.pipelines.tables.rejects import MAX_REJECT_SHARE

# The range of values that are accepted as times, whatever the unit or the format.
FIRST_US, LAST_US = 631_152_000_000_000, 4_102_444_800_000_000  # the beginnings of 1990 and of 2100
_UNITS: tuple[tuple[TimeUnit, float], ...] = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))
_DATES = (
    "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%y", "%d/%m/%y",
    "%m/%d/%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y", "%b %d %Y", "%B %d, %Y", "%d %B %Y", "%Y%m%d",
)  # fmt: skip
_CLOCKS = ("", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p")
_FORMATS = (
    *(date + clock for clock in _CLOCKS for date in _DATES),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y", "%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z"),
)
_DIGITS = {
    "%y%m%d": 6, "%Y%m%d": 8, "%y%m%d%H": 8, "%Y%m%d%H": 10, "%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14, "%Y%m%d%H%M%S%f": 17,
}  # fmt: skip
FORMS = "s, ms, us, ns, serial, iso8601 or a format such as %d.%m.%y %H:%M, with a zone such as Europe/Berlin behind it"
_ZONES = zoneinfo.available_timezones()

_LOOKED = 8  # distinct values of a time that are tried before all are read
_DATES_ENOUGH = 3  # distinct values of a column that looks like a time
_FEW_YEARS_US = 10 * 365 * DAY_US
_RUNS, LONGEST_PAGE = 20, 200  # the fewest distinct queries, and the most rows of one

_NO_AND_YES = (("no", "yes"), ("n", "y"), ("f", "t"), ("false", "true"), ("negative", "positive"))
_MOST_VALUES = 10  # of a column for which rules are offered


@dataclass(frozen=True)
class Options:
    """Roles of columns, as named by the options of the command."""

    label: str | None = None  # a column, or a rule such as ``rating>=4``
    time: str | None = None  # also with its form, as in ``when=ms``
    query: str | None = None
    session_gap: str | None = None
    weight: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # columns that become features despite any objection


@dataclass(frozen=True)
class LabelColumn:
    """Labels of N rows, read from a column by a rule."""

    rule: Label
    values: np.ndarray  # [N] 0 or 1; 0 where it is missing
    labeled: np.ndarray  # [N] bool, the rows with a label; the others become rejects

    @property
    def share(self) -> float:
        return float(self.values[self.labeled].mean()) if self.labeled.any() else 0.0


@dataclass(frozen=True)
class TimeColumn:
    """A column that can be read as a time in most of N rows."""

    time: Time
    us: np.ndarray  # [N] int64 microseconds since 1970; 0 where ``bad``
    bad: np.ndarray  # [N] bool, the rows without a readable time, or with one before 1990 or after 2099


def find_column(name: str, columns: Columns, option: str) -> Column:
    """Returns the column that the user names. Raises InputError if it does not exist."""
    if name not in columns:
        raise InputError(f"{option} {name}: no such column; the columns are {listed(list(columns), name)}")
    return columns[name]


def count_rows(rows: np.ndarray) -> str:
    """Formats how many rows a mask, bool [N], selects: ``K of N rows``."""
    return f"{int(rows.sum()):,} of {len(rows):,} rows"


def _check_rejects(option: str, column: Column, bad: np.ndarray, allowed: str) -> None:
    """Raises InputError if more rows (``bad``, [N] bool) would become rejects than an ingest allows."""
    if bad.mean() > MAX_REJECT_SHARE:
        code = int(column.codes[np.flatnonzero(bad)[0]])
        example = f"such as {column.texts[code]!r}" if code >= 0 else "which have no value"
        raise InputError(
            f"{option}: {count_rows(bad)} cannot be read, {example} ({column.describe()}); allowed: {allowed} in at "
            f"least {percent(1 - MAX_REJECT_SHARE)} of the rows"
        )


def read_label(text: str, columns: Columns) -> LabelColumn:
    """Parses ``--label`` and reads the label from its column.

    Raises InputError if the rule or the column is invalid, too many rows have no label, or all labels are equal.
    """
    try:
        rule = Label(column=text) if text in columns else Label.model_validate(text)
    except ValidationError as error:
        raise InputError(describe_validation_error(error, Label, f"--label {text!r}")) from None
    column = find_column(rule.column, columns, "--label")
    plain_rule = plain_label(column) if rule.op is None else rule
    if plain_rule is None:
        rules = [f"--label {shlex.quote(choice)} ({share})" for choice, share in label_rules(column)]
        raise InputError(
            f"--label {text}: this column is no label by itself ({column.describe()}); allowed: two values such as 0 "
            "and 1 or no and yes, times that are empty where there was none, or a rule",
            joined(rules or ["such as --label 'COLUMN>=4' or 'COLUMN==sold'"]),
        )
    label = label_of(column, plain_rule)
    _check_rejects(f"--label {text}", column, ~label.labeled, "a label")
    if label.share in (0.0, 1.0):
        raise InputError(
            f"--label {text}: all rows that were looked at have the label {label.share:.0f}; both 0 and 1 are required "
            f"({column.describe()})"
        )
    return label


def label_of(column: Column, rule: Label) -> LabelColumn:
    """Reads a column as a label by a rule. Raises InputError if the rule does not fit the column's type."""
    try:
        values, bad, _ = parse_labels(column.array, rule)
    except InputError as error:
        raise InputError(f"--label: the column {column.name} is {error}") from None
    return LabelColumn(rule, values, ~bad)


def plain_label(column: Column) -> Label | None:
    """Returns a label for a column of two values, or of times that many rows lack; None for others."""
    name, lower = column.name, [text.strip().lower() for text in column.texts[:3]]
    if column.distinct == 2 and not column.is_list:
        plain = Label(column=name)
        if set(lower) <= {"0", "1", "false", "true", "0.0", "1.0"} and label_of(column, plain).share:
            return plain
        if set(column.finite.tolist()) in ({0.0, 1.0}, {-1.0, 1.0}):
            return Label(column=name, op=">", value=0.0)
        for no, yes in _NO_AND_YES:
            if set(lower) == {no, yes}:
                return Label(column=name, op="==", value=column.texts[lower.index(yes)])
    may_be_none = column.missing_share > MAX_REJECT_SHARE and column.distinct >= _DATES_ENOUGH
    return Label(column=name, op="!=", value="") if may_be_none and time_readings(column) else None


def label_rules(column: Column) -> list[tuple[str, str]]:
    """Returns rules, as for ``--label``, for a column of few values, each with its share of positive rows as text."""
    rules: list[str] = []
    if column.is_list or not 0 < column.distinct <= _MOST_VALUES:
        return []
    if column.missing_share > MAX_REJECT_SHARE:
        rules = ['!=""']
    elif column.numbers is not None and column.is_whole and column.distinct > 2:
        levels = np.unique(column.finite)
        level = next((low for low in levels if (column.finite >= low).mean() <= 0.6), levels[-1])
        rules = [f">={1 if levels[0] == 0 else level:g}"]
    elif column.distinct > 1 and (is_text(column.array.type) or column.numbers is not None):
        rarest = np.argsort(column.counts, kind="stable")[: 1 if column.distinct == 2 else 3]
        texts = [column.texts[index] for index in rarest.tolist()]
        # A text that is a number, or has spaces around it, is quoted.
        rules = [
            f'=="{text}"' if re.fullmatch(r"[\d.+-]+|.*\s|\s.*", text) else f"=={text}" for text in texts
        ]
    choices = []
    for text in rules:
        rule = Label.model_validate(f"x{text}").model_copy(update={"column": column.name})
        choices.append((f"{column.name}{text}", f"{percent(label_of(column, rule).share)} positive"))
    return choices


def _read_time(column: Column, time: Time) -> TimeColumn:
    us, bad = parse_times(column.array, time)
    bad = bad | (us < FIRST_US) | (us >= LAST_US)
    return TimeColumn(time, np.where(bad, 0, us), bad)


def time_readings(column: Column) -> list[TimeColumn]:
    """Returns the different ways to read a column as a time that fit nearly all its values; none for other columns."""
    kind, name, looked = column.array.type, column.name, column.texts[:_LOOKED]
    forms: Sequence[str] = ()
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        forms = ("iso8601",)
    elif is_text(kind) and column.numbers is None:
        with_digits = sum(any(map(str.isdigit, text)) for text in looked)
        forms = ("iso8601", *_FORMATS) if 2 * with_digits >= len(looked) else ()
    elif is_text(kind) or pa.types.is_integer(kind):
        lengths = {len(text.strip()) for text in looked}
        forms = [form for form, length in _DIGITS.items() if length in lengths and len(lengths) < 3]
    ways = [Time(column=name, format=form) for form in forms]
    if column.numbers is not None:
        middle = float(np.median(column.finite))
        ways += [Time(column=name, unit=unit) for unit, us in _UNITS if FIRST_US <= middle * us < LAST_US]
    some = pa.array(looked, pa.string()) if is_text(kind) else column.array.drop_null()[:_LOOKED]
    readings: list[TimeColumn] = []
    for time in ways if column.present else ():
        # Digits are a date rather than a number; a few values, such as 0, may stand for none.
        if (time.unit is not None and readings) or parse_times(some, time)[1].mean() > 0.5:
            continue
        reading = _read_time(column, time)
        is_most = (reading.bad & (column.codes >= 0)).mean() <= MAX_REJECT_SHARE
        if is_most and not any(np.array_equal(reading.us, other.us) for other in readings):
            readings.append(reading)
    # A day above 12 decides which number is the month.
    least = min((int(reading.bad.sum()) for reading in readings), default=0)
    return [reading for reading in readings if int(reading.bad.sum()) == least]


def read_time(text: str, columns: Columns) -> TimeColumn:
    """Reads the time that ``--time`` names. Raises InputError if no form fits, or several do and none is specified."""
    # A column may have = in its name.
    named = [column for column in columns if text == column or text.startswith(f"{column}=")]
    name = max(named, key=len, default=text.partition("=")[0])
    column, form = find_column(name, columns, "--time"), text[len(name) + 1 :]
    if not form:
        readings = time_readings(column)
        if len(readings) > 1:
            ways = [shlex.quote(f"{name}={reading.time.format or reading.time.unit}") for reading in readings]
            either = " or --time ".join(ways)
            raise InputError(f"--time {text}: {column.texts[0]!r} can be read as --time {either}")
        if not readings:
            raise InputError(
                f"--time {text}: not read as a time ({column.describe()}); name its form with "
                f"--time '{name}=FORM': {FORMS}"
            )
        [reading] = readings
    else:
        form, _, zone = form.rpartition(" ") if form.split(" ")[-1] in _ZONES else (form, "", None)
        way = {"unit" if form in ("s", "ms", "us", "ns", "serial") else "format": form, "zone": zone}
        try:
            time = Time.model_validate({"column": name, **way})
            reading = _read_time(column, time)
            if reading.bad.mean() > 0.5:
                # Most times lie outside 1990 to 2099, so that range is not applied.
                reading = TimeColumn(time, *parse_times(column.array, time))
        except ValidationError as error:
            raise InputError(describe_validation_error(error, Time, f"--time {text!r}")) from None
        except InputError as error:
            raise InputError(f"--time {text}: the column {name} is {error}") from None
    _check_rejects(f"--time {text}", column, reading.bad, f"a time, or another form ({FORMS}),")
    return reading


def read_query(options: Options, columns: Columns) -> Column | None:
    """Returns the ``--query`` column, if any. Raises InputError if many rows lack a value, or for a bad session gap."""
    if options.session_gap is not None:
        read_duration("--session-gap", options.session_gap)
        if options.query is None:
            raise InputError("--session-gap goes with --query COLUMN, such as the column of the user")
        if options.time is None:
            raise InputError("--session-gap requires --time COLUMN")
    if options.query is None:
        return None
    column = find_column(options.query, columns, "--query")
    _check_rejects(f"--query {options.query}", column, column.codes < 0, "a value")
    return column


def check_weight(name: str, columns: Columns) -> None:
    """Raises InputError if the column that ``--weight`` names does not hold weights."""
    column = find_column(name, columns, "--weight")
    try:
        _, bad = parse_weights(column.array)
    except InputError as error:
        raise InputError(f"--weight {name}: the column is {error}") from None
    _check_rejects(f"--weight {name}", column, bad, "numbers from 0 on")


def looks_like_time(column: Column) -> bool:
    """Returns whether the values can be times; whole numbers only if many distinct ones lie within a few years."""
    if column.distinct < (_RUNS if column.numbers is not None else _DATES_ENOUGH):
        return False
    spans = [int(np.ptp(reading.us[~reading.bad])) for reading in time_readings(column)]
    return bool(spans) and (column.numbers is None or min(spans) <= _FEW_YEARS_US)


def looks_like_query(column: Column) -> bool:
    """Returns whether ids with many values form groups of consecutive rows, as the rows of pages do."""
    codes = column.codes[column.codes >= 0]
    is_id = not column.is_list and (column.numbers is None or column.is_whole)
    if not is_id or column.missing_share > MAX_REJECT_SHARE or not _RUNS <= column.distinct <= len(codes) / 2:
        return False
    begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    longest = int(np.diff([*begins.tolist(), len(codes)]).max())
    return len(begins) <= 1.02 * column.distinct and longest <= LONGEST_PAGE
