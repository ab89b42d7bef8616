"""Feature ids of a few rows, made of raw values in Python: the ids of ``ctr.data.transform``, without TensorFlow.

A call of TensorFlow takes longer. Few values are left to its own libraries: texts beyond ASCII that are cut into
words, and bytes that are no UTF-8 in a prefix.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctr.data.derived import Derived
from ctr.data.schema import MISSING_ID, Category, Cross, Number, Schema, Text
from ctr.data.spelling import CASTS, WHOLE, WHOLE_SPELLED
from ctr.io.farmhash import fingerprint64

Ids = Sequence[int] | Sequence[Sequence[int]]
"""Id of each row; of a multivalent feature those of each row. Ids that grow are signed."""

Values = Sequence[str | bytes]

_CACHED = 1 << 17
# TensorFlow's kernels take subnormal numbers as 0 in some threads and not in others; here they are all 0.
_SMALLEST_NORMAL = np.finfo(np.float32).tiny
_MASK = (1 << 64) - 1
_WHOLE = re.compile(WHOLE.replace("$", r"\Z").encode())
_NOT_A_WORD = re.compile(rb"[^A-Za-z0-9]+")
_CASTS = {
    # As RE2 has it, without the vertical tab.
    name: (re.compile(pattern.replace(r"\s", r"[\t\n\f\r ]").encode()), spelled.encode())
    for name, (pattern, spelled) in CASTS.items()
}
_SPACE = r"[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"
# Python's (?i) takes a dotless or a dotted capital i for an i; RE2 and ``float`` do not.
_INFINITY = "[iI][nN][fF](?:[iI][nN][iI][tT][yY])?"
_NUMBER = re.compile(
    rf"{_SPACE}([+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|{_INFINITY})){_SPACE}"
)


class OtherWayError(Exception):
    """A value of which only TensorFlow makes the ids."""


class RowIds:
    """Makes the ids of all features of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._numbers = {feature.source for feature in schema.features if isinstance(feature, Number)}
        self._features: list[tuple[Any, bool, Any]] = []
        for feature in schema.features:
            spelled = not isinstance(feature, Cross | Number) and schema.spells_numbers(feature.source)
            known: Any = None
            if isinstance(feature, Number):
                known = number_edges(feature)
            elif isinstance(feature, Category) and feature.vocabulary:
                known = {_print(value): place for place, value in enumerate(feature.vocabulary, 1)}
            self._features.append((feature, spelled, known))

    def __call__(self, columns: Mapping[str, Any], rows: int) -> dict[str, Ids]:
        """Makes the ids of N rows of the columns ``schema.inputs``.

        Texts are N strings or bytes, empty where missing; numbers float32 [N], NaN where missing; the time int64 [N],
        negative where missing. Raises OtherWayError: a value is to be left to TensorFlow; UnicodeEncodeError: a string
        has no bytes.
        """
        ids: dict[str, Ids] = {}
        prints: dict[str, Any] = {}
        made: dict[str, Any] = {}
        for feature, spelled, known in self._features:
            if isinstance(feature, Cross):
                ids[feature.name] = _cross(feature, ids, prints, rows)
                continue
            source = feature.source
            if source not in made:
                rule = self._schema.derive.get(source)
                values = columns[source if rule is None else rule.column]
                made[source] = values if rule is None else _derived(rule, values, source in self._numbers)
            values = made[source]
            if isinstance(feature, Number):
                if not isinstance(values, np.ndarray):
                    values = [_number(_bytes(value)) for value in values]
                with np.errstate(over="ignore"):
                    numbers = np.asarray(values, np.float32)
                ids[feature.name] = prints[feature.name] = ids_of_numbers(known, numbers).tolist()
            elif isinstance(feature, Category) and not feature.multivalent:
                own = list(map(_spelled_print if spelled else _print, values))
                prints[feature.name] = own
                ids[feature.name] = _ids(feature, known, own, values)
            else:
                tokens = [_tokens(feature, value) for value in values]
                made_print = _spelled_print if spelled and isinstance(feature, Category) else _print
                prints[feature.name] = [list(map(made_print, row)) for row in tokens]
                of_rows = zip(prints[feature.name], tokens, strict=True)
                ids[feature.name] = [_ids(feature, known, own, row) for own, row in of_rows]
        return ids


@functools.lru_cache(_CACHED)
def _print(value: str | bytes) -> int:
    return fingerprint64(_bytes(value))


@functools.lru_cache(_CACHED)
def _spelled_print(value: str | bytes) -> int:
    return fingerprint64(_spelled(_bytes(value)))


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _spelled(value: bytes) -> bytes:
    if b".0" not in value or not (match := _WHOLE.match(value)):
        return value
    return match.expand(WHOLE_SPELLED.encode())


