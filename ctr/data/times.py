"""Durations in configurations, such as ``30m``, and times in messages."""

import re
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from ctr.io.errors import InputError

LONGEST = "36500d"  # no duration of a mapping is longer: sums of times and durations must fit into 64 bits

DAY_US = 86_400_000_000

_DURATION = re.compile(r"([1-9][0-9]{0,17})(us|ms|s|m|h|d)")
_UNIT_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": DAY_US}


def duration_us(text: str) -> int:
    """Parses a duration such as ``30m`` or ``1d``, in microseconds. Raises ValueError for any other text."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("a duration is a whole number and a unit of us, ms, s, m, h, d, such as 30m")
    return int(match[1]) * _UNIT_US[match[2]]


def _check_duration(text: str) -> str:
    if duration_us(text) > duration_us(LONGEST):
        raise ValueError(f"{text} is longer than {LONGEST}")
    return text


def read_duration(key: str, text: str) -> int:
    """Parses the duration of an option, in microseconds, 0 for ``0s``. Raises InputError, which names the option."""
    try:
        return 0 if text == "0s" else duration_us(_check_duration(text))
    except ValueError as error:
        raise InputError(f"{key} {text}: {error}") from None


Duration = Annotated[
    str,
    AfterValidator(_check_duration),
    Field(
        title="duration such as 30m",
        examples=["1d"],
        json_schema_extra={"pattern": f"^{_DURATION.pattern}$"},
    ),
]


def format_time(time_us: int) -> str:
    """Formats microseconds since 1970 as ISO 8601 in UTC; with a fraction of a second only if it is not 0."""
    seconds, fraction = divmod(time_us, 1_000_000)
    # Python knows no year after 9999, in which the last partition may end.
    text = str(np.datetime64(seconds, "s"))
    return f"{text}.{fraction:06d}Z" if fraction else f"{text}Z"
