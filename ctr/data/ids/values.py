"""Operations of the rules on lists of Python's values, without TensorFlow: a call of it takes longer for a few rows.

What only TensorFlow's own libraries decide is asked of them, for these few values: how texts beyond ASCII are cut into
words, and where characters end in bytes that are no UTF-8.
"""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np

from ctr.data.derived import ColumnRule
from ctr.data.features import Category, Number
from ctr.data.ids.rules import SMALLEST_NORMAL, FeatureIds, apply_rule
from ctr.data.number_bits import ids_of_numbers, numbers_of_ids
from ctr.data.schema import Schema
from ctr.data.spelling import CASTS, WHOLE, WHOLE_SPELLED, Cast, float_text, spell
from ctr.io.errors import InputError
from ctr.io.farmhash import fingerprint64
from ctr.io.words import listed

Ids = Sequence[int] | Sequence[Sequence[int]]
"""Id of each row; of a multivalent feature those of each row. Ids that grow are signed."""

RawValue = bool | int | float | str | None

_SHOWN = 20
_CACHED = 1 << 17
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


@functools.lru_cache(_CACHED)
def _fingerprint(value: str | bytes) -> int:
    return fingerprint64(_bytes(value))


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _valid(value: bytes) -> str:
    """What is not UTF-8 is missing."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""


class RowIds:
    """Makes the ids of all features of a schema; ``on_load`` is called before TensorFlow is asked."""

    def __init__(self, schema: Schema, on_load: Callable[[], object] | None = None) -> None:
        self._ids = FeatureIds(schema)
        self._operations = Operations(on_load)

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Ids]:
        """Makes the ids of N rows of the columns ``schema.inputs``.

        Texts are N strings or bytes, empty where missing; numbers float32 [N], NaN where missing; the time int64 [N],
        negative where missing. Raises UnicodeEncodeError: a string has no bytes.
        """
        made = self._ids(self._operations, columns)
        return {
            name: one.ids if one.rows is None else _lists(one.ids, one.rows) for name, one in made.items()
        }


def _lists(values: list[Any], lengths: Sequence[int]) -> list[list[Any]]:
    rest = iter(values)
    return [[next(rest) for _ in range(length)] for length in lengths]


def feature_ids(schema: Schema, name: str, values: Sequence[RawValue]) -> np.ndarray:
    """Makes the ids of raw values of a single-valued category or number, as a configuration names them.

    Numbers stand for the bucket that they fall into; null or the empty text is missing. Raises InputError: there is no
    such feature or value, or a value has the id of an earlier one.
    """
    feature = schema.by_name.get(name)
    if feature is None:
        raise InputError(f"{name} is not a feature of the log; allowed: {listed(list(schema.by_name), name)}")
    if not isinstance(feature, Category | Number) or name not in schema.single_ids:
        of_lists = isinstance(feature, Category) and feature.multivalent
        kind = f"multivalent {feature.kind}" if of_lists else feature.kind
        kind = "number as a value" if isinstance(feature, Number) else kind
        raise InputError(
            f"feature {name} is a {kind}; only single-valued categories and numbers in buckets have values to name"
        )
    if isinstance(feature, Category):
        given: Any = _category_texts(feature, values, schema.spells_numbers(feature.source))
    else:
        given = _number_values(feature, values)
    ids: list[int] = FeatureIds(schema).of_values(Operations(), feature, given).ids
    seen: dict[int, object] = {}
    for value, number in zip(values, ids, strict=True):
        if number in seen:
            raise InputError(
                f"feature {name}: {value!r} and {seen[number]!r} have the same id {number}; name one of them"
            )
        seen[number] = value
    return np.array(ids, np.int64 if feature.buckets is None else np.int32)


def _category_texts(feature: Category, values: Sequence[RawValue], spelled: bool) -> list[str]:
    texts = [spell(_text(value)) if spelled else _text(value) for value in values]
    if feature.vocabulary is not None:
        unknown = [text for text in texts if text and text not in feature.vocabulary]
        if unknown:
            allowed = [*feature.vocabulary[:_SHOWN], *(["..."] if len(feature.vocabulary) > _SHOWN else [])]
            raise InputError(
                f"feature {feature.name}: {unknown[0]!r} is not in its vocabulary; allowed: {', '.join(allowed)}"
            )
    return texts


def _text(value: RawValue) -> str:
    if isinstance(value, float):
        return float_text(value)
    # As Arrow writes truth values.
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _number_values(feature: Number, values: Sequence[RawValue]) -> np.ndarray:
    numbers = []
    for value in values:
        if isinstance(value, str) and value:
            raise InputError(f"feature {feature.name}: {value!r} is not a number")
        numbers.append(float("nan") if value is None or value == "" else float(value))
    with np.errstate(over="ignore"):
        return np.array(numbers, np.float32)


class Operations:
    """The operations, of lists; strings are ``str`` or bytes, rows of lists their lengths.

    Args:
        on_load: called before TensorFlow is asked.
    """

    def __init__(self, on_load: Callable[[], object] | None = None) -> None:
        self._on_load = on_load

    def _graph(self) -> ModuleType:
        if self._on_load is not None:
            self._on_load()
        from ctr.data.ids import graph

        return graph

    def decimals(self, integers: Sequence[int]) -> list[str]:
        return list(map(str, integers))

    def numbers(self, values: np.ndarray | Sequence[float | str | bytes]) -> list[float]:
        if isinstance(values, np.ndarray):
            found: list[float] = values.tolist()
            return found
        return [c_float(_number(value)).value for value in values]

    def spell(self, strings: Strings) -> Strings:
        try:
            # One search through all strings takes less time than one in each.
            if ".0" not in "\0".join(strings):  # type: ignore[arg-type]
                return strings
        except TypeError:  # some are bytes
            pass
        return list(map(_spelled, strings))

    def prefix(self, strings: Strings, length: int) -> list[bytes]:
        found: list[bytes] = []
        for value in map(_bytes, strings):
            try:
                found.append(value.decode()[:length].encode())
            except UnicodeDecodeError:
                found += self._graph().prefix([value], length).numpy().tolist()
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
        mark = separator.encode()
        return _flat([_bytes(value).split(mark) for value in strings])

    def strip(self, strings: list[bytes], characters: str) -> list[bytes]:
        some = characters.encode()
        return [value.strip(some) for value in strings]

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
        asked = iter(self._graph().cut_words(others).to_list() if others else ())
        return [
            _NOT_A_WORD.sub(b" ", text).lower().split() if text.isascii() else next(asked) for text in texts
        ]

    def fingerprint(self, strings: Strings) -> list[int]:
        return list(map(_fingerprint, strings))

    def stack(self, vectors: Sequence[list[Any]]) -> list[Any]:
        return list(chain(*vectors))

    def unstack(self, vector: list[Any], count: int) -> list[list[Any]]:
        size = len(vector) // count
        return [vector[begin : begin + size] for begin in range(0, count * size, size or 1)]

    def bucket(self, prints: list[int], counts: Sequence[int]) -> list[int]:
        if len(counts) == 1:
            return [1 + one % counts[0] for one in prints]
        size = len(prints) // len(counts)
        divisors = counts if size == 1 else [count for count in counts for _ in range(size)]
        return [1 + one % count for one, count in zip(prints, divisors, strict=True)]

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

    def is_negative(self, times: np.ndarray) -> list[bool]:
        return [time < 0 for time in times.tolist()]

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
