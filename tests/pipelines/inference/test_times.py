"""The time of the rows: its spellings, what cannot be read, other events' times, and the questions about them."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from ctr.io.errors import InputError
from ctr.pipelines.inference import lexicon
from ctr.pipelines.rows.convert import parse_times
from made_tables import becomes, inferred, ingested, write_table

ROWS = 1000
SECONDS = np.random.default_rng(0).permutation(1_700_000_000 + 4000 * np.arange(ROWS)).tolist()
"""46 days, not in order."""

STRFTIME = (
    "%Y-%m-%d %H:%M:%S UTC",
    "%Y-%m-%d %H:%M:%S+00:00",
    "%Y-%m-%dT%H:%M:%S.123456789Z",
    "%Y-%m-%d %H:%M:%S,5",
    "%Y%m%dT%H%M%SZ",
    "%Y%m%d %H:%M:%S",
    "%b %d, %Y %I:%M %p",
    "%B %d, %Y",
    "%d %b %Y %H:%M",
    "%a, %d %b %Y %H:%M:%S +0000",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%a %b %e %H:%M:%S %Y",
    "%a %b %e %H:%M:%S UTC %Y",
    "%a %b %d %H:%M:%S +0000 %Y",
    "%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)",
    "%d.%m.%y",
    "%d.%m.%Y %H:%M",
    "%-m/%-d/%y %-I:%M %p",
    "%m-%d-%Y %H:%M",
    "%d-%b-%y",
    "%d/%b/%Y:%H:%M:%S +0000",
    "[%d/%b/%Y:%H:%M:%S +0000]",
    "%Y/%m/%d",
    "%Y%m%d-%H:%M:%S",
    "%b %d %Y %I:%M%p",
    "%Y年%m月%d日 %H:%M",
    "%y%m%d%H",
    "%Y%m%d",
    "%Y%m%d%H",
    "%Y%m%d%H%M",
    "%Y%m%d%H%M%S",
    "%Y%m%d%H%M%S123",
    "%d%m%Y",
)


def spelled(form: str, second: int) -> str:
    """A second of 2023 or later in a spelling of ``STRFTIME``, or another one."""
    numbers = {"s": second, "ms": second * 10**3, "us": second * 10**6, "ns": second * 10**9}
    others = {"s.f": f"{second}.250", "serial": f"{25569 + second / 86400:.10f}"}
    if form in numbers or form in others:
        return str({**numbers, **others}[form])
    if form == "upper":
        return datetime.fromtimestamp(second, UTC).strftime("%d-%b-%Y %I:%M %p").upper()
    return datetime.fromtimestamp(second, UTC).strftime(form)


def table(path, **columns):
    """A file of rows with a user and clicks, besides the columns."""
    rng = np.random.default_rng(1)
    given = {name: list(values) for name, values in columns.items()}
    users, clicks = rng.integers(0, 30, ROWS).tolist(), rng.integers(0, 2, ROWS).tolist()
    return write_table(path / "x.csv", given | {"user": users, "click": clicks}, "\t")


def expected_us(form: str, second: int) -> int:
    """What a spelling keeps of a second."""
    fraction = {".123456789Z": 123_456, ",5": 500_000, "S123": 123_000, "s.f": 250_000}
    has_seconds = any(part in form for part in ("%S", "s", "serial"))
    unit = 1 if has_seconds else 60 if "%M" in form or form == "upper" else 3600 if "%H" in form else 86400
    more = next((us for end, us in fraction.items() if form.endswith(end)), 0)
    return second // unit * unit * 10**6 + more


@pytest.mark.parametrize("form", [*STRFTIME, "s", "ms", "us", "ns", "s.f", "serial", "upper"])
def test_a_time_by_its_name_is_read_in_every_spelling(tmp_path, form):
    texts = [spelled(form, second) for second in SECONDS]
    found = inferred(table(tmp_path, event_time=texts, publish_date=texts[::-1]))
    assert not found.doubts and found.mapping is not None
    assert found.mapping.time.column == "event_time"
    us, bad = parse_times(pa.array(texts), found.mapping.time)
    assert not bad.any() and us.tolist() == [expected_us(form, second) for second in SECONDS]
    # No words or categories are made of the other one.
    assert becomes(found)["publish_date"] == (
        "number, even buckets" if form in ("s.f", "serial") else "not used"
    )


@pytest.mark.parametrize(
    ("form", "offered"),
    [
        ("%Y-%m-%d %H:%M:%S EST", ["none"]),
        ("week %U of %Y", ["none"]),
        ("%H:%M:%S", ["none"]),
        ("%d novembre %Y", ["none"]),
        ("offset", ["NAME=s", "none"]),
    ],
)
@pytest.mark.parametrize("name", ["event_time", "trip_timestamp", "date", "serverDatetime", "shown_at"])
def test_a_name_of_a_time_that_is_not_read_as_one_is_a_question(tmp_path, form, offered, name):
    texts = [second - 1_700_000_000 if form == "offset" else spelled(form, second) for second in SECONDS]
    path = table(tmp_path, **{name: texts})
    (doubt,) = inferred(path).doubts
    assert doubt.option == "--time"
    assert (
        f"{name} is named like it, but is not read as a time: '{texts[0]}', first in row 2" in doubt.question
    )
    assert [choice.value for choice in doubt.choices] == [one.replace("NAME", name) for one in offered]
    for choice in doubt.choices:
        found = inferred(path, time=choice.value)
        assert found.mapping is not None
        assert name not in {feature.source for feature in found.mapping.features if feature.kind != "number"}
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
        ("watch_time_ms", SECONDS),
    ],
)
def test_durations_parts_of_dates_and_birthdays_promise_no_time_of_the_row(tmp_path, name, values):
    found = inferred(
        table(tmp_path, **{name: [value % 5000 if isinstance(value, int) else value for value in values]})
    )
    assert not found.doubts and found.mapping.time.row_order is not None


@pytest.mark.parametrize("gap", [None, 0, "unknown", "NULL"])
@pytest.mark.parametrize(
    ("missing", "asked"), [(1, False), (5, False), (6, True), (10, True), (11, True), (300, True)]
)
def test_rows_without_a_time_become_rejects_up_to_a_share_and_are_shown(tmp_path, missing, asked, gap):
    texts = [str(second) for second in SECONDS]
    # A value of text among dates, and a number among numbers.
    texts = [spelled("%Y-%m-%d %H:%M:%S", second) for second in SECONDS] if gap == "unknown" else texts
    rows = np.sort(np.random.default_rng(2).permutation(ROWS)[:missing])
    for row in rows:
        texts[row] = "" if gap is None else str(gap)
    path = table(tmp_path, timestamp=texts)
    found = inferred(path)
    shown = "no value" if gap in (None, "NULL") else f"'{gap}'"
    first = f": {shown}, first in row {rows[0] + 2}"
    if asked:
        (doubt,) = found.doubts
        assert first in doubt.question and f"{missing} of 1,000 rows have no readable time" in doubt.question
        fit = ["timestamp"] if missing <= 10 else []
        assert [choice.value for choice in doubt.choices] == [*fit, "none"]
        if not fit:
            with pytest.raises(
                InputError, match=r"--time timestamp: .* allowed: a time .* at least 99% of the rows"
            ):
                inferred(path, time="timestamp")
            return
        found = inferred(path, time="timestamp")
    assert any(first in note and "become rejects" in note for note in found.notes)
    if missing == 10 or gap == 0:
        _, result = ingested(found, path)
        assert (result.examples, result.rejected) == (ROWS - missing, missing)


@pytest.mark.parametrize(
    "name", ["reservation_status_date", "checkout_time", "conversion_timestamp", "returnedAt"]
)
def test_the_time_of_an_outcome_is_never_silently_that_of_the_row(tmp_path, name):
    texts = [spelled("%Y-%m-%d", second) for second in SECONDS]
    path = table(tmp_path, **{name: texts})
    (doubt,) = inferred(path).doubts
    assert f"{name} may be that of the outcome or of another event" in doubt.question
    assert [choice.value for choice in doubt.choices] == [name, "none"]
    assert inferred(path, time=name).mapping.time.column == name
    assert becomes(inferred(path, time="none"))[name] == "not used"
    found = inferred(table(tmp_path, **{name: texts, "date": texts[::-1]}))
    assert (found.mapping.time.column, becomes(found)[name]) == ("date", "not used")


def test_the_order_of_day_and_month_is_asked_where_nothing_decides(tmp_path):
    dates = [f"{1 + k % 12:02d}/{1 + k * 7 % 11:02d}/2023" for k in range(ROWS)]
    path = table(tmp_path, date=dates)
    for given in (None, "date"):
        (doubt,) = inferred(path, time=given).doubts
        assert {choice.value for choice in doubt.choices} == {"date=%m/%d/%Y", "date=%d/%m/%Y", "none"}
    for choice in doubt.choices[:2]:
        assert inferred(path, time=choice.value).mapping.time.format == choice.value[5:]
    # A day above 12 decides, and so does the order of the rows.
    found = inferred(table(tmp_path, date=[*dates[1:], "13/02/2023"]))
    assert found.mapping.time.format == "%d/%m/%Y"
    ordered = sorted(dates, key=lambda text: (text[3:5], text[:2]))
    assert inferred(table(tmp_path, date=ordered)).mapping.time.format == "%d/%m/%Y"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("when=%d.%m.%y %H:%M", {"format": "%d.%m.%y %H:%M"}),
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
        (
            "when=%d.%m.%Y",
            "1,000 of 1,000 rows have no readable time (100%): '01.02', first in row 2",
        ),
        ("when=soon", "'soon' names no part of a time"),
        ("when=%Q", "%Q in '%Q' is no directive"),
        (
            "when",
            "--time when: not read as a time: '01.02', first in row 2; name its form with --time 'when=FORM': s, ms",
        ),
        ("nothing=s", "--time nothing: no such column"),
    ],
)
def test_a_form_that_does_not_read_the_column_is_refused(tmp_path, given, words):
    path = table(tmp_path, when=["01.02"] * ROWS)
    with pytest.raises(InputError) as refusal:
        inferred(path, time=given)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_all_whole_names_of_times_promise_one(tmp_path):
    for name in sorted(lexicon.TIME_NAMES):
        (doubt,) = inferred(table(tmp_path, **{name: ["soon", "now"] * (ROWS // 2)})).doubts
        assert f"{name} is named like it, but is not read as a time: 'soon', first in row 2" in doubt.question
