"""Spelling of numbers by categories, so that a value has one id in all files and clients.

A value first becomes text: a string unchanged, an integer in decimal digits, a boolean as ``true`` or ``false``, a
floating-point number as the shortest decimal text that reads back as the same number, as Python, pandas and JSON write
it (``12.0``, ``0.1``, ``1e+16``). NaN is missing.

A category then removes a fraction of zeros from a whole number: an optional ``-``, digits without a
leading zero, a point and one or more zeros lose the point and what follows. So ``12``, ``12.0`` and ``12.00`` are one
value, ``-0.0`` is ``0``. Nothing else changes: not ``01234`` or ``01234.0`` (a leading zero), ``12.50``, ``1.10``,
``12.``, ``+12.0``, ``1e3``, ``0x0c``, or ids in hexadecimal digits.

All patterns are in the syntax of RE2, which Arrow and TensorFlow share, and match the same text in Python.
"""

import re
from typing import Literal

import numpy as np

Cast = Literal["text", "integer", "number", "decimal_comma"]

WHOLE = r"^(?:-?(0)|(-?[1-9][0-9]*))\.0+$"
WHOLE_SPELLED = r"\1\2"  # the rule above: a pattern, and what replaces the text that it matches

_ZERO = r"[+-]?0*(0)(?:\.0*)?"
CASTS: dict[Cast, tuple[str, str]] = {
    "integer": (rf"^\s*(?:{_ZERO}|(?:\+|(-))?0*([1-9][0-9]*)(?:\.0*)?)\s*$", r"\1\2\3"),
    "number": (rf"^\s*(?:{_ZERO}|(?:\+|(-))?0*(0|[1-9][0-9]*)(?:\.0*|(\.[0-9]*[1-9])0*)?)\s*$", r"\1\2\3\4"),
    "decimal_comma": (
        r"^\s*(?:\+|(-))?(?:([0-9]{1,3})\.([0-9]{3})(?:\.([0-9]{3}))?(?:\.([0-9]{3}))?|([0-9]+))(?:,([0-9]+))?\s*$",
        r"\1\2\3\4\5\6.\7",
    ),
}
"""Patterns that a cast accepts, and their spelling; ``text`` is absent, as it changes nothing."""

CAST_NAMES: dict[Cast, str] = {
    "integer": "a whole number",
    "number": "a decimal number without an exponent",
    "decimal_comma": "a number with a decimal comma",
}

_WHOLE_PYTHON = re.compile(WHOLE.replace("$", r"\Z"), re.ASCII)


def spell(text: str) -> str:
    """Removes a fraction of zeros from the text of a whole number, as the module describes."""
    match = _WHOLE_PYTHON.match(text)
    return text if match is None else match[1] or match[2]


def float_text(value: float | np.floating) -> str:
    """Formats a floating-point number; NaN as the empty string."""
    if value != value:
        return ""
    if isinstance(value, np.floating) and value.dtype.itemsize < 8:
        # The shortest digits of the narrow number, not of the float64 that equals it; laid out as Python does.
        return repr(float(np.format_float_scientific(value, unique=True)))
    return repr(float(value))
