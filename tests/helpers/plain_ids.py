"""Operations of the rules on lists of Python's values: the witness of the graph and of ingestion.

What only TensorFlow's libraries decide is asked of them: how texts beyond ASCII are cut into words, and where
characters end in bytes that are no UTF-8.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from ctypes import c_float
from itertools import chain
from typing import Any

import numpy as np

from ctr.data.derived import ColumnRule
from ctr.data.features import Cross, Number
from ctr.data.ids import graph, rules
from ctr.data.ids.rules import SMALLEST_NORMAL, FeatureIds, apply_rule, cross_ids, derived_column
from ctr.data.schema import Schema
from ctr.data.spelling import CASTS, WHOLE, WHOLE_SPELLED, Cast
from ctr.data.value_arrays import ids_of_numbers, numbers_of_ids
from ctr.io.farmhash import fingerprint64

Ids = Sequence[int] | Sequence[Sequence[int]]
"""Id of each row; of a multivalent feature those of each row. Ids that grow are signed."""

_MASK = (1 << 64) - 1
_NOT_A_WORD = re.compile(rb"[^A-Za-z0-9]+")
_WHOLE = re.compile(WHOLE.replace("$", r"\Z").encode())
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

Strings = Sequence[str | bytes]


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _valid(value: bytes) -> str:
    """What is not UTF-8 is missing."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""


