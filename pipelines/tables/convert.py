"""Converts whole columns, and returns a mask of the rows that could not be converted."""

from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.features import Vector
from ctr.data.ids.arrow import is_text, spell_array, string_ids
from ctr.data.ids.rules import SPACES
from ctr.data.mapping import TIME_LIMIT_US, Label, Time
from ctr.data.reader import LARGEST_WEIGHT
from ctr.data.time_formats import time_format
from ctr.io.errors import InputError
from ctr.io.hashing import mix64

# The serial number of 1970-01-01 in a spreadsheet; its day 1 is 1899-12-31, as it counts a February 29 in 1900.
SERIAL_OF_1970 = 25_569

_DAY_MS = 86_400_000.0
_UNIT_US = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}

LABEL_ALLOWED = "0, 1, true, false"
WEIGHT_ALLOWED = f"a number from 0 to {LARGEST_WEIGHT:,.0f}"
_LABEL_TEXTS = ["0", "1", "false", "true", "False", "True", "FALSE", "TRUE", "0.0", "1.0"]

# Spellings of ISO 8601, in upper case, that Arrow does not read, and substitutes that it does: the basic form, a comma
# before the fraction, more than six digits of it, spaces or names of UTC before the offset, and the zone's name.
_ISO_SPELLINGS = (
    (r"\[[A-Z/_+0-9-]+\]$", ""),
    (r"^([0-9]{4})([0-9]{2})([0-9]{2})([T ])", r"\1-\2-\3\4"),
    (r"([T ])([0-9]{2})([0-9]{2})([0-9]{2})([.,Z +-].*)?$", r"\1\2:\3:\4\5"),
    (r"([T ])([0-9]{2})([0-9]{2})(Z|[ +-].*)?$", r"\1\2:\3\4"),
    (r"(:[0-9]{2}),([0-9])", r"\1.\2"),
    (r"([.][0-9]{6})[0-9]+", r"\1"),
    (r"([T ][0-9:.]+) ?(Z|UTC|GMT)$", r"\1Z"),
    (r"([T ][0-9:.]+) ([+-])", r"\1\2"),
)
_PLAIN_ISO = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}(:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?$"
)
_HAS_OFFSET = r"[T ].*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"

Bad = np.ndarray  # [N] bool: the rows that a conversion refuses


def is_text_or_number(kind: pa.DataType) -> bool:
    """Returns whether a type's values can be written as text: text, numbers, booleans and null."""
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return is_text(kind) or number or types.is_boolean(kind) or types.is_null(kind)


def is_missing(column: pa.Array, is_nan_missing: bool = False) -> np.ndarray:
    """Returns [N] bool: whether a value is null or an empty text, or with ``is_nan_missing`` NaN."""
    missing: np.ndarray = column.is_null(nan_is_null=is_nan_missing).to_numpy(zero_copy_only=False)
    if is_text(column.type):
        missing |= pc.fill_null(pc.equal(column, ""), True).to_numpy(zero_copy_only=False)
    return missing


