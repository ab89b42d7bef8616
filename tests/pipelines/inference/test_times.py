"""The time of the rows: its spellings, what cannot be read, other events' times, and the questions about them."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from ctr.io.errors import InputError
from ctr.pipelines.inference.times import find_time
from ctr.pipelines.rows.convert import parse_times
from made_tables import becomes, facts_of, inferred, ingested, write_table

ROWS = 1000
SECONDS = np.random.default_rng(0).permutation(1_700_000_000 + 4000 * np.arange(ROWS)).tolist()
"""46 days, not in order."""

# What each spelling keeps: the unit in seconds, and what it adds in microseconds.
SPELLINGS = {
    (1, 0): [
        *(
            "s",
            "ms",
            "us",
            "ns",
            "serial",
            "%Y-%m-%d %H:%M:%S UTC",
            "%Y-%m-%d %H:%M:%S+00:00",
            "%Y%m%dT%H%M%SZ",
        ),
        *(
            "%Y%m%d %H:%M:%S",
            "%Y%m%d-%H:%M:%S",
            "%Y%m%d%H%M%S",
            "%a %b %e %H:%M:%S %Y",
            "%d/%b/%Y:%H:%M:%S +0000",
        ),
        *("%a, %d %b %Y %H:%M:%S +0000", "%a, %d %b %Y %H:%M:%S GMT", "%a %b %e %H:%M:%S UTC %Y"),
        *("%a %b %d %H:%M:%S +0000 %Y", "[%d/%b/%Y:%H:%M:%S +0000]"),
        "%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)",
    ],
    (1, 123_456): ["%Y-%m-%dT%H:%M:%S.123456789Z"],
    (1, 500_000): ["%Y-%m-%d %H:%M:%S,5"],
    (1, 250_000): ["s.f"],
    (1, 123_000): ["%Y%m%d%H%M%S123"],
    (60, 0): [
        *("%b %d, %Y %I:%M %p", "%d %b %Y %H:%M", "%d.%m.%Y %H:%M", "%b %d %Y %I:%M%p", "upper"),
        *("%-m/%-d/%y %-I:%M %p", "%m-%d-%Y %H:%M", "%Y年%m月%d日 %H:%M", "%Y%m%d%H%M"),
    ],
    (3600, 0): ["%y%m%d%H", "%Y%m%d%H"],
    (86_400, 0): ["%B %d, %Y", "%d.%m.%y", "%d-%b-%y", "%Y/%m/%d", "%Y%m%d", "%d%m%Y"],
}
NUMBERS = {
    "s": str,
    "ms": lambda second: str(second * 10**3),
    "us": lambda second: str(second * 10**6),
    "ns": lambda second: str(second * 10**9),
    "s.f": lambda second: f"{second}.250",
    "serial": lambda second: f"{25569 + second / 86400:.10f}",
    "upper": lambda second: spelled("%d-%b-%Y %I:%M %p", second).upper(),
}


def spelled(form, second):
    """A second of 2023 or later in a spelling of strftime, or as a number."""
    return NUMBERS[form](second) if form in NUMBERS else datetime.fromtimestamp(second, UTC).strftime(form)


def table(path, **columns):
    """A file of rows with a user and clicks, besides the columns."""
    rng = np.random.default_rng(1)
    given = {name: list(values) for name, values in columns.items()}
    users, clicks = rng.integers(0, 30, ROWS).tolist(), rng.integers(0, 2, ROWS).tolist()
    return write_table(path / "x.csv", given | {"user": users, "click": clicks}, "\t")


def offered(doubt):
    return [choice.value for choice in doubt.choices]


@pytest.mark.parametrize(
    ("form", "unit", "more"), [(form, *kept) for kept, forms in SPELLINGS.items() for form in forms]
)
def test_a_time_by_its_name_is_read_in_every_spelling(tmp_path, form, unit, more):
    texts = [spelled(form, second) for second in SECONDS]
    found = inferred(table(tmp_path, event_time=texts, publish_date=texts[::-1]))
    assert not found.doubts and found.mapping.time.column == "event_time"
    us, bad = parse_times(pa.array(texts), found.mapping.time)
    assert not bad.any() and us.tolist() == [second // unit * unit * 10**6 + more for second in SECONDS]
    # No words or categories are made of the other one.
    other = "number, even buckets" if form in ("s.f", "serial") else "not used"
    assert becomes(found)["publish_date"] == other


FIRST, LAST = 631_152_000, 4_102_444_800
"""The first second of 1990 and that of 2100."""


@pytest.mark.parametrize(
    ("first", "last", "unit"),
    [
        (FIRST, LAST - 1, "s"),
        (FIRST * 1000, LAST * 1000 - 1, "ms"),
        (FIRST * 10**6, LAST * 10**6 - 1, "us"),
        # Too early and too late for seconds, and far too early for milliseconds.
        (FIRST - 1, LAST, None),
    ],
)
def test_a_number_is_taken_for_the_unit_in_which_it_lies_from_1990_to_2099(first, last, unit):
    for moment in (first, last):
        # Half of the rows above and half below would make another median.
        found = find_time(facts_of([moment] * 60, "timestamp"), 60, named=True)
        assert (found and found.time.unit) == unit, moment


def test_numbers_that_are_no_times_are_none():
    rng = np.random.default_rng(0)
    for values in (rng.integers(0, 24, 500), rng.integers(10**9, 4 * 10**9, 500), rng.random(500)):
        assert find_time(facts_of(values.tolist(), "spend"), 500) is None
    # Without a name, seconds must grow from row to row.
    grown = (10**9 + np.arange(500)).tolist()
    assert find_time(facts_of(grown), 500).time.unit == "s"
    assert find_time(facts_of(grown[::-1]), 500) is None


@pytest.mark.parametrize(
    ("name", "form", "choices"),
    [
        ("event_time", "%Y-%m-%d %H:%M:%S EST", ["none"]),
        ("trip_timestamp", "week %U of %Y", ["none"]),
        ("date", "%H:%M:%S", ["none"]),
        ("serverDatetime", "%d novembre %Y", ["none"]),
        ("shown_at", "offset", ["shown_at=s", "none"]),
        ("date", "offset", ["date=s", "none"]),
    ],
)
def test_a_name_of_a_time_that_is_not_read_as_one_is_a_question(tmp_path, name, form, choices):
    texts = [second - 1_700_000_000 if form == "offset" else spelled(form, second) for second in SECONDS]
    path = table(tmp_path, **{name: texts})
    (doubt,) = inferred(path).doubts
    told = f"{name} is named like it, but is not read as a time: '{texts[0]}', first in row 2"
    assert doubt.option == "--time" and told in doubt.question and offered(doubt) == choices
    for choice in choices:
        features = inferred(path, time=choice).mapping.features
        assert name not in {feature.source for feature in features if feature.kind != "number"}
    # Another column with as good a name is the time without a question.
    found = inferred(table(tmp_path, **{name: texts, "timestamp": SECONDS}))
    assert not found.doubts and found.mapping.time.column == "timestamp"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("delivery_time", range(ROWS)),
        ("time_of_day", ["day", "night"] * (ROWS // 2)),
        ("hour", [second // 3600 % 24 for second in SECONDS]),
        ("birth_date", ["1999-01-01", "2001-03-04"] * (ROWS // 2)),
        ("watch_time_ms", [second % 5000 for second in SECONDS]),
    ],
)
def test_durations_parts_of_dates_and_birthdays_promise_no_time_of_the_row(tmp_path, name, values):
    found = inferred(table(tmp_path, **{name: values}))
    assert not found.doubts and found.mapping.time.row_order is not None


# Up to 0.5% of the rows become rejects, up to 1% if the user says so, and more never.
@pytest.mark.parametrize(
    ("missing", "gap", "choices"),
    [
        *((5, "unknown", None), (6, "NULL", ["timestamp", "none"])),
        *((10, 0, ["timestamp", "none"]), (11, None, ["none"])),
    ],
)
def test_rows_without_a_time_become_rejects_up_to_a_share_and_are_shown(tmp_path, missing, gap, choices):
    # A value of text among dates, and a number among numbers.
    form = "%Y-%m-%d %H:%M:%S" if gap == "unknown" else "s"
    texts = [spelled(form, second) for second in SECONDS]
    rows = np.sort(np.random.default_rng(2).permutation(ROWS)[:missing])
    for row in rows:
        texts[row] = "" if gap is None else str(gap)
    path = table(tmp_path, timestamp=texts)
    found = inferred(path)
    shown = "no value" if gap in (None, "NULL") else f"'{gap}'"
    first = f": {shown}, first in row {rows[0] + 2}"
    if choices:
        (doubt,) = found.doubts
        assert first in doubt.question and f"{missing} of 1,000 rows have no readable time" in doubt.question
        assert offered(doubt) == choices
    if choices == ["none"]:
        with pytest.raises(
            InputError, match=r"--time timestamp: .* allowed: a time .* at least 99% of the rows"
        ):
            inferred(path, time="timestamp")
        return
    found = inferred(path, time="timestamp") if choices else found
    assert any(first in note and "become rejects" in note for note in found.notes)
    _, result = ingested(found, path)
    assert (result.examples, result.rejected) == (ROWS - missing, missing)


@pytest.mark.parametrize("name", ["reservation_status_date", "returnedAt"])
def test_the_time_of_an_outcome_is_never_silently_that_of_the_row(tmp_path, name):
    texts = [spelled("%Y-%m-%d", second) for second in SECONDS]
    path = table(tmp_path, **{name: texts})
    (doubt,) = inferred(path).doubts
    assert f"{name} may be that of the outcome or of another event" in doubt.question
    assert offered(doubt) == [name, "none"]
    assert inferred(path, time=name).mapping.time.column == name
    assert becomes(inferred(path, time="none"))[name] == "not used"
    found = inferred(table(tmp_path, **{name: texts, "date": texts[::-1]}))
    assert (found.mapping.time.column, becomes(found)[name]) == ("date", "not used")


def test_several_times_are_a_question_unless_names_decide(tmp_path):
    path = table(tmp_path, shown_date=SECONDS, seen_date=SECONDS[::-1])
    (doubt,) = inferred(path).doubts
    assert (doubt.option, len(doubt.choices)) == ("--time", 3)
    assert "row_order" in inferred(path, time="none").content["time"]
    found = inferred(table(tmp_path, timestamp=SECONDS, click_time=SECONDS[::-1]))
    assert found.content["time"] == {"column": "timestamp", "unit": "s"}
    assert becomes(found)["click_time"] == "not used"


def test_the_order_of_day_and_month_is_asked_where_nothing_decides(tmp_path):
    dates = [f"{1 + k % 12:02d}/{1 + k * 7 % 11:02d}/2023" for k in range(ROWS)]
    path = table(tmp_path, date=dates)
    for given in (None, "date"):
        (doubt,) = inferred(path, time=given).doubts
        assert set(offered(doubt)) == {"date=%m/%d/%Y", "date=%d/%m/%Y", "none"}
    for choice in offered(doubt)[:2]:
        assert inferred(path, time=choice).mapping.time.format == choice[5:]
    # A day above 12 decides, and so does the order of the rows.
    ordered = sorted(dates, key=lambda text: (text[3:5], text[:2]))
    for values in ([*dates[1:], "13/02/2023"], ordered):
        assert inferred(table(tmp_path, date=values)).mapping.time.format == "%d/%m/%Y"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("WHEN=%d.%m.%y %H:%M", {"format": "%d.%m.%y %H:%M"}),
        ("a=b=s", {"unit": "s"}),
        ("a=b", {"unit": "s"}),
        ("since=ms", {"unit": "ms"}),
    ],
)
def test_a_form_of_the_time_can_be_given(tmp_path, given, expected):
    when = [spelled("%d.%m.%y %H:%M", second) for second in SECONDS]
    path = table(tmp_path, **{"when": when, "a=b": SECONDS, "since": range(ROWS)})
    found = inferred(path, time=given).content["time"]
    assert {key: found[key] for key in found if key != "column"} == expected


def test_a_given_unit_takes_no_zeros_for_times_but_times_that_begin_at_zero(tmp_path):
    given = inferred(table(tmp_path, when=[0, *SECONDS[1:]]), time="when=s")
    assert given.content["time"] == {"column": "when", "unit": "s", "first": "1990-01-01"}
    assert any("1 of 1,000 rows have no readable time" in note for note in given.notes)
    for begins_at_zero in (range(ROWS), [0] * ROWS):
        given = inferred(table(tmp_path, when=begins_at_zero), time="when=s")
        assert given.content["time"] == {"column": "when", "unit": "s"}


@pytest.mark.parametrize("values", [range(35_000, 65_000, 30), [f"{k}.5" for k in range(20_000, 70_000, 50)]])
def test_seconds_of_a_day_are_no_serial_numbers(tmp_path, values):
    assert inferred(table(tmp_path, time=values)).doubts[0].option == "--time"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("when=%d.%m.%Y", "1,000 of 1,000 rows have no readable time (100%): '01.02', first in row 2"),
        ("when=soon", "'soon' names no part of a time"),
        ("when=%Q", "%Q in '%Q' is no directive"),
        ("when", "not read as a time: '01.02', first in row 2; name its form with --time 'when=FORM': s, ms"),
        ("nothing=s", "--time nothing: no such column"),
    ],
)
def test_a_form_that_does_not_read_the_column_is_refused(tmp_path, given, words):
    path = table(tmp_path, when=["01.02"] * ROWS)
    with pytest.raises(InputError) as refusal:
        inferred(path, time=given)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