class RowIds:
    """Makes the ids of all features of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Ids]:
        """Makes the ids of N rows of the columns ``schema.inputs``.

        Texts are N strings or bytes, empty where missing; numbers float32 [N], NaN where missing; the time int64 [N],
        negative where missing. Raises UnicodeEncodeError: a string has no bytes.
        """
        operations, ids = Operations(), FeatureIds(self._schema)
        made: dict[str, rules.IdColumn] = {}
        for feature in self._schema.features:
            if isinstance(feature, Cross):
                made[feature.name] = cross_ids(operations, feature, [made[part] for part in feature.of])
            else:
                made[feature.name] = ids.of_values(operations, feature, self._values(feature, columns))
        return {
            name: one.ids if one.rows is None else _lists(one.ids, one.rows) for name, one in made.items()
        }

    def _values(self, feature: Any, columns: Mapping[str, Any]) -> Any:
        rule = self._schema.derive.get(feature.source)
        if rule is None:
            return columns[feature.source]
        values = columns[rule.column]
        derived = derived_column(Operations(), rule, values)
        if not rule.of_time:
            return derived
        texts = ["" if time < 0 else str(part) for time, part in zip(values.tolist(), derived, strict=True)]
        return np.array([float(text or "nan") for text in texts]) if isinstance(feature, Number) else texts


def _lists(values: list[Any], lengths: Sequence[int]) -> list[list[Any]]:
    rest = iter(values)
    return [[next(rest) for _ in range(length)] for length in lengths]


class Operations:
    """The operations, of lists; strings are ``str`` or bytes, rows of lists their lengths."""

    def numbers(self, values: np.ndarray | Sequence[float | str | bytes]) -> list[float]:
        if isinstance(values, np.ndarray):
            found: list[float] = values.tolist()
            return found
        return [c_float(_number(value)).value for value in values]

    def spell(self, strings: Strings) -> Strings:
        return list(map(_spelled, strings))

    def prefix(self, strings: Strings, length: int) -> list[bytes]:
        found: list[bytes] = []
        for value in map(_bytes, strings):
            try:
                found.append(value.decode()[:length].encode())
            except UnicodeDecodeError:
                found += graph.prefix([value], length).numpy().tolist()
        return found

    def cast(self, strings: Strings, cast: Cast) -> list[bytes]:
        pattern, spelled = _CASTS[cast]
        matches = map(pattern.fullmatch, map(_bytes, strings))
        return [b"" if match is None else match.expand(spelled) for match in matches]

    def apply(self, strings: Strings, rule: ColumnRule) -> list[bytes]:
        return [apply_rule(rule, _valid(value)).encode() for value in map(_bytes, strings)]

    def periods(self, times: np.ndarray, length: int, shift: int, count: int) -> list[int]:
        found = [time // length + shift for time in times.tolist()]
        return [period % count for period in found] if count else found

    def split(self, strings: Strings, separator: str) -> tuple[list[bytes], list[int]]:
        mark = separator.encode() or None
        return _flat([_bytes(value).split(mark) for value in strings])

    def strip(self, strings: Strings, characters: str) -> list[bytes]:
        some = characters.encode()
        return [_bytes(value).strip(some) for value in strings]

    def keep(
        self, strings: list[bytes], rows: list[int], most: int, which: str
    ) -> tuple[list[bytes], list[int]]:
        kept = [[value for value in row if value] for row in _lists(strings, rows)]
        return _flat([row[:most] if which == "first" else row[-most:] for row in kept])

    def ngrams(
        self, strings: Strings, words: Sequence[int], subwords: Sequence[int], most: int
    ) -> tuple[list[bytes], list[int]]:
        rows = []
        for found in self._cut_words(list(map(_bytes, strings))):
            grams = [b" ".join(gram) for size in words for gram in _grams(found, size)]
            marked = [f"<{word.decode()}>" for word in found] if subwords else ()
            grams += [gram.encode() for size in subwords for word in marked for gram in _grams(word, size)]
            rows.append(grams[:most])
        return _flat(rows)

    def _cut_words(self, texts: list[bytes]) -> list[list[bytes]]:
        others = [text for text in texts if not text.isascii()]
        asked = iter(graph.cut_words(others).to_list() if others else ())
        return [
            _NOT_A_WORD.sub(b" ", text).lower().split() if text.isascii() else next(asked) for text in texts
        ]

    def fingerprint(self, strings: Strings) -> list[int]:
        return [fingerprint64(_bytes(value)) for value in strings]

    def bucket(self, prints: list[int], counts: Sequence[int]) -> list[int]:
        (count,) = counts
        return [1 + one % count for one in prints]

    def grown(self, prints: list[int]) -> list[int]:
        return [(one or 1) - ((one >> 63) << 64) for one in prints]

    def look_up(self, prints: list[int], places: Mapping[int, int]) -> list[int]:
        other = len(places) + 1
        return [places.get(one, other) for one in prints]

    def rank(self, numbers: list[float], edges: Sequence[float]) -> list[int]:
        return [
            1 + bisect_right(edges, 0.0 if -SMALLEST_NORMAL < number < SMALLEST_NORMAL else number)
            for number in numbers
        ]

    def bits(self, numbers: list[float]) -> list[int]:
        found: list[int] = ids_of_numbers(np.array(numbers, np.float32)).tolist()
        return found

    def whole(self, bits: list[int], rows: list[int], size: int) -> tuple[list[int], list[int]]:
        kept = [
            row if len(row) == size and np.isfinite(numbers_of_ids(np.array(row, np.int64))).all() else []
            for row in _lists(bits, rows)
        ]
        return _flat(kept)

    def mix(self, parts: Sequence[list[int]]) -> list[int]:
        mixed = []
        for row in zip(*parts, strict=True):
            state = 1
            for part in row:
                state = state * 0x9E3779B97F4A7C15 & _MASK ^ part
                state = (state ^ state >> 32) * 0xD6E8FEB86659FD93 & _MASK
                state ^= state >> 32
            mixed.append(state)
        return mixed

    def spread(self, vector: list[int], rows: list[int]) -> list[int]:
        return [value for value, length in zip(vector, rows, strict=True) for _ in range(length)]

    def is_empty(self, strings: Strings) -> list[bool]:
        return [not value for value in strings]

    def is_nan(self, numbers: list[float]) -> list[bool]:
        return [number != number for number in numbers]

    def all_zero(self, ids: Sequence[list[int]]) -> list[bool]:
        return [not any(row) for row in zip(*ids, strict=True)]

    def where(self, condition: list[bool], constant: Any, values: list[Any]) -> list[Any]:
        if True not in condition:
            return values
        return [constant if holds else value for holds, value in zip(condition, values, strict=True)]


def _spelled(value: str | bytes) -> str | bytes:
    match = _WHOLE.match(_bytes(value))
    return value if match is None else match.expand(WHOLE_SPELLED.encode())


def _number(value: float | str | bytes) -> float:
    """A number as ``graph.numbers`` reads it, NaN where it is none."""
    if isinstance(value, int | float):
        return value
    text = _bytes(value)
    if text in (b"true", b"false"):
        return float(text == b"true")
    try:
        match = _NUMBER.fullmatch(text.decode())
    except UnicodeDecodeError:
        return np.nan
    return np.nan if match is None else float(match[1])


def _flat(rows: list[list[Any]]) -> tuple[list[Any], list[int]]:
    return list(chain(*rows)), list(map(len, rows))


def _grams(parts: Any, size: int) -> list[Any]:
    return [parts[at : at + size] for at in range(len(parts) - size + 1)]
