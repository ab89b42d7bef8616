"""Operations of the rules in the TensorFlow graph, without state: the exported model takes raw strings and numbers."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from ctr.data.derived import ColumnRule
from ctr.data.features import Category, Cross, Number, Text, Vector
from ctr.data.ids.rules import (
    SMALLEST_NORMAL,
    FeatureIds,
    IdColumn,
    apply_rule,
    column_of,
    cross_ids,
    derived_column,
)
from ctr.data.schema import Schema
from ctr.data.spelling import CASTS, WHOLE, WHOLE_SPELLED, Cast
from ctr.data.value_arrays import NAN_BITS
from ctr.io.errors import InputError

Tensors: TypeAlias = tf.Tensor | tf.RaggedTensor

_NOT_A_WORD = r"[^\p{L}\p{M}\p{N}]+"
# Lower-casing follows the process's locale for Turkish, Azeri and Lithuanian. With ASCII lower-cased
# first, these letters are the ones that would still come out differently under another LANG.
_LOCALE_LETTERS = {"İ": "i̇", "Ì": "ì", "Í": "í", "Ĩ": "ĩ", "Į": "į"}
# Numbers as ingestion reads them, with the white space that it trims; NaN is missing and need not match.
_SPACE = r"[\t-\r\x1c-\x20\x{85}\p{Z}]*"
_NUMBER = rf"{_SPACE}([+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))){_SPACE}"


_PROBES = (
    "",
    "a",
    "A b",
    " x ",
    "0",
    "12",
    "12.50",
    "-3",
    "ä",
    "Straße 7",
    "日本",
    "a/b?c=d&e",
    "A.B-C_d",
    "x" * 300,
)


def transform_tensors(schema: Schema, raw: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Computes the ids of all features of N rows, in pure graph operations without state.

    Args:
        raw: one tensor for each of ``schema.inputs``: for a number, [N] of any numeric dtype, NaN where missing; for a
            text, [N] strings (or integers, read as decimal text), empty where missing; if a multivalent category
            reads it, also a RaggedTensor [N, None] of these; for the time, [N] int64 microseconds since 1970-01-01 UTC,
            negative where missing.

    Returns:
        [N] for each single-valued feature, RaggedTensor [N, None] for each multivalent one: int32, or int64 if the
        feature's ids grow.
    """
    texts = (name for name, kind in schema.inputs.items() if kind == "text" and name in raw)
    raw = {**raw, **{name: _as_text(raw[name]) for name in texts}}
    operations, ids = sys.modules[__name__], FeatureIds(schema)
    columns: dict[str, Tensors] = {}
    alike: dict[tuple[bool, bool], list[Category]] = {}
    for feature in schema.features:
        if not isinstance(feature, Cross) and feature.source not in columns:
            columns[feature.source] = _source(schema, feature, raw)
        if isinstance(feature, Category) and not feature.multivalent and feature.vocabulary is None:
            key = schema.spells_numbers(feature.source), feature.buckets is None
            alike.setdefault(key, []).append(feature)
    results: dict[str, IdColumn] = {}
    for features in alike.values():
        # In few operations, as a served model gets few rows of many features.
        together = ids.hashed(
            operations, features, tf.stack([columns[feature.source] for feature in features])
        )
        parts = (tf.unstack(vector, num=len(features)) for vector in (together.ids, together.prints))
        results |= zip((feature.name for feature in features), map(IdColumn, *parts), strict=True)
    for feature in schema.features:
        if isinstance(feature, Cross):
            results[feature.name] = cross_ids(operations, feature, [results[part] for part in feature.of])
        elif feature.name not in results:
            results[feature.name] = ids.of_values(operations, feature, columns[feature.source])
    return {
        name: result.ids if result.rows is None else result.rows.with_values(result.ids)
        for name, result in results.items()
    }


def _source(
    schema: Schema, feature: Category | Number | Vector | Text, raw: Mapping[str, Tensors]
) -> Tensors:
    """Returns the column that a feature reads, derived if it is not a column of the request."""
    rule = schema.derive.get(feature.source)
    values = column_of(raw, feature, feature.source if rule is None else rule.column)
    if rule is None:
        return values
    derived = derived_column(sys.modules[__name__], rule, values)
    if not rule.of_time:
        return derived
    missing = tf.cast(values, tf.int64) < 0
    if any(isinstance(other, Number) and other.source == feature.source for other in schema.features):
        return where(missing, np.nan, numbers(derived))
    return where(missing, "", tf.strings.as_string(derived))


def check_rules(schema: Schema) -> None:
    """Raises InputError if a plug-in rule transforms one of its probes differently in the graph and at ingestion."""
    for name, derived in schema.derive.items():
        if derived.rule is not None:
            probes = (*_PROBES, *derived.rule.probes)
            texts = apply(tf.constant(probes), derived.rule).numpy()
            for probe, text in zip(probes, texts, strict=True):
                expected = apply_rule(derived.rule, probe)
                if text != expected.encode():
                    raise InputError(
                        f"derive.{name}: the plug-in {next(iter(derived.plugin))} makes {expected!r} of {probe!r} at "
                        f"ingestion and {text.decode(errors='replace')!r} in the exported graph"
                    )