def convert_checked(values: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> tuple[pa.Array, Bad]:
    """Applies ``convert``; values that it refuses with ArrowInvalid become null and are marked.

    The search bisects the distinct values: a few bad ones cost a few conversions. ``convert`` alone decides.
    """
    # Arrow encodes no dictionary of half precision.
    values = values.cast(pa.float32()) if pa.types.is_float16(values.type) else values
    try:
        return convert(values), np.zeros(len(values), bool)
    except pa.ArrowInvalid:
        encoded = values.dictionary_encode()
    refused = np.zeros(len(encoded.dictionary), bool)
    pieces = [convert(values.slice(0, 0))]
    parts = [(0, len(refused))]
    while parts:
        begin, end = parts.pop()
        try:
            pieces.append(convert(encoded.dictionary.slice(begin, end - begin)))
        except pa.ArrowInvalid:
            half = (begin + end) // 2
            if half > begin:
                parts += [(half, end), (begin, half)]
            else:
                refused[begin] = True
                pieces.append(pa.nulls(1, pieces[0].type))
    return pa.concat_arrays(pieces).take(encoded.indices), _rows_of(refused, encoded)


def _rows_of(bad_values: np.ndarray, encoded: pa.DictionaryArray) -> Bad:
    """Expands a mask of a dictionary's bad values, [U] bool, to its rows, [N] bool; null rows are not bad."""
    bad = bad_values[pc.fill_null(encoded.indices, 0).to_numpy()]
    return bad & encoded.indices.is_valid().to_numpy(zero_copy_only=False)


def check_utf8(column: pa.Array) -> tuple[pa.Array, Bad]:
    """Converts binary values to strings and marks rows that are not UTF-8; checks strings and lists of them too."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return check_utf8(column.dictionary_decode())
    if pa.types.is_string_view(kind):
        column = column.cast(pa.string())
        kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
        kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and (is_text(kind.value_type) or pa.types.is_binary(kind.value_type)):
        _, bad_values = check_utf8(column.flatten())
        bad = np.zeros(len(column), bool)
        bad[column.value_parent_indices().to_numpy()[bad_values]] = True
        return (column if not bad.any() else pc.if_else(pa.array(bad), None, column)), bad
    if is_text(kind):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return column, np.zeros(len(column), bool)
    target = pa.large_string() if pa.types.is_large_binary(column.type) else pa.string()
    return convert_checked(column, lambda values: values.cast(target))


def check_encoded(column: pa.DictionaryArray) -> tuple[pa.DictionaryArray, Bad]:
    """Checks a dictionary of text or bytes as ``check_utf8`` does, each distinct value once; it stays a dictionary."""
    values, bad_values = check_utf8(column.dictionary)
    checked = pa.DictionaryArray.from_arrays(column.indices, values)
    if not bad_values.any():
        return checked, np.zeros(len(column), bool)
    return checked, _rows_of(bad_values, column)


def show_bytes(column: pa.Array) -> pa.Array:
    """Casts a column of text, or lists of it, to bytes, which Python can print even if they are not UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.list_(pa.large_binary()) if pa.types.is_nested(column.type) else pa.large_binary())


def parse_numbers(column: pa.Array, whole: bool = False) -> tuple[pa.Array, Bad]:
    """Parses numbers or text as float64 (int64 if ``whole``), null if empty. Raises InputError for another type."""
    target = pa.int64() if whole else pa.float64()
    kind = column.type
    if is_text(kind):
        column = pc.if_else(pc.equal(column, ""), None, column)
        converted, bad = convert_checked(column, lambda values: values.cast(pa.float64()))
        if bad.any():
            trimmed = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(trimmed, ""), None, trimmed)
            converted, bad = convert_checked(column, lambda values: values.cast(pa.float64()))
        if not whole:
            return converted, bad
        # The detour by float64 refuses hexadecimal digits, which Arrow reads as whole numbers.
        column = pc.if_else(pa.array(bad), None, column)
        converted, bad_whole = convert_checked(column, lambda values: values.cast(target))
        return converted, bad | bad_whole
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(target), np.zeros(len(column), bool)
    if not is_text_or_number(kind):
        raise InputError(f"of type {kind}, where numbers are required")
    if pa.types.is_integer(kind) and not whole:
        return column.cast(target, safe=False), np.zeros(len(column), bool)
    return convert_checked(column, lambda values: values.cast(target))


def parse_vectors(column: pa.Array, vector: Vector) -> tuple[pa.Array, Bad]:
    """Parses lists of numbers, or text, as float32 lists, empty if missing or bad. Raises InputError for bad types."""
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.list_(pa.float32())), np.zeros(len(column), bool)
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.equal(column, ""), None, column)
        if vector.separator.isspace():
            # Columns of numbers are aligned by runs of spaces, also beside brackets, as NumPy writes them.
            column = pc.split_pattern_regex(pc.ascii_trim(column, vector.strip + SPACES), r"\s+")
        else:
            column = pc.split_pattern(column, vector.separator)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise InputError(f"of type {column.type}, where lists of numbers or text are required")
    items = column.flatten()
    if vector.strip and is_text(items.type):
        items = pc.ascii_trim(items, vector.strip)
    numbers, bad_items = parse_numbers(items)
    with np.errstate(over="ignore"):
        values = pc.fill_null(numbers, np.nan).to_numpy().astype(np.float32)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    bad = (lengths > 0) & (lengths != vector.size)
    bad[np.repeat(np.arange(len(column)), lengths)[bad_items | ~np.isfinite(values)]] = True
    good = (lengths > 0) & ~bad
    offsets = np.concatenate([[0], np.cumsum(np.where(good, vector.size, 0))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[np.repeat(good, lengths)])), bad


