"""Conversion of Python values to the inputs of an exported model's functions.

A category or text is a string, bytes, a number or a boolean, which become text as ``ctr.data.spelling`` says;
None, NaN and the empty string are missing. A multivalent category may also be a list of these, joined with the
feature's separator. A number is a Python or NumPy number; None and NaN are missing. A time is a number of microseconds
since 1970-01-01 UTC, or a ``datetime`` or ``numpy.datetime64``, taken as UTC if it has no zone; None is missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ctr.data.spelling import float_text
from ctr.io.errors import InputError

Texts = list[str | bytes]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING_TIME = -1


def is_column(values: Any) -> bool:
    """Returns whether `values` is a column rather than one value for every row."""
    single_values = str | bytes | bool | int | float | datetime | np.generic | None
    return not isinstance(values, single_values)


def row_count(features: Mapping[str, Any]) -> int:
    """Counts the rows of columns; 1 if all are single values. Raises InputError for different lengths or bad types."""
    lengths = {name: _length(name, values) for name, values in features.items() if is_column(values)}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"the columns have different numbers of rows: {described}")
    return next(iter(lengths.values()), 1)


def _length(name: str, values: Any) -> int:
    dimensions = getattr(values, "ndim", 1)
    if dimensions != 1:
        raise InputError(
            f"column {name}: an array of {dimensions} dimensions is not allowed; allowed: one dimension"
        )
    if isinstance(values, Mapping) or not hasattr(values, "__len__"):
        raise InputError(
            f"column {name}: {type(values).__name__} is not allowed: a list, an array or one value"
        )
    return len(values)


def as_list(values: Any, rows: int) -> list[Any]:
    """Converts a column to a list, or repeats a single value ``rows`` times."""
    if not is_column(values):
        return [values] * rows
    if isinstance(values, list):
        return values
    if getattr(values, "dtype", None) in (np.float16, np.float32):
        # As float64 they would have other digits.
        return list(np.asarray(values))
    return values.tolist() if hasattr(values, "tolist") else list(values)


def make_texts(name: str, values: Sequence[Any], separator: str | None) -> Texts:
    """Converts a column to strings or bytes; joins lists with ``separator``. Raises InputError for other values."""
    if set(map(type, values)) <= {str}:
        try:
            "".join(values).encode()
            return list(values)
        except UnicodeEncodeError:
            # The loop below names the row of the invalid value.
            pass
    texts: Texts = []
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
        # A string that is not valid UTF-8 has no bytes to hash.
        value.encode()
        return value
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return float_text(value)
    if isinstance(value, list | tuple | np.ndarray):
        if separator is None:
            raise ValueError("a list is allowed only for a multivalent category with one separator")
        return _joined(value, separator)
    raise ValueError(f"{value!r:.80} is not allowed: a string, a number, true, false or nothing")


def _joined(items: Iterable[Any], separator: str) -> bytes:
    mark = separator.encode()
    texts = [_text(item, None) for item in items]
    parts = [text.encode() if isinstance(text, str) else text for text in texts]
    for part in parts:
        if mark in part:
            text = part.decode(errors="backslashreplace")
            raise ValueError(
                f"{text!r:.80} contains the separator {separator!r}, with which lists are joined"
            )
    return mark.join(part for part in parts if part)


def make_numbers(name: str, values: Any, rows: int) -> np.ndarray:
    """Converts a column to float32 [rows], NaN where missing. Raises InputError if a value is not a number."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values.astype(np.float32)
    numbers = []
    for row, value in enumerate(as_list(values, rows)):
        if value is not None and not isinstance(value, bool | int | float | np.number | np.bool_):
            raise InputError(f"column {name}, row {row}: {value!r:.80} is not allowed: a number or nothing")
        try:
            numbers.append(np.nan if value is None else float(value))
        except OverflowError:
            raise InputError(
                f"column {name}, row {row}: a whole number outside the range of float64"
            ) from None
    with np.errstate(over="ignore"):
        return np.array(numbers, np.float64).astype(np.float32)


def make_times(name: str, values: Any, rows: int) -> np.ndarray:
    """Converts a column to int64 [rows] microseconds since 1970-01-01 UTC, -1 where missing.

    Raises InputError if a value is not a time, or is before 1970.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        values = list(values)
    times = []
    for row, value in enumerate(as_list(values, rows)):
        try:
            times.append(_microseconds(value))
        except (ValueError, OverflowError) as error:
            raise InputError(f"column {name}, row {row}: {error}") from None
    return np.array(times, np.int64)


def _microseconds(value: Any) -> int:
    # Pandas' and NumPy's missing times do not equal themselves.
    if value is None or (isinstance(value, datetime | np.datetime64) and value != value):
        return _MISSING_TIME
    if isinstance(value, np.datetime64):
        time = int(value.astype("datetime64[us]").astype(np.int64))
    elif isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        time = (aware - _EPOCH) // timedelta(microseconds=1)
    elif isinstance(value, int | np.integer) and not isinstance(value, bool):
        time = int(value)
    else:
        raise ValueError(
            f"{value!r:.80} is not allowed: microseconds since 1970-01-01 UTC, a datetime or nothing"
        )
    if not 0 <= time < 2**63:
        raise ValueError(f"{value!r:.80} is not allowed: a time from 1970 on, in microseconds")
    return time


class FunctionInputs:
    """Inputs of a function, as the metadata describes them: the column and the type of each."""

    def __init__(
        self, name: str, described: Mapping[str, Mapping[str, Any]], separators: Mapping[str, str | None]
    ) -> None:
        self._name, self._separators = name, separators
        self.columns: dict[str, str] = {key: column["column"] for key, column in described.items()}
        self.dtypes: dict[str, str] = {key: column["dtype"] for key, column in described.items()}

    def read(self, features: Mapping[str, Any]) -> dict[str, Texts | np.ndarray]:
        """Converts the columns that the function takes to lists of texts, float32 and int64 arrays.

        Raises InputError if a column is absent, lengths differ, or a value has the wrong type.
        """
        absent = [source for source in self.columns.values() if source not in features]
        if absent:
            required = ", ".join(self.columns.values())
            raise InputError(f"{self._name}: the column {absent[0]} is absent; required: {required}")
        rows = row_count({source: features[source] for source in self.columns.values()})
        columns: dict[str, Texts | np.ndarray] = {}
        for key, source in self.columns.items():
            values = features[source]
            if self.dtypes[key] == "string":
                columns[source] = make_texts(source, as_list(values, rows), self._separators.get(source))
            elif self.dtypes[key] == "float32":
                columns[source] = make_numbers(source, values, rows)
            else:
                columns[source] = make_times(source, values, rows)
        return columns
