"""Raw values as Python has them, made into the columns that an exported model takes.

A category or text is a string, bytes, an integer or a truth value (read as decimal text, ``true``, ``false``); None and
the empty string are missing. A multivalent category is also a list of these, which is joined with the feature's
separator. A number is a number; None and NaN are missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ctr.errors import InputError

Texts = list[str | bytes]


def is_column(values: Any) -> bool:
    """Whether a value stands for rows; otherwise it is that of every row."""
    return not (values is None or isinstance(values, str | bytes | bool | int | float | np.generic))


def row_count(features: Mapping[str, Any]) -> int:
    """The number of rows of some columns, 1 where there is none.

    Raises:
        InputError: they differ, or what stands for rows is no column.
    """
    lengths = {name: _length(name, values) for name, values in features.items() if is_column(values)}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"the columns have different numbers of rows: {described}")
    return next(iter(lengths.values()), 1)


def _length(name: str, values: Any) -> int:
    dimensions = getattr(values, "ndim", 1)
    if dimensions != 1:
        raise InputError(f"column {name}: an array of {dimensions} dimensions is not allowed: one is needed")
    if isinstance(values, Mapping) or not hasattr(values, "__len__"):
        raise InputError(
            f"column {name}: {type(values).__name__} is not allowed: a list, an array or one value"
        )
    return len(values)


def as_list(values: Any, rows: int) -> list[Any]:
    """A column, or one value ``rows`` times, as a list."""
    if not is_column(values):
        return [values] * rows
    return (
        values if isinstance(values, list) else values.tolist() if hasattr(values, "tolist") else list(values)
    )


def make_texts(name: str, values: Sequence[Any], separator: str | None) -> Texts:
    """A column of strings or bytes.

    Args:
        name: of the source, for messages.
        separator: with which lists are joined; None: there may be none.

    Raises:
        InputError: a value that is no text, with its row.
    """
    texts = []
    for row, value in enumerate(values):
        try:
            texts.append(_text(value, separator))
        except ValueError as error:
            raise InputError(f"column {name}, row {row}: {error}") from None
    return texts


def _text(value: Any, separator: str | None) -> str | bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        # What is no UTF-8 has no bytes to be hashed.
        value.encode()
        return value
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, list | tuple | np.ndarray):
        if separator is None:
            raise ValueError("a list is allowed only for a multivalent category with one separator")
        return _joined(value, separator)
    raise ValueError(f"{value!r:.80} is not allowed: a string, a whole number, true, false or nothing")


def _joined(items: Iterable[Any], separator: str) -> bytes:
    mark = separator.encode()
    parts = [_bytes(_text(item, None)) for item in items]
    for part in parts:
        if mark in part:
            text = part.decode(errors="backslashreplace")
            raise ValueError(f"{text!r:.80} holds the separator {separator!r}, with which lists are joined")
    return mark.join(part for part in parts if part)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def make_numbers(name: str, values: Any, rows: int) -> np.ndarray:
    """A column of numbers, float32 [rows], NaN where missing.

    Raises:
        InputError: a value that is no number, with its row.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values.astype(np.float32)
    numbers = []
    for row, value in enumerate(as_list(values, rows)):
        if value is not None and not isinstance(value, bool | int | float | np.number | np.bool_):
            raise InputError(f"column {name}, row {row}: {value!r:.80} is not allowed: a number or nothing")
        try:
            numbers.append(np.nan if value is None else float(value))
        except OverflowError:
            raise InputError(f"column {name}, row {row}: a whole number beyond all float64") from None
    with np.errstate(over="ignore"):
        return np.array(numbers, np.float64).astype(np.float32)