def parse_times(column: pa.Array, time: Time) -> tuple[np.ndarray, Bad]:
    """Parses times as int64 [N] microseconds since 1970, UTC, 0 where bad. Raises InputError for a wrong type."""
    kind = column.type
    if time.unit is not None:
        parsed, bad = _times_by_unit(column, time.unit)
    elif time.format == "iso8601" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        zone = getattr(kind, "tz", None)
        to_us = pa.timestamp("us", "UTC" if zone is not None else None)
        # Nanoseconds lose digits; what would overflow is refused.
        safe = getattr(kind, "unit", None) != "ns"
        parsed, bad = convert_checked(column, lambda values: values.cast(to_us, safe=safe).cast(pa.int64()))
        if zone is None:
            parsed, bad = _in_zone(parsed, bad, time)
    elif not (is_text(kind) or pa.types.is_null(kind) or (
            pa.types.is_integer(kind) and time.format != "iso8601")):  # fmt: skip
        raise InputError(f"of type {kind}, which format {time.format} does not read")
    elif time.format == "iso8601":
        parsed, bad = _times_by_iso(column.cast(pa.string()), time)
    else:
        assert time.format is not None
        encoded = column.cast(pa.string()).dictionary_encode()
        distinct = time_format(time.format).read_all(encoded.dictionary.to_pylist())
        parsed, bad = _in_zone(distinct.take(encoded.indices), np.zeros(len(column), bool), time)
    bad = bad | parsed.is_null().to_numpy(zero_copy_only=False)
    times = pc.fill_null(parsed, 0).to_numpy()
    first, limit = time.range_us
    outside = (times < first) | (times >= limit)
    return np.where(outside, 0, times), bad | outside


def _times_by_unit(column: pa.Array, unit: str) -> tuple[pa.Array, Bad]:
    numbers, bad = parse_numbers(column)
    counts = pc.fill_null(numbers, np.nan).to_numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        if unit == "serial":
            # Spreadsheets keep milliseconds; the fraction of a day has few more digits.
            scaled = np.rint((counts - SERIAL_OF_1970) * _DAY_MS) * 1000.0
        else:
            scaled = np.rint(counts * _UNIT_US[unit])
    # NaN compares false; a float64 holds microseconds up to the limit only roughly, whole numbers follow.
    inside = (scaled >= 0) & (scaled < TIME_LIMIT_US)
    times = np.where(inside, scaled, 0).astype(np.int64)
    if unit == "serial":
        return pa.array(times), bad | ~inside
    whole, not_whole = parse_numbers(column, whole=True)
    exact = inside & ~not_whole & whole.is_valid().to_numpy(zero_copy_only=False)
    numbers_us = pc.fill_null(whole, 0).to_numpy()
    times[exact] = numbers_us[exact] // 1000 if unit == "ns" else numbers_us[exact] * int(_UNIT_US[unit])
    return pa.array(times), bad | ~inside


def _in_zone(local: pa.Array, bad: Bad, time: Time) -> tuple[pa.Array, Bad]:
    """Converts local times in the time's zone to UTC, int64 microseconds; without a zone they are UTC.

    Refuses local times that do not exist (summer time begins) and, unless ``time.ambiguous`` is set, those that occur
    twice (it ends).
    """
    if time.zone is None:
        return local, bad
    clock_times = local.cast(pa.timestamp("us"))
    first, second = (
        pc.assume_timezone(clock_times, time.zone, ambiguous=which, nonexistent=which).cast(pa.int64())
        for which in ("earliest", "latest")
    )
    # Around a local time that clocks skip, the two differ by a microsecond.
    apart = pc.fill_null(pc.subtract(second, first), 0).to_numpy()
    refused = (apart > 0) & ((apart <= 1) | (time.ambiguous is None))
    return (second if time.ambiguous == "second" else first), bad | refused


def _times_by_iso(column: pa.Array, time: Time) -> tuple[pa.Array, Bad]:
    plain = pc.match_substring_regex(column, _PLAIN_ISO)
    if not pc.all(plain, min_count=0).as_py():
        other = pc.utf8_upper(pc.utf8_trim_whitespace(pc.if_else(plain, None, column)))
        for pattern, replacement in _ISO_SPELLINGS:
            other = pc.replace_substring_regex(other, pattern, replacement)
        # Any other spelling is not a time.
        other = pc.if_else(pc.match_substring_regex(other, _PLAIN_ISO), other, None)
        column = pc.if_else(plain, column, other)
    has_offset = pc.fill_null(pc.match_substring_regex(column, _HAS_OFFSET), False)
    times = pa.nulls(len(column), pa.int64())
    bad = np.zeros(len(column), bool)
    for chosen, zone in ((has_offset, "UTC"), (pc.invert(has_offset), None)):
        if not pc.any(chosen, min_count=0).as_py():
            continue
        parsed, refused = _iso_us(pc.if_else(chosen, column, None), zone)
        if zone is None:
            parsed, refused = _in_zone(parsed, refused, time)
        times = pc.coalesce(times, parsed)
        bad |= refused
    return times, bad


