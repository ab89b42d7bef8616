"""Conversions of columns, value by value."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raw_logs
from ctr.config import parse_model
from ctr.data.ids.arrow import string_ids
from ctr.data.mapping import Label, Time
from ctr.io.errors import InputError
from ctr.pipelines.rows.convert import (
    check_encoded,
    check_utf8,
    convert_checked,
    mix_ids,
    parse_ids,
    parse_labels,
    parse_numbers,
    parse_times,
    parse_weights,
)
from ctr.pipelines.rows.raw_columns import Verdict, checked_columns
from ctr.pipelines.rows.sources import Chunk

US = 1_000_000
NOON = int(datetime(2019, 11, 24, 12, tzinfo=UTC).timestamp()) * US


def time_spec(**content):
    return Time(column="t", **content)


def label_of(content):
    return Label.model_validate(content)


def checked(result):
    """[(value, bad)] of a conversion's result."""
    values, bad = result[0], result[1]
    return list(
        zip(
            values.tolist() if isinstance(values, np.ndarray) else values.to_pylist(),
            bad.tolist(),
            strict=True,
        )
    )


@given(st.lists(st.sampled_from(["1", "-7", "x", "", None, "2.5", "99"]), max_size=30))
def test_refused_values_are_found_one_by_one(texts):
    values, bad = convert_checked(pa.array(texts, pa.string()), lambda array: array.cast(pa.int64()))
    good = {"1": 1, "-7": -7, "99": 99, None: None}
    assert values.to_pylist() == [good.get(text) for text in texts]
    assert bad.tolist() == [text not in good for text in texts]
    assert values.type == pa.int64()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_that_are_not_utf8_are_marked(kind):
    column, bad = check_utf8(pa.array([b"caf\xc3\xa9", b"caf\xe9", None, b""], kind))
    assert column.to_pylist() == ["café", None, None, ""]
    assert bad.tolist() == [False, True, False, False]


def test_strings_lists_and_dictionaries_are_checked_too():
    broken = pa.array([b"ok", b"\xff"]).view(pa.string())
    assert check_utf8(broken)[1].tolist() == [False, True]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 2]), broken)
    column, bad = check_utf8(lists)
    assert column.to_pylist() == [["ok"], [], None]
    assert bad.tolist() == [False, False, True]
    assert check_utf8(pa.array(["a", "b", "a"]).dictionary_encode())[0].to_pylist() == ["a", "b", "a"]
    assert check_utf8(pa.array(["a"], pa.string_view()))[0].type == pa.string()
    assert check_utf8(pa.array([1, 2]))[0].to_pylist() == [1, 2]


def test_numbers_of_text():
    texts = ["1", "-2.5", "1e3", "", None, " 7 ", "  ", "x", "1,000", "0x10", "nan", "inf"]
    values, bad = parse_numbers(pa.array(texts))
    assert [text for text, wrong in zip(texts, bad, strict=True) if wrong] == ["x", "1,000", "0x10"]
    found = values.to_pylist()
    assert found[:6] == [1.0, -2.5, 1000.0, None, None, 7.0]
    assert math.isnan(found[-2])
    assert found[-1] == math.inf


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None], pa.uint8()), [1.0, None]),
        (pa.array([1.5], pa.float32()), [1.5]),
        (pa.array([True, False]), [1.0, 0.0]),
        (pa.array([Decimal("1.25")]), [1.25]),
        (pa.nulls(2), [None, None]),
    ],
)
def test_numbers_of_other_types(column, expected):
    assert parse_numbers(column)[0].to_pylist() == expected


def test_columns_without_numbers_are_refused():
    with pytest.raises(InputError, match="of type list"):
        parse_numbers(pa.array([[1]]))


@pytest.mark.parametrize(
    ("unit", "text", "us"),
    [
        ("s", "881250949", 881250949 * US),
        ("s", "881250949.25", 881250949 * US + 250_000),
        ("ms", "1574596800123", 1574596800123_000),
        ("us", "1574596800123457", 1574596800123457),
        ("ns", "1574596800123457999", 1574596800123457),
        ("us", "9007199254740993", 9007199254740993),
    ],
)
def test_times_by_unit(unit, text, us):
    for column in (pa.array([text]), pa.array([float(text)]) if "." in text else pa.array([int(text)])):
        assert checked(parse_times(column, time_spec(unit=unit))) == [(us, False)]


