"""Formats of Python's ``strptime``, parsed alike on every machine, most of them by pandas."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

ZONES = ("UTC", "GMT")  # names that %Z reads; Python would also read the names of the local time zone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIRECTIVES = frozenset("aAbBcdfGHIjmMpSuUVwWxXyYzZ%")
_TOKEN = re.compile(r"%.|\s+|[^%\s]+|%", re.DOTALL)
# Digits of each number where numbers touch, as in %m%d: strptime would also read fewer.
_WIDTHS = {"Y": "4", "G": "4", "j": "3", "f": "1,6", "u": "1", "w": "1"} | dict.fromkeys("mdHIMSyUWV", "2")
# Pandas reads formats of only these directives as Python does.
_QUICK = frozenset("aAbBdHImMpSyY%")
_NOT_QUICK = re.compile(r"6[01]|^-")  # except for texts with the second 60 or 61, or a year before 0


@dataclass(frozen=True)
class TimeFormat:
    """Reader of the times of one ``strptime`` format."""

    formats: tuple[str, ...]  # for Python, tried one after another
    parts: re.Pattern[str] | None  # splits a text into the parts of the format; None where none touch
    is_quick: bool

    def read(self, text: str) -> int | None:
        """Returns microseconds since 1970, in UTC if the text has no offset; None if the text does not match."""
        spaced = self._spaced(text)
        if spaced is None:
            return None
        for form in self.formats:
            try:
                parsed = datetime.strptime(spaced, form)
            except (ValueError, re.error):
                continue
            aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
            return (aware - _EPOCH) // timedelta(microseconds=1)
        return None

    def read_all(self, texts: Sequence[str]) -> pa.Array:
        """Parses texts like ``read``, but faster: int64, null for texts that do not match."""
        times = pa.nulls(len(texts), pa.int64())
        if self.is_quick:
            spaced = [None if _NOT_QUICK.search(text) else self._spaced(text) for text in texts]
            column = pd.Series(spaced, dtype=object)
            parsed = pd.to_datetime(column, format=self.formats[0], errors="coerce")
            times = pa.array(parsed.dt.as_unit("us").to_numpy()).cast(pa.int64())
        unread = times.is_null()
        others = (self.read(text) for text, left in zip(texts, unread.to_pylist(), strict=True) if left)
        return pc.replace_with_mask(times, unread, pa.array(others, pa.int64()))

    def _spaced(self, text: str) -> str | None:
        text = text.strip()
        if self.parts is None:
            return text
        match = self.parts.fullmatch(text)
        return None if match is None else "|".join(match.groups())


def check_format(form: str) -> str:
    """Returns a format of ``strptime``. Raises ValueError if it names no part of a time, or an unknown one."""
    names = [token[1:] for token in _TOKEN.findall(form) if token.startswith("%")]
    unknown = [name for name in names if name not in _DIRECTIVES]
    if unknown:
        raise ValueError(f"%{unknown[0]} in {form!r} is no directive of strptime; %% is a percent sign")
    if not [name for name in names if name != "%"]:
        raise ValueError(
            f"{form!r} names no part of a time; allowed: iso8601, or a format of strptime such as %Y%m%d"
        )
    return form


@cache
def time_format(form: str) -> TimeFormat:
    """Returns the reader of a format of ``strptime``."""
    tokens = _TOKEN.findall(form)
    numbers = [token[0] == "%" and token[1:] in _WIDTHS for token in tokens]
    around = zip([False, *numbers[:-1]], numbers, [*numbers[1:], False], strict=True)
    touches = [number and (before or after) for before, number, after in around]
    parts, spaced = None, form
    if any(touches):
        parts = re.compile("".join(map(_group, tokens, touches)), re.IGNORECASE)
        spaced = "|".join(tokens)
    # %%Z is a percent sign and a letter.
    pieces = re.split("(%.)", spaced)
    zones = ZONES if "%Z" in pieces else ZONES[:1]
    formats = ["".join(zone if piece == "%Z" else piece for piece in pieces) for zone in zones]
    is_quick = {token[1:] for token in tokens if token.startswith("%")} <= _QUICK
    return TimeFormat(tuple(formats), parts, is_quick)


def _group(token: str, touches: bool) -> str:
    if token.isspace():
        return r"(\s+)"
    if token == "%%":
        return "(%)"
    if token[0] != "%":
        return f"({re.escape(token)})"
    name = token[1:]
    if name in _WIDTHS:
        return rf"(\d{{{_WIDTHS[name]}}})" if touches else r"(\d+)"
    return r"(\D+?)" if name in "aAbBpZ" else "(.+?)"