def _as_text(values: Tensors) -> Tensors:
    return values if values.dtype == tf.string else tf.ragged.map_flat_values(tf.strings.as_string, values)


def numbers(values: tf.Tensor) -> tf.Tensor:
    if values.dtype != tf.string:
        return tf.cast(values, tf.float32)
    plain = tf.strings.regex_replace(values, f"^{_NUMBER}$", r"\1", replace_global=False)
    texts = tf.where(tf.strings.regex_full_match(values, _NUMBER), plain, "nan")
    # Booleans become 1 and 0, as in a column of them.
    texts = tf.where(tf.equal(values, "true"), "1", tf.where(tf.equal(values, "false"), "0", texts))
    # Via float64, as at ingestion, so that both round alike.
    return tf.cast(tf.strings.to_number(texts, tf.float64), tf.float32)


def spell(strings: tf.Tensor) -> tf.Tensor:
    # Replacing takes thirty times as long as hashing. One search through all of the strings mostly finds that none has
    # to be replaced; then the part that is replaced is empty, which needs no control flow in the exported graph.
    suspected = tf.strings.regex_full_match(tf.strings.reduce_join(strings), r"\C*\.0\C*")
    flat = tf.reshape(strings, [-1])
    end = tf.size(flat) * tf.cast(suspected, tf.int32)
    replaced = tf.strings.regex_replace(flat[:end], WHOLE, WHOLE_SPELLED, replace_global=False)
    return tf.reshape(tf.concat([replaced, flat[end:]], axis=0), tf.shape(strings))


def prefix(strings: tf.Tensor, length: int) -> tf.Tensor:
    return tf.strings.substr(strings, 0, length, unit="UTF8_CHAR")


def cast(strings: tf.Tensor, cast: Cast) -> tf.Tensor:
    pattern, spelled = CASTS[cast]
    fits = tf.strings.regex_full_match(strings, pattern)
    return tf.where(fits, tf.strings.regex_replace(strings, pattern, spelled, replace_global=False), "")


def apply(strings: tf.Tensor, rule: ColumnRule) -> tf.Tensor:
    return tf.where(tf.equal(strings, ""), "", rule.of_tensor(_valid(strings)))


def _valid(strings: tf.Tensor) -> tf.Tensor:
    """Replaces strings that are not UTF-8 with empty ones."""
    # Surrogates are no text in UTF-8, though RE2 reads them.
    return tf.where(tf.strings.regex_full_match(strings, r"(?s)[^\x{D800}-\x{DFFF}]*"), strings, "")


def periods(times: tf.Tensor, length: int, shift: int, count: int) -> tf.Tensor:
    numbers = tf.cast(times, tf.int64) // length + shift
    return numbers % count if count else numbers


def split(strings: Tensors, separator: str) -> tuple[tf.Tensor, tf.RaggedTensor]:
    """Splits strings at a separator; returns a RaggedTensor unchanged."""
    items = strings if isinstance(strings, tf.RaggedTensor) else tf.strings.split(strings, separator)
    return items.values, items


def strip(strings: tf.Tensor, characters: str) -> tf.Tensor:
    some = f"[{re.escape(characters)}]+"
    return tf.strings.regex_replace(strings, rf"\A{some}|{some}\z", "")


def keep(
    strings: tf.Tensor, rows: tf.RaggedTensor, most: int, which: str
) -> tuple[tf.Tensor, tf.RaggedTensor]:
    items = rows.with_values(strings)
    items = tf.ragged.boolean_mask(items, items.with_values(tf.not_equal(strings, "")))
    items = items[:, :most] if which == "first" else items[:, -most:]
    return items.values, items


def lower_case(strings: tf.Tensor) -> tf.Tensor:
    """Converts to lower case by Unicode's rules, independent of the process's locale."""
    strings = tf.strings.lower(strings)
    for letter, lower in _LOCALE_LETTERS.items():
        strings = tf.strings.regex_replace(strings, letter, lower)
    return tf.strings.lower(strings, encoding="utf-8")


def cut_words(strings: tf.Tensor) -> tf.RaggedTensor:
    """Cuts strings into runs of letters, marks and digits, lower-cased."""
    # Before lower-casing, which would end a string at its first NUL.
    return tf.strings.split(lower_case(tf.strings.regex_replace(strings, _NOT_A_WORD, " ")))