def test_serial_numbers_of_spreadsheets_are_days():
    column = pa.array(["43793.5", "43793.50000115741", "25569", "-1", "x"])
    expected = [(NOON, False), (NOON + 100_000, False), (0, False), (0, True), (0, True)]
    assert checked(parse_times(column, time_spec(unit="serial"))) == expected


def test_times_outside_of_the_range_of_a_mapping_are_marked():
    seconds = pa.array([0, NOON // US, 253_402_214_400])
    assert checked(parse_times(seconds, time_spec(unit="s", first="1990-01-01", last="2019-11-24"))) == [
        (0, True), (NOON, False), (0, True)]  # fmt: skip
    with pytest.raises(ValueError, match="no time is from 2020-01-01 to 2019-11-24"):
        time_spec(unit="s", first="2020-01-01", last="2019-11-24")


def test_whole_numbers_are_read_by_a_format_as_their_digits():
    assert checked(parse_times(pa.array([20191124, 7]), time_spec(format="%Y%m%d"))) == [
        (NOON - 12 * 3600 * US, False), (0, True)]  # fmt: skip


@pytest.mark.parametrize("text", ["", None, "soon", "-1", "nan", "inf", "1e30", "0x10", "1574596800123"])
def test_impossible_times_are_marked(text):
    # The last one is in milliseconds: as seconds it would be in the year 51866.
    assert checked(parse_times(pa.array([text], pa.string()), time_spec(unit="s"))) == [(0, True)]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2019-11-24 12:00:00+00:00", NOON),
        ("2019-11-24T12:00:00Z", NOON),
        ("2019-11-24T12:00:00.5Z", NOON + 500_000),
        ("2019-11-24 12:00:00.004101+00:00", NOON + 4101),
        ("2019-11-24T14:00:00+0200", NOON),
        ("2019-11-24 10:30:00-01:30", NOON),
        ("2019-11-24 12:00:00", NOON),
        ("2019-11-24T12:00", NOON),
        ("2019-11-24", NOON - 12 * 3600 * US),
        ("2019-11-24T12:00:00.123456789", NOON + 123456),
        ("2019-11-24T12:00:00.123456789Z", NOON + 123456),
        ("2019-11-24 12:00:00 UTC", NOON),
        ("2019-11-24 12:00:00.5 gmt", NOON + 500_000),
        ("2019-11-24 13:00:00 +0100", NOON),
        ("2019-11-24T13:00:00+01:00[Europe/Berlin]", NOON),
        ("2019-11-24t12:00:00z", NOON),
        ("20191124T120000Z", NOON),
        ("20191124T1200", NOON),
        ("20191124 120000.25", NOON + 250_000),
        ("2019-11-24 12:00:00,123456789", NOON + 123456),
        (" 2019-11-24 12:00:00", NOON),
        ("2019-11-24 12:00:00 EST", None),
        ("2019-11-24 12:00:00 UTC+1", None),
        ("20191124T120060Z", None),
        ("20191124T12000", None),
        ("2019-02-30", None),
        ("2019-11-24T25:00:00Z", None),
        ("1969-12-31T23:59:59Z", None),
        ("24/11/2019", None),
        (None, None),
    ],
)
def test_iso_times(text, us):
    column = pa.array([text, "2019-11-24T12:00:00Z", "2019-11-24 12:00:00"], pa.string())
    expected = [(0, True) if us is None else (us, False), (NOON, False), (NOON, False)]
    assert checked(parse_times(column, time_spec(format="iso8601"))) == expected


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_iso_times_are_exact_to_the_microsecond(moment):
    us = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    for text in (moment.isoformat(), moment.isoformat(" ") + "+00:00"):
        assert checked(parse_times(pa.array([text]), time_spec(format="iso8601"))) == [(us, False)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([NOON], pa.timestamp("us")),
        pa.array([NOON // US], pa.timestamp("s", "Europe/Berlin")),
        pa.array([NOON * 1000 + 999], pa.timestamp("ns", "UTC")),
    ],
)
def test_columns_of_times_are_iso8601(column):
    assert checked(parse_times(column, time_spec(format="iso8601"))) == [(NOON, False)]


@pytest.mark.parametrize(
    ("form", "text", "moment"),
    [
        ("%m/%d/%Y %I:%M:%S %p", "11/9/2019 2:04:46 PM", datetime(2019, 11, 9, 14, 4, 46)),
        ("%y%m%d%H", "14102123", datetime(2014, 10, 21, 23)),
        ("%Y-%m-%d %H:%M:%S.%f", "2020-01-02 03:04:05.000006", datetime(2020, 1, 2, 3, 4, 5, 6)),
        ("%Y-%m-%d %H:%M %z", "2020-01-02 03:04 +0100", datetime(2020, 1, 2, 2, 4)),
        ("%m/%d/%Y", "02/30/2019", None),
        ("%y%m%d%H", "141021", None),
        ("%y%m%d%H", "14102123x", None),
    ],
)
def test_times_by_format(form, text, moment):
    us = None if moment is None else (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    expected = (0, True) if us is None else (us, False)
    assert checked(parse_times(pa.array([text, None]), time_spec(format=form))) == [expected, (0, True)]


def test_times_of_an_unfit_type_are_refused():
    with pytest.raises(InputError, match="of type int64, which format iso8601 does not read"):
        parse_times(pa.array([1]), time_spec(format="iso8601"))
    with pytest.raises(InputError, match="where numbers are required"):
        parse_times(pa.array([1], pa.timestamp("s")), time_spec(unit="s"))
    for kind in (pa.time64("us"), pa.duration("s")):
        with pytest.raises(
            InputError, match=f"of type {kind}.* which format iso8601 does not read".replace("[", r"\[")
        ):
            parse_times(pa.array([1], kind), time_spec(format="iso8601"))


@pytest.mark.parametrize(
    ("unit", "number"),
    [("ms", -(2**63)), ("s", 2**62), ("s", 18_446_744_073_710 + 1_767_225_600), ("us", 2**62)],
)
def test_times_that_would_wrap_around_are_marked(unit, number):
    column = pa.array([number, 0], pa.timestamp(unit))
    assert checked(parse_times(column, time_spec(format="iso8601"))) == [(0, True), (0, False)]


def test_rejected_times_beyond_the_years_of_python_are_described():
    far = pa.array([9_223_371_331_200_000_000, -(10**17), NOON], pa.timestamp("us"))
    chunk = Chunk(0, pa.table({"t": far}), np.arange(1, 4), [])
    verdict = Verdict(chunk)
    verdict.refuse(np.array([True, True, True]), "time", "out of range", far, "a time")
    verdict = Verdict(chunk)
    verdict.refuse(
        np.array([True, False, True]), "time", "out of range", far.cast(pa.timestamp("us")), "a time"
    )
    assert [reject.row for reject in verdict.rejects] == [1, 3]
    assert "9223371331200000000" in str(verdict.rejects[0]) and "2019" in str(verdict.rejects[1])


def test_a_rule_for_texts_compares_neither_lists_nor_binary():
    for column in (pa.array([["a"]]), pa.array([b"ab"], pa.binary(2))):
        with pytest.raises(InputError, match="which the rule compares with no text"):
            parse_labels(column, label_of("x == a"))


def test_labels_are_0_1_true_or_false():
    texts = ["0", "1", "true", "False", "TRUE", "1.0", "2", "yes", "", None]
    expected = [(0, False), (1, False), (1, False), (0, False), (1, False), (1, False), *[(0, True)] * 4]
    assert checked(parse_labels(pa.array(texts), label_of("click"))) == expected
    assert checked(parse_labels(pa.array([0, 1, 2, None, -1]), label_of("click"))) == [
        *[(0, False), (1, False)],
        *[(0, True)] * 3,
    ]
    assert checked(parse_labels(pa.array([True, False]), label_of("click"))) == [(1, False), (0, False)]
    assert checked(parse_labels(pa.array([1.0, 0.5, math.nan]), label_of("click"))) == [
        (1, False),
        (0, True),
        (0, True),
    ]


@given(
    st.sampled_from([">=", ">", "<=", "<", "==", "!="]),
    st.integers(-3, 3),
    st.lists(st.one_of(st.integers(-4, 4), st.none()), max_size=10),
)
def test_label_rules(op, bound, values):
    import operator

    compare = {">=": "ge", ">": "gt", "<=": "le", "<": "lt", "==": "eq", "!=": "ne"}[op]
    expected = [
        (0, True) if v is None else (int(getattr(operator, compare)(v, bound)), False) for v in values
    ]
    rule = label_of(f"rating {op} {bound}")
    assert checked(parse_labels(pa.array(values, pa.int64()), rule)) == expected
    assert (
        checked(parse_labels(pa.array([None if v is None else str(v) for v in values], pa.string()), rule))
        == expected
    )


def test_label_rules_on_text():
    column = pa.array(["buy", "view", None])
    assert checked(parse_labels(column, label_of("event == buy"))) == [(1, False), (0, False), (0, True)]
    assert checked(parse_labels(column, label_of("event != 'buy'"))) == [(0, False), (1, False), (0, True)]


def test_weights_are_finite_and_at_least_0():
    texts = ["1", "0", "0.25", "-1", "nan", "inf", "1e39", "", None, "x"]
    assert checked(parse_weights(pa.array(texts))) == [
        (1.0, False),
        (0.0, False),
        (0.25, False),
        *[(0.0, True)] * 7,
    ]


def test_ids_are_whole_numbers_or_fingerprints_of_text():
    texts = [
        "7",
        "-7",
        "0",
        "007",
        "+7",
        "-0",
        "9223372036854775807",
        "9223372036854775808",
        "u7",
        "0x10",
        " 7",
    ]
    ids, missing = parse_ids(pa.array([*texts, "", None]))
    whole = {"7": 7, "-7": -7, "0": 0, "9223372036854775807": 2**63 - 1}
    expected = [whole.get(text, int(string_ids(pa.array([text]))[0])) for text in texts]
    assert ids[: len(texts)].tolist() == expected
    assert missing.tolist() == [False] * len(texts) + [True, True]
    assert len(set(ids[: len(texts)].tolist())) == len(texts)


def test_ids_of_other_types_agree_with_their_text():
    assert checked(parse_ids(pa.array([5, None], pa.int32()))) == [(5, False), (0, True)]
    assert checked(parse_ids(pa.array(["5.0", "-5.00", "-0.0"]))) == [(5, False), (-5, False), (0, False)]
    big = 2**63 + 5
    assert (
        parse_ids(pa.array([5, big], pa.uint64()))[0].tolist()
        == parse_ids(pa.array(["5", str(big)]))[0].tolist()
    )
    assert checked(parse_ids(pa.nulls(1))) == [(0, True)]
    with pytest.raises(InputError, match="ids are whole numbers or text"):
        parse_ids(pa.array([1.5]))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_mixed_ids_are_those_of_whole_number_arithmetic(parts):
    assert mix_ids(*parts).tolist() == [raw_logs.plain_mix(*parts)]
    assert mix_ids(*[np.array([part, part]) for part in parts]).tolist() == [raw_logs.plain_mix(*parts)] * 2


def test_one_value_and_columns_mix():
    assert mix_ids(3, np.array([1, 2])).tolist() == [int(mix_ids(3, 1)[0]), int(mix_ids(3, 2)[0])]


def test_time_needs_one_way():
    with pytest.raises(InputError, match="exactly one of unit and format"):
        parse_model(Time, {"column": "t", "unit": "s", "format": "iso8601"}, "time")


def test_dictionaries_are_checked_by_their_values():
    indices = pa.array([0, 1, None, 2, 1, 0], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array([b"a", b"\xff", b"\xc3\xa9"], pa.binary()))
    checked, bad = check_encoded(column)
    assert bad.tolist() == [False, True, False, False, True, False]
    assert checked.type == pa.dictionary(pa.int32(), pa.string())
    assert [checked[row].as_py() for row in (0, 2, 3, 5)] == ["a", None, "\xe9", "a"]
    good, none = check_encoded(column.filter(pa.array(~bad)))
    assert good.to_pylist() == ["a", None, "\xe9", "a"] and not none.any()


@pytest.mark.parametrize(("rows", "is_kept"), [(5, True), (2, False)])
def test_dictionaries_of_more_values_than_rows_are_decoded(rows, is_kept):
    values = pa.array([b"a", b"b", b"c"], pa.binary())
    column = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 1, 2], pa.int32()), values)[:rows]
    chunk = Chunk(0, pa.table({"s": column}), np.arange(rows), [])
    found = checked_columns(chunk, [], Verdict(chunk), ["s"])["s"]
    assert pa.types.is_dictionary(found.type) == is_kept
    assert found.to_pylist() == ["c", "a", None, "b", "c"][:rows]
