"""Formats of times: the quick way reads what Python reads, and nothing depends on the machine."""

import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.data.mapping import Time
from ctr.data.time_formats import check_format, time_format
from ctr.pipelines.tables.convert import parse_times

DATES = ("%Y-%m-%d", "%d.%m.%Y", "%Y%m%d", "%B %d, %Y", "%a, %d %b %Y", "%d%b%Y", "%y%m%d")
CLOCKS = ("", "T%H:%M:%S", " %H%M%S%f", ":%H:%M:%S %z", " %I:%M:%S.%f %p", " %H:%M %Z", " 100%%")


def read(text: str | int, form: str) -> int | None:
    us, bad = parse_times(pa.array([text]), Time(column="t", format=form))
    return None if bad[0] else int(us[0])


@settings(max_examples=50)
@given(
    moment=st.datetimes(datetime(1971, 1, 1), datetime(2068, 12, 31)),
    date=st.sampled_from(DATES),
    clock=st.sampled_from(CLOCKS),
    change=st.integers(-3, 40),
    letter=st.sampled_from("09 :APxz"),
)
@example(datetime(2023, 2, 28), "%d.%m.%Y", " %H:%M", 0, "3")
def test_texts_are_read_as_python_reads_them_quickly_or_not(moment, date, clock, change, letter):
    form = date + clock
    text = moment.replace(tzinfo=UTC).strftime(form)
    if change >= 0:
        text = text[:change] + letter + text[change + 1 :]
    one = read(text, form)
    slowly = time_format(form).read(text)
    assert one == (slowly if slowly is not None and slowly >= 0 else None)
    touching = date in ("%Y%m%d", "%d%b%Y", "%y%m%d") or "%S%f" in clock
    if not touching and "%Z" not in form:
        try:
            parsed = datetime.strptime(text.strip(), form)
        except ValueError:
            assert one is None
        else:
            aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
            us = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            assert one == (us if us >= 0 else None)
    if change < 0:
        assert one is not None


def test_a_format_need_not_print_back_what_it_reads():
    texts = {
        "%Y%m%d%H%M%S%f": {
            "20231114221320008": datetime(2023, 11, 14, 22, 13, 20, 8000),
            "20231114221320": None,
            # Python alone would read the first month, and the 31st.
            "20231314221320008": None,
        },
        "%Y%m%d": {"2023114": None, "7": None, 20231114: datetime(2023, 11, 14)},
        "%y%m%d%H": {"141021": None, "14102123x": None, "14102123": datetime(2014, 10, 21, 23)},
        "%d%b%Y": {"14NOV2023": datetime(2023, 11, 14), "14NOW2023": None},
        "%d/%b/%Y:%H:%M:%S %z": {"14/nov/2023:22:13:20 +0000": datetime(2023, 11, 14, 22, 13, 20)},
    }
    for form, moments in texts.items():
        for text, moment in moments.items():
            us = moment and (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
            assert read(text, form) == us, (form, text)


def test_names_of_zones_are_read_the_same_on_every_machine(monkeypatch):
    us = 1_700_000_000_000_000
    try:
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        for zone, moment in {"UTC": us, "gmt": us, "EST": None, "EDT": None, "CET": None, "": None}.items():
            assert read(f"2023-11-14 22:13:20 {zone}", "%Y-%m-%d %H:%M:%S %Z") == moment, zone
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("form", "words"), [("%Q", "%Q in"), ("soon", "no part of a time"), ("%Y%", "% in")])
def test_what_is_no_format_is_refused(form, words):
    with pytest.raises(ValueError, match=words):
        check_format(form)