def ngrams(
    strings: tf.Tensor, words: Sequence[int], subwords: Sequence[int], most: int
) -> tuple[tf.Tensor, tf.RaggedTensor]:
    tokens = cut_words(strings)
    grams = [tf.strings.ngrams(tokens, size, separator=" ") for size in words]
    if subwords:
        marked = tf.strings.join(["<", tokens.values, ">"])
        letters = tf.strings.unicode_split(marked, "UTF-8", errors="replace")
        for size in subwords:
            of_words = tokens.with_values(tf.strings.ngrams(letters, size, separator=""))
            grams.append(of_words.merge_dims(1, 2))
    joined = tf.concat(grams, axis=1)[:, :most]
    return joined.values, joined


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    flat = tf.fingerprint(tf.reshape(strings, [-1]), method="farmhash64")
    return tf.reshape(tf.bitcast(flat, tf.uint64), tf.shape(strings))


def bucket(prints: tf.Tensor, counts: Sequence[int]) -> tf.Tensor:
    # In a stack of several features, each has a count.
    divisors = tf.constant(counts, tf.uint64, shape=[len(counts)] + [1] * (prints.shape.rank - 1))
    return 1 + tf.cast(tf.math.floormod(prints, divisors), tf.int32)


def grown(prints: tf.Tensor) -> tf.Tensor:
    ids = tf.bitcast(prints, tf.int64)
    return tf.where(tf.equal(ids, 0), tf.ones_like(ids), ids)


def look_up(prints: tf.Tensor, places: Mapping[int, int]) -> tf.Tensor:
    # Searches the sorted fingerprints: a lookup table would be state that the exported model must carry.
    keys = np.array(sorted(places), np.uint64)
    ids = np.array([places[key] for key in keys.tolist()], np.int32)
    # searchsorted has no unsigned kernel; flipping the top bit keeps the order in int64.
    flip = np.uint64(1 << 63)
    sought = tf.bitcast(tf.bitwise.bitwise_xor(prints, flip), tf.int64)
    index = tf.minimum(tf.searchsorted(tf.constant((keys ^ flip).view(np.int64)), sought), len(keys) - 1)
    matches = tf.equal(tf.gather(tf.constant(keys), index), prints)
    return tf.where(matches, tf.gather(tf.constant(ids), index), len(keys) + 1)


def rank(numbers: tf.Tensor, edges: Sequence[float]) -> tf.Tensor:
    numbers = tf.where(tf.abs(numbers) < SMALLEST_NORMAL, tf.zeros_like(numbers), numbers)
    return 1 + tf.searchsorted(tf.constant(edges, tf.float32), numbers, side="right")


def bits(numbers: tf.Tensor) -> tf.Tensor:
    plain = tf.where(tf.math.is_nan(numbers), tf.constant(np.nan, tf.float32), numbers)
    return tf.bitwise.bitwise_xor(tf.bitcast(plain, tf.int32), NAN_BITS)


def numbers_of_bits(bits: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.bitwise.bitwise_xor(tf.cast(bits, tf.int32), NAN_BITS), tf.float32)


def whole(bits: tf.Tensor, rows: tf.RaggedTensor, size: int) -> tuple[tf.Tensor, tf.RaggedTensor]:
    items, numbers = rows.with_values(bits), row_numbers(rows)
    finite = tf.cast(tf.math.is_finite(numbers_of_bits(bits)), tf.int32)
    count = rows.nrows(tf.int32)
    finite_counts = tf.math.unsorted_segment_sum(finite, numbers, count)
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(finite), numbers, count)
    valid = tf.equal(finite_counts, size) & tf.equal(lengths, size)
    items = tf.ragged.boolean_mask(items, items.with_values(tf.gather(valid, numbers)))
    return items.values, items


def mix(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    half = tf.constant(32, tf.uint64)
    parts = [tf.cast(part, tf.uint64) for part in parts]
    state = tf.ones_like(parts[0])
    for part in parts:
        state = tf.bitwise.bitwise_xor(state * tf.constant(0x9E3779B97F4A7C15, tf.uint64), part)
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, half))
        state *= tf.constant(0xD6E8FEB86659FD93, tf.uint64)
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, half))
    return state


def row_numbers(lists: tf.RaggedTensor) -> tf.Tensor:
    """Returns the row number of each value, [V] int32, with operations that TensorFlow Lite and ONNX also have."""
    count = tf.shape(lists.values)[0]
    ends = tf.minimum(tf.cast(lists.row_splits[1:], tf.int32), count)
    return tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(ends), ends, count + 1))[:-1]


def spread(vector: tf.Tensor, rows: tf.RaggedTensor) -> tf.Tensor:
    return tf.gather(vector, row_numbers(rows))


def is_empty(strings: tf.Tensor) -> tf.Tensor:
    return tf.equal(strings, "")


def is_nan(numbers: tf.Tensor) -> tf.Tensor:
    return tf.math.is_nan(numbers)


def all_zero(ids: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.equal(column, 0) for column in ids], axis=0)


def where(condition: tf.Tensor, constant: object, values: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, tf.constant(constant, values.dtype), values)
