"""Rules that compute the ids of each kind of feature, written once for Arrow and for TensorFlow.

Strings are hashed with FarmHash Fingerprint64: missing is 0, everything else ``1 + fingerprint mod (buckets - 1)``, or,
if ids grow, the fingerprint itself, its 64 bits read as signed; a vocabulary gives ``1..n``, and ``n + 1`` to other
values. A number gives 0 when missing, else ``1 + count(edges <= x)`` in float32, or as a value its bits
(``ctr.data.value_arrays``), as do the numbers of a vector. A cross mixes the full 64-bit
fingerprints of its parts (not their ids, which collide), for numbers their ids, in the order in which they are named; a
missing part counts as a distinct value, and if all are missing the id is 0: ``h = mix((h * 0x9E3779B97F4A7C15) ^
part)`` modulo 2^64 for each part, h = 1 at the start; ``mix`` is the finalizer ``x ^= x >> 32; x *= 0xD6E8FEB86659FD93;
x ^= x >> 32``. Categories spell numbers in one way (``ctr.data.spelling``).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from ctr.data.derived import ColumnRule, Derived
from ctr.data.features import Category, Cross, Number, Text
from ctr.data.features import Vector as VectorFeature
from ctr.data.schema import MISSING_ID, Schema
from ctr.data.spelling import CASTS, Cast
from ctr.io.errors import InputError, listed, one_line
from ctr.io.farmhash import fingerprint64

Vector: TypeAlias = Any
"""Concatenated values: a tensor, a list, or an array, as its operations represent them."""
Sizes: TypeAlias = Sequence[int]
Rows: TypeAlias = Any
"""Number of values in each row of a multivalent feature, as its operations represent it."""

SPACES = " \t\r\n"
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


class Operations(Protocol):
    """Operations that the rules use. Strings may hold any bytes, the empty string is missing; numbers are float32."""

    def numbers(self, values: Vector) -> Vector: ...  # also of strings and integers; NaN: not a number
    def spell(self, strings: Vector) -> Vector: ...  # whole numbers without a fraction
    def prefix(self, strings: Vector, length: int) -> Vector: ...  # the first ``length`` characters
    def cast(self, strings: Vector, cast: Cast) -> Vector: ...  # the empty string for what it does not accept
    def apply(self, strings: Vector, rule: ColumnRule) -> Vector: ...  # a rule of another package
    def periods(self, times: Vector, length: int, shift: int, count: int) -> Vector: ...
    def split(self, strings: Vector, separator: str) -> tuple[Vector, Rows]: ...  # empty: runs of white space
    def strip(self, strings: Vector, characters: str) -> Vector: ...  # ASCII characters, at both ends
    def keep(self, strings: Vector, rows: Rows, most: int, which: str) -> tuple[Vector, Rows]: ...
    def ngrams(self, strings: Vector, words: Sizes, subwords: Sizes, most: int) -> tuple[Vector, Rows]: ...
    def fingerprint(self, strings: Vector) -> Vector: ...  # unsigned, 64 bits
    def bucket(self, prints: Vector, counts: Sequence[int]) -> Vector: ...  # 1 + print mod count
    def grown(self, prints: Vector) -> Vector: ...  # the 64 bits read as signed; 1 for 0
    # The value of each in ``places``, or ``len(places) + 1`` where it has none.
    def look_up(self, prints: Vector, places: Mapping[int, int]) -> Vector: ...
    # 1 + how many edges are at or below.
    def rank(self, numbers: Vector, edges: Sequence[float]) -> Vector: ...
    def bits(self, numbers: Vector) -> Vector: ...  # as ``ctr.data.value_arrays`` has them
    # Empty for rows without exactly this many finite numbers.
    def whole(self, bits: Vector, rows: Rows, size: int) -> tuple[Vector, Rows]: ...
    def mix(self, parts: Sequence[Vector]) -> Vector: ...
    def spread(self, vector: Vector, rows: Rows) -> Vector: ...  # a row's value for each of its items
    def is_empty(self, strings: Vector) -> Vector: ...
    def is_nan(self, numbers: Vector) -> Vector: ...
    def all_zero(self, ids: Sequence[Vector]) -> Vector: ...  # of each row
    def where(self, condition: Vector, constant: Any, values: Vector) -> Vector: ...


class IdColumn(NamedTuple):
    """A feature of N rows: ids, fingerprints that crosses mix, hashed strings; for lists also the size of each row."""

    ids: Vector
    prints: Vector
    strings: Vector = None
    rows: Rows = None


class FeatureIds:
    """Computes the ids of the features of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._edges = {
            f.name: number_edges(f) for f in schema.features if isinstance(f, Number) and f.has_ids
        }
        self._places = {
            f.name: {fingerprint64(value.encode()): index for index, value in enumerate(f.vocabulary, 1)}
            for f in schema.features
            if isinstance(f, Category) and f.vocabulary
        }

    def of_values(
        self,
        xp: Operations,
        feature: Category | Number | VectorFeature | Text,
        values: Vector,
        rows: Rows = None,
    ) -> IdColumn:
        """Computes the ids of a feature from the values of its source; ``rows``: for lists, the size of each row."""
        if isinstance(feature, Number):
            values = xp.numbers(values)
            if not feature.has_ids:
                return IdColumn(bits := xp.bits(values), bits)
            ids = xp.where(xp.is_nan(values), MISSING_ID, xp.rank(values, self._edges[feature.name]))
            return IdColumn(ids, ids)
        if isinstance(feature, VectorFeature):
            if rows is None:
                values = xp.strip(values, feature.strip + SPACES) if feature.separator.isspace() else values
                values, rows = xp.split(values, feature.separator if feature.separator.strip() else "")
                values = xp.strip(values, feature.strip) if feature.strip else values
            bits, rows = xp.whole(xp.bits(xp.numbers(values)), rows, feature.size)
            return IdColumn(bits, bits, rows=rows)
        if isinstance(feature, Text):
            values, rows = xp.ngrams(values, feature.words, feature.subwords, feature.max_values)
        elif feature.multivalent:
            if rows is None:
                values, rows = xp.split(values, feature.separator)
            if feature.strip:
                values = xp.strip(values, feature.strip)
            values, rows = xp.keep(values, rows, feature.max_values, feature.keep)
        return self.hashed(xp, [feature], values, rows)

    def hashed(
        self, xp: Operations, features: Sequence[Category | Text], strings: Vector, rows: Rows = None
    ) -> IdColumn:
        """Hashes strings of a feature, or a stack of several features' strings with equal spelling and buckets."""
        first = features[0]
        if isinstance(first, Category) and self._schema.spells_numbers(first.source):
            strings = xp.spell(strings)
        prints = xp.fingerprint(strings)
        if first.name in self._places:
            ids = xp.look_up(prints, self._places[first.name])
        else:
            ids = ids_of_prints(xp, prints, [feature.buckets for feature in features])
        return IdColumn(xp.where(xp.is_empty(strings), MISSING_ID, ids), prints, strings, rows)