def _iso_us(texts: pa.Array, zone: str | None) -> tuple[pa.Array, Bad]:
    kind = pa.timestamp("us", zone)
    parsed, bad = convert_checked(texts, lambda values: values.cast(kind).cast(pa.int64()))
    return parsed.cast(pa.int64()), bad


def parse_labels(column: pa.Array, label: Label) -> tuple[np.ndarray, Bad, str]:
    """Parses labels as int8 [N], 0 where bad; also describes the allowed values. Raises InputError for a wrong type."""
    if label.op is None:
        if is_text(column.type):
            indices = pc.fill_null(pc.index_in(column, pa.array(_LABEL_TEXTS, column.type)), -1).to_numpy()
            return np.where(indices < 0, 0, indices % 2).astype(np.int8), indices < 0, LABEL_ALLOWED
        numbers, bad = parse_numbers(column)
        values = pc.fill_null(numbers, np.nan).to_numpy()
        bad = bad | ~((values == 0) | (values == 1))
        return np.where(bad, 0, values).astype(np.int8), bad, LABEL_ALLOWED
    if label.value == "":
        # An empty text is a missing value, of whatever type: the rule asks whether there is one.
        met = is_missing(column) ^ (label.op == "!=")
        return met.astype(np.int8), np.zeros(len(column), bool), "any value, or none"
    if isinstance(label.value, str):
        if not is_text_or_number(column.type):
            raise InputError(f"of type {column.type}, which the rule compares with no text")
        texts = column if is_text(column.type) else column.cast(pa.string())
        equal = pc.equal(texts, label.value)
        bad = equal.is_null().to_numpy(zero_copy_only=False)
        met = pc.fill_null(equal, False).to_numpy(zero_copy_only=False) ^ (label.op == "!=")
        return np.where(bad, 0, met).astype(np.int8), bad, "text"
    assert label.value is not None
    numbers, bad = parse_numbers(column)
    values = pc.fill_null(numbers, np.nan).to_numpy()
    bad = bad | np.isnan(values)
    compare = {">=": ge, ">": gt, "<=": le, "<": lt, "==": eq, "!=": ne}[label.op]
    return np.where(bad, 0, compare(values, label.value)).astype(np.int8), bad, "a number"


def parse_weights(column: pa.Array) -> tuple[np.ndarray, Bad]:
    """Parses weights as float32 [N], 0 if missing, negative or too large. Raises InputError for a wrong type."""
    numbers, bad = parse_numbers(column)
    with np.errstate(over="ignore"):
        weights = pc.fill_null(numbers, np.nan).to_numpy().astype(np.float32)
    bad = bad | ~((weights >= 0) & (weights <= LARGEST_WEIGHT))
    return np.where(bad, np.float32(0), weights), bad


def parse_ids(column: pa.Array) -> tuple[np.ndarray, Bad]:
    """Parses ids to int64 [N] (other text is hashed, missing is 0), and what is missing. InputError for a bad type."""
    kind, missing = column.type, is_missing(column)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), missing
    if kind == pa.uint64() or pa.types.is_null(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.string())
    elif not is_text(kind):
        raise InputError(f"of type {kind}; ids are whole numbers or text")
    column = spell_array(column)
    plain = pc.fill_null(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,18})$"), False)
    whole, beyond = convert_checked(pc.if_else(plain, column, None), lambda values: values.cast(pa.int64()))
    ids = pc.fill_null(whole.cast(pa.int64()), 0).to_numpy().copy()
    hashed = (~plain.to_numpy(zero_copy_only=False) | beyond) & ~missing
    if hashed.any():
        ids[hashed] = string_ids(column.filter(pa.array(hashed)))
    return ids, missing


def mix_ids(*parts: int | np.ndarray) -> np.ndarray:
    """Hashes tuples of int64s to int64 [N], applying splitmix64's finalizer to one part after the other."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        bits = np.atleast_1d(np.asarray(part, np.int64)).view(np.uint64)
        state = mix64(state * np.uint64(0x9E3779B97F4A7C15) ^ bits)
    return state.view(np.int64)
