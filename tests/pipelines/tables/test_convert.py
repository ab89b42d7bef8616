"""Conversions of columns, value by value."""

import math
import operator
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.ids.arrow import string_ids
from ctr.data.mapping import Label, Time
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import parse_ids, parse_labels, parse_times
from ctr.pipelines.tables.examples import Verdict
from ctr.pipelines.tables.input_files import Chunk

US = 1_000_000
NOON = int(datetime(2019, 11, 24, 12, tzinfo=UTC).timestamp()) * US
BAD = (0, True)


def checked(result):
    """[(value, bad)] of a conversion's result."""
    values, bad = result[0], result[1]
    values = values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()
    return list(zip(values, bad.tolist(), strict=True))


def times_of(values, **form):
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return checked(parse_times(column, Time(column="t", **form)))


def labels_of(values, rule, kind=None):
    return checked(parse_labels(pa.array(values, kind), Label.model_validate(rule)))


def since_1970(moment):
    return (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def test_times_by_unit():
    for unit, text, us in (
        ("s", "881250949", 881250949 * US),
        ("s", "881250949.25", 881250949 * US + 250_000),
        ("ms", "1574596800123", 1574596800123_000),
        ("ns", "1574596800123457999", 1574596800123457),
        # One more than float64 holds.
        ("us", "9007199254740993", 9007199254740993),
    ):
        for value in (text, float(text) if "." in text else int(text)):
            assert times_of([value], unit=unit) == [(us, False)]
    # The last one is in milliseconds: as seconds it would be in the year 51866.
    impossible = ["", None, "soon", "-1", "nan", "inf", "1e30", "0x10", "1574596800123"]
    assert times_of(pa.array(impossible), unit="s") == [BAD] * len(impossible)
    halves = pa.array([1, -1, float("nan"), float("inf")], pa.float16())
    assert times_of(halves, unit="s") == [(US, False), BAD, BAD, BAD]


def test_serial_numbers_of_spreadsheets_are_days():
    values = ["43793.5", "43793.50000115741", "25569", "-1", "x"]
    expected = [(NOON, False), (NOON + 100_000, False), (0, False), BAD, BAD]
    assert times_of(values, unit="serial") == expected


def test_times_outside_of_the_range_of_a_mapping_are_marked():
    """The last day counts as a whole, and the moment after it does not."""
    midnight = NOON // US + 12 * 3600
    seconds = [0, NOON // US, midnight - 1, midnight, 253_402_214_400]
    converted = times_of(seconds, unit="s", first="1990-01-01", last="2019-11-24")
    assert converted == [BAD, (NOON, False), ((midnight - 1) * US, False), BAD, BAD]
    begin = 631_152_000
    assert times_of([begin - 1, begin], unit="s", first="1990-01-01") == [BAD, (begin * US, False)]
    # Without a range, what Python's calendar has.
    assert times_of([253_402_300_799, 253_402_300_800], unit="s") == [(253_402_300_799 * US, False), BAD]
    with pytest.raises(ValueError, match="no time is from 2020-01-01 to 2019-11-24"):
        Time(column="t", unit="s", first="2020-01-01", last="2019-11-24")


@pytest.mark.parametrize(
    ("us", "texts"),
    [
        (NOON, ["2019-11-24 12:00:00+00:00", "2019-11-24T12:00:00Z", "2019-11-24T14:00:00+0200", "2019-11-24T12:00"]),
        (NOON, ["2019-11-24 10:30:00-01:30", "2019-11-24 12:00:00", " 2019-11-24 12:00:00", "2019-11-24t12:00:00z"]),
        (NOON, ["2019-11-24 12:00:00 UTC", "2019-11-24 13:00:00 +0100", "2019-11-24T13:00:00+01:00[Europe/Berlin]"]),
        (NOON, ["20191124T120000Z", "20191124T1200"]),
        (NOON - 12 * 3600 * US, ["2019-11-24"]),
        (NOON + 500_000, ["2019-11-24T12:00:00.5Z", "2019-11-24 12:00:00.5 gmt"]),
        (NOON + 250_000, ["20191124 120000.25"]),
        (NOON + 4101, ["2019-11-24 12:00:00.004101+00:00"]),
        (NOON + 123_456, ["2019-11-24T12:00:00.123456789", "2019-11-24T12:00:00.123456789Z"]),
        (NOON + 123_456, ["2019-11-24 12:00:00,123456789"]),
        (None, ["2019-11-24 12:00:00 EST", "2019-11-24 12:00:00 UTC+1", "20191124T120060Z", "20191124T12000"]),
        (None, ["2019-02-30", "2019-11-24T25:00:00Z", "1969-12-31T23:59:59Z", "24/11/2019", None]),
    ],
)  # fmt: skip
def test_iso_times(us, texts):
    for text in texts:
        # Whatever stands beside it, plain or with an offset.
        column = pa.array([text, "2019-11-24T12:00:00Z", "2019-11-24 12:00:00"], pa.string())
        expected = [BAD if us is None else (us, False), (NOON, False), (NOON, False)]
        assert times_of(column, format="iso8601") == expected, text


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_iso_times_are_exact_to_the_microsecond(moment):
    texts = [moment.isoformat(), moment.isoformat(" ") + "+00:00"]
    assert times_of(texts, format="iso8601") == [(since_1970(moment), False)] * 2


@pytest.mark.parametrize(
    ("number", "kind", "us"),
    [
        (NOON, pa.timestamp("us"), NOON),
        (NOON // US, pa.timestamp("s", "Europe/Berlin"), NOON),
        (NOON * 1000 + 999, pa.timestamp("ns", "UTC"), NOON),
        # Those that would wrap around.
        (-(2**63), pa.timestamp("ms"), None),
        (18_446_744_073_710 + 1_767_225_600, pa.timestamp("s"), None),
        (2**62, pa.timestamp("us"), None),
    ],
)
def test_columns_of_times_are_iso8601(number, kind, us):
    expected = [BAD if us is None else (us, False), (0, False)]
    assert times_of(pa.array([number, 0], kind), format="iso8601") == expected


@pytest.mark.parametrize(
    ("kind", "form", "message"),
    [
        (pa.int64(), {"format": "iso8601"}, "of type int64, which format iso8601 does not read"),
        (pa.timestamp("s"), {"unit": "s"}, "where numbers are required"),
        (pa.time64("us"), {"format": "iso8601"}, r"time64\[us\].* which format iso8601 does not read"),
        (pa.duration("s"), {"format": "iso8601"}, r"duration\[s\].* which format iso8601 does not read"),
    ],
)
def test_times_of_an_unfit_type_are_refused(kind, form, message):
    with pytest.raises(InputError, match=message):
        times_of(pa.array([1], kind), **form)
    with pytest.raises(InputError, match="exactly one of unit and format"):
        parse_model(Time, {"column": "t", "unit": "s", "format": "iso8601"}, "time")


def test_rejected_times_beyond_the_years_of_python_are_described():
    far = pa.array([9_223_371_331_200_000_000, -(10**17), NOON], pa.timestamp("us"))
    verdict = Verdict(Chunk(0, pa.table({"t": far}), np.arange(1, 4), []))
    verdict.refuse(np.array([True, False, True]), "time", "out of range", far, "a time")
    assert [reject.row for reject in verdict.rejects] == [1, 3]
    assert "9223371331200000000" in str(verdict.rejects[0]) and "2019" in str(verdict.rejects[1])


def test_labels_are_0_1_true_or_false():
    good = {"0": 0, "1": 1, "true": 1, "False": 0, "TRUE": 1, "1.0": 1}
    texts = [*good, "2", "yes", "", None]
    assert labels_of(texts, "click") == [(good[t], False) if t in good else BAD for t in texts]
    zero, one = (0, False), (1, False)
    assert labels_of([0, 1, 2, None, -1], "click") == [zero, one, BAD, BAD, BAD]
    assert labels_of([True, False], "click") == [one, zero]
    assert labels_of([1.0, 0.5, math.nan], "click") == [one, BAD, BAD]


OPERATORS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "eq": "==", "ne": "!="}


@given(
    st.sampled_from(sorted(OPERATORS)),
    st.integers(-3, 3),
    st.lists(st.none() | st.integers(-4, 4), max_size=10),
)
def test_label_rules(name, bound, values):
    compare, rule = getattr(operator, name), f"rating {OPERATORS[name]} {bound}"
    expected = [BAD if value is None else (int(compare(value, bound)), False) for value in values]
    assert labels_of(values, rule, pa.int64()) == expected
    texts = [None if value is None else str(value) for value in values]
    assert labels_of(texts, rule, pa.string()) == expected


def test_label_rules_on_text():
    events = ["buy", "view", None]
    assert labels_of(events, "event == buy") == [(1, False), (0, False), BAD]
    assert labels_of(events, "event != 'buy'") == [(0, False), (1, False), BAD]
    for values, kind in (([["a"]], None), ([b"ab"], pa.binary(2))):
        with pytest.raises(InputError, match="which the rule compares with no text"):
            labels_of(values, "x == a", kind)


def test_ids_are_whole_numbers_or_fingerprints_of_text():
    whole = {"7": 7, "-7": -7, "0": 0, "9223372036854775807": 2**63 - 1}
    texts = [*whole, "007", "+7", "-0", "9223372036854775808", "u7", "0x10", " 7"]
    ids, missing = parse_ids(pa.array([*texts, "", None]))
    expected = [whole.get(text, int(string_ids(pa.array([text]))[0])) for text in texts]
    assert ids[: len(texts)].tolist() == expected
    assert missing.tolist() == [False] * len(texts) + [True, True]
    assert len(set(expected)) == len(texts)


def test_ids_of_other_types_agree_with_their_text():
    assert checked(parse_ids(pa.array([5, None], pa.int32()))) == [(5, False), BAD]
    assert checked(parse_ids(pa.array(["5.0", "-5.00", "-0.0"]))) == [(5, False), (-5, False), (0, False)]
    numbers = [5, 2**63 + 5]
    by_number = parse_ids(pa.array(numbers, pa.uint64()))[0].tolist()
    assert by_number == parse_ids(pa.array(list(map(str, numbers))))[0].tolist()
    assert checked(parse_ids(pa.nulls(1))) == [BAD]
    with pytest.raises(InputError, match="ids are whole numbers or text"):
        parse_ids(pa.array([1.5]))


# What clocks in Berlin show around both ends of summer time, with the instants in UTC: none, one, or two of them.
BERLIN = [
    ("2025-03-30 01:59:59", ["2025-03-30T00:59:59"]),
    ("2025-03-30 02:00:00", []),
    ("2025-03-30 02:59:59", []),
    ("2025-03-30 03:00:00", ["2025-03-30T01:00:00"]),
    ("2025-10-26 01:59:59", ["2025-10-25T23:59:59"]),
    ("2025-10-26 02:00:00", ["2025-10-26T00:00:00", "2025-10-26T01:00:00"]),
    ("2025-10-26 02:30:00", ["2025-10-26T00:30:00", "2025-10-26T01:30:00"]),
    ("2025-10-26 03:00:00", ["2025-10-26T02:00:00"]),
]


@pytest.mark.parametrize("ambiguous", [None, "first", "second"])
@pytest.mark.parametrize("form", ["iso8601", "%Y-%m-%d %H:%M:%S", "timestamps"])
def test_local_times_of_a_zone_are_what_its_clocks_show(form, ambiguous):
    clock_times = pa.array([text for text, _ in BERLIN])
    column = clock_times.cast(pa.timestamp("s")) if form == "timestamps" else clock_times
    rule = {"format": "iso8601" if form == "timestamps" else form, "zone": "Europe/Berlin"}
    expected = []
    for _, instants in BERLIN:
        is_clear = len(instants) == 1 or (len(instants) == 2 and ambiguous is not None)
        instant = instants[-1 if ambiguous == "second" else 0] if is_clear else None
        expected.append(BAD if instant is None else (since_1970(datetime.fromisoformat(instant)), False))
    converted = times_of(column, **rule, ambiguous=ambiguous)
    assert [(0, True) if bad else (value, bad) for value, bad in converted] == expected
    # An offset counts for itself.
    assert times_of(["2025-10-26 02:30:00Z"], format="iso8601", zone="Europe/Berlin") == [
        (since_1970(datetime(2025, 10, 26, 2, 30)), False)
    ]