def ids_of_prints(xp: Operations, prints: Vector, buckets: Sequence[int | None]) -> Vector:
    """Computes ids from fingerprints of a feature, or of a stack of features, of which all or none have growing ids."""
    counts = [count - 1 for count in buckets if count is not None]
    # 0 means missing; the one value in 2^64 with this fingerprint takes the next id.
    return xp.bucket(prints, counts) if counts else xp.grown(prints)


def cross_ids(xp: Operations, feature: Cross, parts: Sequence[IdColumn]) -> IdColumn:
    """Computes the ids of a cross from the ids of its parts, of which at most one is multivalent."""
    rows = next((part.rows for part in parts if part.rows is not None), None)
    if rows is None:
        state = xp.mix([part.prints for part in parts])
        missing = xp.all_zero([part.ids for part in parts])
        return IdColumn(xp.where(missing, MISSING_ID, ids_of_prints(xp, state, [feature.buckets])), state)
    state = xp.mix([xp.spread(part.prints, rows) if part.rows is None else part.prints for part in parts])
    return IdColumn(ids_of_prints(xp, state, [feature.buckets]), state, rows=rows)


def pair_ids(xp: Operations, left: Vector, right: Vector) -> Vector:
    """Computes growing ids from pairs of unsigned ids, like a cross whose parts have only their ids."""
    return xp.where(xp.all_zero([left, right]), MISSING_ID, xp.grown(xp.mix([left, right])))


def derived_column(xp: Operations, rule: Derived, values: Vector) -> Vector:
    """Computes a derived column: integers from times, strings from strings; a copy is the values themselves."""
    if rule.of_time:
        return xp.periods(values, *rule.periods)
    if rule.rule is not None:
        try:
            return xp.apply(xp.spell(values), rule.rule)
        except InputError as error:
            raise InputError(f"column {rule.source}: {error}") from None
    if rule.prefix is not None:
        return xp.prefix(xp.spell(values), rule.prefix)
    return xp.cast(values, rule.cast) if rule.cast in CASTS else values


def apply_rule(rule: ColumnRule, text: str) -> str:
    """Applies a rule of another package to a text. Raises InputError if it fails or its result is not text."""
    try:
        new = rule.of_text(text) if text else ""
        fault = "" if isinstance(new, str) else f"makes {new!r:.80} of {text[:80]!r}; a text is required"
    except (Exception, SystemExit) as error:
        new, fault = "", f"fails for {text[:80]!r}: {type(error).__name__}: {one_line(error)}"
    if fault:
        raise InputError(f"the rule {type(rule).__module__}.{type(rule).__name__} {fault}")
    return new


def number_edges(feature: Number) -> list[float]:
    """Returns the boundaries between a feature's buckets, rounded to float32, ascending."""
    edges = np.asarray(feature.edges(), np.float32)
    # TensorFlow's kernels take subnormal numbers as 0 in some threads and not in others; here they are all 0.
    edges[np.abs(edges) < SMALLEST_NORMAL] = 0
    boundaries: list[float] = edges.tolist()
    return boundaries


def column_of(
    columns: Mapping[str, Vector], feature: Category | Number | VectorFeature | Text, name: str
) -> Vector:
    """Returns the column that a feature reads. Raises InputError if it is absent."""
    if name not in columns:
        names = listed(list(columns), name)
        raise InputError(
            f"feature {feature.name}: its source column {name} is absent; the columns are {names}"
        )
    return columns[name]