def _ids(
    feature: Category | Text, known: Mapping[int, int] | None, prints: Sequence[int], values: Values
) -> list[int]:
    if feature.buckets is None:
        ids = [_signed(fingerprint) for fingerprint in prints]
    elif known is not None:
        ids = [known.get(fingerprint, len(known) + 1) for fingerprint in prints]
    else:
        ids = [1 + fingerprint % (feature.buckets - 1) for fingerprint in prints]
    return [number if value else MISSING_ID for number, value in zip(ids, values, strict=True)]


def _signed(fingerprint: int) -> int:
    """An id that grows: 0 says missing, and the one fingerprint that is 0 takes the next id."""
    return (fingerprint or 1) - ((fingerprint >> 63) << 64)


def _tokens(feature: Category | Text, value: str | bytes) -> list[bytes]:
    text = _bytes(value)
    if isinstance(feature, Category):
        items = text.split(feature.separator.encode())
        if feature.strip:
            items = [item.strip(feature.strip.encode()) for item in items]
        parts = [item for item in items if item]
        return parts[: feature.max_values] if feature.keep == "first" else parts[-feature.max_values :]
    if not text.isascii():
        raise OtherWayError
    words = _NOT_A_WORD.sub(b" ", text).lower().split()
    tokens = [b" ".join(gram) for size in feature.words for gram in _grams(words, size)]
    for size in feature.subwords:
        for word in words:
            marked = b"<%b>" % word
            tokens += [marked[at : at + size] for at in range(len(marked) - size + 1)]
    return tokens[: feature.max_values]


def _grams(words: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    return [words[at : at + size] for at in range(len(words) - size + 1)]


def _cross(feature: Cross, ids: Mapping[str, Ids], prints: Mapping[str, Any], rows: int) -> Ids:
    parts = [prints[part] for part in feature.of]
    lists = [bool(rows) and isinstance(part[0], list) for part in parts]
    if not any(lists):
        missing = [not any(row) for row in zip(*(ids[part] for part in feature.of), strict=True)]
        rows_of_parts = zip(missing, zip(*parts, strict=True), strict=True)
        return [MISSING_ID if lacking else _cross_id(feature, row) for lacking, row in rows_of_parts]
    (place,) = [number for number, is_list in enumerate(lists) if is_list]
    found = []
    for row in zip(*parts, strict=True):
        before, after = row[:place], row[place + 1 :]
        found.append([_cross_id(feature, (*before, value, *after)) for value in row[place]])
    return found


def _cross_id(feature: Cross, parts: Sequence[int]) -> int:
    state = 1
    for part in parts:
        state = state * 0x9E3779B97F4A7C15 & _MASK ^ part
        state = (state ^ state >> 32) * 0xD6E8FEB86659FD93 & _MASK
        state ^= state >> 32
    return _signed(state) if feature.buckets is None else 1 + state % (feature.buckets - 1)


def _derived(rule: Derived, values: Any, as_number: bool) -> Any:
    if rule.of_time:
        length, shift, count = rule.periods
        periods = [int(value) // length + shift for value in values]
        periods = [period % count for period in periods] if count else periods
        if as_number:
            found = [np.nan if value < 0 else period for value, period in zip(values, periods, strict=True)]
            return np.array(found, np.float32)
        return ["" if value < 0 else str(period) for value, period in zip(values, periods, strict=True)]
    if rule.is_copy:
        return values
    change = _prefix if rule.prefix is not None else _cast
    return [change(rule, _bytes(value)) for value in values]


def _prefix(rule: Derived, value: bytes) -> bytes:
    try:
        return _spelled(value).decode()[: rule.prefix].encode()
    except UnicodeDecodeError:
        raise OtherWayError from None


def _cast(rule: Derived, value: bytes) -> bytes:
    if rule.cast not in _CASTS:
        return value
    pattern, spelled = _CASTS[rule.cast]
    match = pattern.fullmatch(value)
    return b"" if match is None else match.expand(spelled)


def _number(value: bytes) -> float:
    """A number as ``ctr.data.feature_ops.number_of`` reads it, NaN where it is none."""
    if value in (b"true", b"false"):
        return float(value == b"true")
    try:
        match = _NUMBER.fullmatch(value.decode())
    except UnicodeDecodeError:
        return np.nan
    return np.nan if match is None else float(match[1])


def number_edges(feature: Number) -> np.ndarray:
    """Returns the boundaries between a feature's buckets, float32, rising."""
    edges = np.asarray(feature.edges(), np.float32)
    edges[np.abs(edges) < _SMALLEST_NORMAL] = 0
    return edges


def ids_of_numbers(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Makes the ids of float32 [N], int32 [N], as ``feature_ops.number_ids`` does; NaN is missing."""
    normal = np.where(np.abs(values) < _SMALLEST_NORMAL, np.float32(0), values)
    ids = np.searchsorted(edges, normal, side="right").astype(np.int32)
    ids += 1
    ids[np.isnan(values)] = MISSING_ID
    return ids
