"""Which columns hold times, and in which unit or format."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.mapping import Time
from ctr.pipelines.inference.columns import ColumnFacts
from ctr.pipelines.inference.names import OTHER_EVENT_WORDS, TIME_NAMES, TIME_WORDS, WEAK_TIME_WORDS
from ctr.pipelines.rows.convert import is_text, parse_times

FIRST_US, LAST_US = 631_152_000_000_000, 4_102_444_800_000_000
"""1990 and 2100: numbers are taken for times in between only."""

BAD_SHARE = 0.005
"""At most this share of the rows may have no readable time: they become rejects."""

_UNITS = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))
_DIGITS = {
    8: ("%Y%m%d", "%y%m%d%H"),
    10: ("%Y%m%d%H",),
    12: ("%Y%m%d%H%M",),
    14: ("%Y%m%d%H%M%S",),
}
_DATES = ("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%Y.%m.%d", "%d-%b-%Y", "%d/%b/%Y")
_CLOCKS = (
    "",
    " %H:%M:%S",
    " %H:%M",
    " %I:%M:%S %p",
    " %I:%M %p",
    " %H:%M:%S.%f",
    ":%H:%M:%S",
    ":%H:%M:%S %z",
)
_LOOKED = 500


@dataclass(frozen=True)
class TimeColumn:
    """A column that can be read as a time.

    Attributes:
        facts: of the column.
        time: how a mapping reads it.
        us: [N] int64 microseconds since 1970.
        doubt: the other format that reads its values too, in words; empty where there is none.
        rank: how much its name, and that it only grows, speak for the time of the row.
    """

    facts: ColumnFacts
    time: Time
    us: np.ndarray
    rank: float
    doubt: str = ""

    @property
    def form(self) -> str:
        """Its unit or format."""
        return f"unit {self.time.unit}" if self.time.unit else f"format {self.time.format}"


def name_rank(facts: ColumnFacts) -> int:
    """3 for a name of the time of a row, 1 or 2 for one that may be, 0 for others, -1 for times of other events."""
    words = set(facts.words)
    if facts.plain_name in TIME_NAMES:
        return 3
    if words & OTHER_EVENT_WORDS and words & (TIME_WORDS | WEAK_TIME_WORDS):
        return -1
    if words & TIME_WORDS:
        return 2
    return 1 if words & WEAK_TIME_WORDS else 0


def read_time(facts: ColumnFacts, head_rows: int, named: bool = False) -> TimeColumn | None:
    """The column as a time, or None.

    Args:
        facts: of the column.
        head_rows: so many rows of the sample stand together at its beginning.
        named: it was said to be the time: any unit that gives a time of our days will do.
    """
    rank = name_rank(facts)
    ways = _ways(facts)
    for time in ways:
        us, bad = parse_times(facts.array, time)
        bad |= (us < FIRST_US) | (us >= LAST_US)
        if bad.mean() > BAD_SHARE:
            continue
        good = us[:head_rows][~bad[:head_rows]]
        grows = len(good) > 1 and bool((np.diff(good) >= 0).all()) and good[-1] > good[0]
        is_number = time.unit is not None or (time.format or "") in (
            form for forms in _DIGITS.values() for form in forms
        )
        if is_number and rank == 0 and not named and not (grows and facts.distinct > 2):
            continue
        other = next((way.format for way in ways if time.format and way.format and way != time), None)
        doubt = f", though {other} reads it too" if other else ""
        return TimeColumn(facts, time, us, rank + (0.5 if grows else 0.0), doubt)
    return None


def _ways(facts: ColumnFacts) -> list[Time]:
    """The ways to read a column as a time that its first values allow, the best first."""
    name, kind = facts.name, facts.array.type
    if not facts.present or facts.missing_share > BAD_SHARE or facts.is_list or pa.types.is_boolean(kind):
        return []
    if pa.types.is_temporal(kind):
        fits = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return [Time(column=name, format="iso8601")] if fits else []
    if facts.numbers is not None:
        ways = _digit_formats(facts) if is_text(kind) else []
        middle = float(np.median(facts.finite))
        ways += [Time(column=name, unit=unit) for unit, us in _UNITS if FIRST_US <= middle * us < LAST_US]  # type: ignore[arg-type]
        return ways
    texts = pa.array(list(facts.texts[:_LOOKED]), pa.string())
    if pc.any(pc.match_substring_regex(texts, r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")).as_py():
        return [Time(column=name, format="iso8601")]
    if not pc.any(
        pc.match_substring_regex(texts, r"[0-9]{1,4}[/.-]([0-9]{1,2}|[A-Za-z]{3})[/.-][0-9]{1,4}")
    ).as_py():
        return []
    return _written_formats(facts, texts)


def _digit_formats(facts: ColumnFacts) -> list[Time]:
    lengths = {len(text) for text in facts.texts[:_LOOKED]}
    forms = _DIGITS.get(next(iter(lengths)), ()) if len(lengths) == 1 else ()
    texts = pa.array(list(facts.texts[:_LOOKED]), pa.string())
    return [time for form in forms if _reads(time := Time(column=facts.name, format=form), texts)]


def _written_formats(facts: ColumnFacts, texts: pa.Array) -> list[Time]:
    ways = []
    for date in _DATES:
        for clock in _CLOCKS:
            time = Time(column=facts.name, format=date + clock)
            # Most formats fail at the first value.
            if _reads(time, texts.slice(0, 1)) and _reads(time, texts):
                ways.append(time)
    # 3/4/2019 is read either way: that which keeps the rows in order, then that which keeps them together.
    return sorted(ways, key=lambda time: _disorder(facts, time))


def _reads(time: Time, texts: pa.Array) -> bool:
    us, bad = parse_times(texts, time)
    bad |= (us < FIRST_US) | (us >= LAST_US)
    return bool(bad.mean() <= BAD_SHARE)


def _disorder(facts: ColumnFacts, time: Time) -> tuple[int, int]:
    us, _ = parse_times(facts.array.slice(0, 5000), time)
    return int((np.diff(us) < 0).sum()), int(us.max() - us.min())
