"""Operations that make ids of single values, all of them in the TensorFlow graph and without state."""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.data.derived import Derived
from ctr.data.schema import MISSING_ID, Category, Cross, Number, Schema, Text
from ctr.data.spelling import CASTS, WHOLE, WHOLE_SPELLED, float_text, spell
from ctr.io.errors import InputError
from ctr.io.words import listed

RawValue = bool | int | float | str | None

_NOT_A_WORD = r"[^\p{L}\p{M}\p{N}]+"
# Lower-casing follows the process's locale for Turkish, Azeri and Lithuanian. With ASCII lower-cased
# first, these letters are the ones that would still come out differently under another LANG.
_LOCALE_LETTERS = {"İ": "i̇", "Ì": "ì", "Í": "í", "Ĩ": "ĩ", "Į": "į"}
# TensorFlow's kernels take subnormal numbers as 0 in some threads and not in others; here they are all 0.
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_SHOWN = 20
# What ingestion reads as a number, within what it trims as white space; NaN is missing and need not match.
_SPACE = r"[\t-\r\x1c-\x20\x{85}\p{Z}]*"
_NUMBER = rf"{_SPACE}([+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))){_SPACE}"


def fingerprints(strings: tf.Tensor) -> tf.Tensor:
    """Hashes [M] strings to [M] uint64: FarmHash Fingerprint64."""
    return tf.bitcast(tf.fingerprint(strings, method="farmhash64"), tf.uint64)


def spell_numbers(strings: tf.Tensor) -> tf.Tensor:
    """Spells strings of any shape as a category does (``ctr.data.spelling``)."""
    # Replacing takes thirty times as long as hashing. One search through all of the strings mostly finds that none has
    # to be replaced; then the part that is replaced is empty, which needs no control flow in the exported graph.
    suspected = tf.strings.regex_full_match(tf.strings.reduce_join(strings), r"\C*\.0\C*")
    flat = tf.reshape(strings, [-1])
    end = tf.size(flat) * tf.cast(suspected, tf.int32)
    replaced = tf.strings.regex_replace(flat[:end], WHOLE, WHOLE_SPELLED, replace_global=False)
    return tf.reshape(tf.concat([replaced, flat[end:]], axis=0), tf.shape(strings))


def text_of(values: tf.Tensor) -> tf.Tensor:
    """Converts [M] strings or integers to [M] strings, integers as decimal text."""
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def number_of(values: tf.Tensor) -> tf.Tensor:
    """Converts [M] of any dtype to [M] float32; of strings NaN where they are no number."""
    if values.dtype != tf.string:
        return tf.cast(values, tf.float32)
    plain = tf.strings.regex_replace(values, f"^{_NUMBER}$", r"\1", replace_global=False)
    texts = tf.where(tf.strings.regex_full_match(values, _NUMBER), plain, "nan")
    # As a column of truth values becomes numbers.
    texts = tf.where(tf.equal(values, "true"), "1", tf.where(tf.equal(values, "false"), "0", texts))
    # By way of float64, as ingestion does, so that both round alike.
    return tf.cast(tf.strings.to_number(texts, tf.float64), tf.float32)


def derived_values(rule: Derived, values: tf.Tensor, as_number: bool) -> tf.Tensor:
    """Makes a derived column of times, missing if negative, or of values: float32, NaN where missing, or strings."""
    if rule.of_time:
        length, shift, count = rule.periods
        times = tf.cast(values, tf.int64)
        periods = times // length + shift
        periods = periods % count if count else periods
        if as_number:
            return tf.where(times < 0, np.float32(np.nan), tf.cast(periods, tf.float32))
        return tf.where(times < 0, "", tf.strings.as_string(periods))
    if rule.is_copy:
        return values
    texts = text_of(values)
    if rule.prefix is not None:
        texts = tf.strings.substr(spell_numbers(texts), 0, rule.prefix, unit="UTF8_CHAR")
    elif rule.cast in CASTS:
        pattern, spelled = CASTS[rule.cast]
        fits = tf.strings.regex_full_match(texts, pattern)
        texts = tf.where(fits, tf.strings.regex_replace(texts, pattern, spelled, replace_global=False), "")
    return number_of(texts) if as_number else texts


def category_ids(feature: Category | Text, strings: tf.Tensor) -> tf.Tensor:
    """Makes ids of [M] strings, int32, or int64 where they grow; the empty string is missing."""
    if feature.buckets is None:
        return growing_ids(fingerprints(strings), tf.equal(strings, ""))
    vocabulary = feature.vocabulary if isinstance(feature, Category) else None
    if vocabulary:
        # By search among fingerprints: a lookup table would be state that the exported model must carry.
        with tf.init_scope():
            known = fingerprints(tf.constant(vocabulary)).numpy()
        order = np.argsort(known)
        wanted = fingerprints(strings)
        # searchsorted has no unsigned kernel; flipping the top bit keeps the order in int64.
        flip = np.uint64(1 << 63)
        place = tf.searchsorted(
            tf.constant((known[order] ^ flip).view(np.int64)),
            tf.bitcast(tf.bitwise.bitwise_xor(wanted, flip), tf.int64),
        )
        place = tf.minimum(place, len(vocabulary) - 1)
        found = tf.equal(tf.gather(tf.constant(known[order]), place), wanted)
        ids = tf.where(found, tf.gather(tf.constant(order.astype(np.int32) + 1), place), len(vocabulary) + 1)
    else:
        ids = 1 + tf.cast(tf.strings.to_hash_bucket_fast(strings, feature.buckets - 1), tf.int32)
    return tf.where(tf.equal(strings, ""), MISSING_ID, ids)


def growing_ids(prints: tf.Tensor, missing: tf.Tensor) -> tf.Tensor:
    """Makes ids that grow, int64, of fingerprints (uint64) and of whether there is no value (bool)."""
    ids = tf.bitcast(prints, tf.int64)
    # 0 says missing; the one value in 2^64 with this fingerprint takes the next one's.
    return tf.where(missing, tf.zeros_like(ids), tf.where(tf.equal(ids, 0), tf.ones_like(ids), ids))


def number_ids(feature: Number, values: tf.Tensor) -> tf.Tensor:
    """Makes ids, [M] int32, of float32; NaN is missing."""
    edges = np.asarray(feature.edges(), np.float32)
    edges[np.abs(edges) < _SMALLEST_NORMAL] = 0
    values = tf.where(tf.abs(values) < _SMALLEST_NORMAL, tf.zeros_like(values), values)
    ids = 1 + tf.searchsorted(tf.constant(edges), values, side="right")
    return tf.where(tf.math.is_nan(values), MISSING_ID, ids)


def strip_values(feature: Category, values: tf.Tensor) -> tf.Tensor:
    """Takes off the characters that a feature strips at both ends of strings."""
    if not feature.strip:
        return values
    some = f"[{re.escape(feature.strip)}]+"
    return tf.strings.regex_replace(values, rf"\A{some}|{some}\z", "")


def keep_values(feature: Category, items: tf.RaggedTensor, present: tf.Tensor) -> tf.RaggedTensor:
    """Drops the items that are not ``present`` (bool, one per flat item), then those beyond max_values."""
    items = tf.ragged.boolean_mask(items, items.with_values(present))
    return items[:, : feature.max_values] if feature.keep == "first" else items[:, -feature.max_values :]


def row_numbers(lists: tf.RaggedTensor) -> tf.Tensor:
    """Numbers the row of each value, [V] int32, by few operations, which TensorFlow Lite and ONNX have, too."""
    count = tf.shape(lists.values)[0]
    ends = tf.minimum(tf.cast(lists.row_splits[1:], tf.int32), count)
    return tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(ends), ends, count + 1))[:-1]


def lower_case(strings: tf.Tensor) -> tf.Tensor:
    """Lowers case by Unicode's rules, whatever the process's locale is."""
    strings = tf.strings.lower(strings)
    for letter, lower in _LOCALE_LETTERS.items():
        strings = tf.strings.regex_replace(strings, letter, lower)
    return tf.strings.lower(strings, encoding="utf-8")


def text_tokens(feature: Text, text: tf.Tensor) -> tf.RaggedTensor:
    """Cuts [M] strings into [M, None] n-grams; before lower-casing, which would end a string at its first NUL."""
    words = tf.strings.split(lower_case(tf.strings.regex_replace(text, _NOT_A_WORD, " ")))
    tokens = [tf.strings.ngrams(words, size, separator=" ") for size in feature.words]
    if feature.subwords:
        marked = tf.strings.join(["<", words.values, ">"])
        letters = tf.strings.unicode_split(marked, "UTF-8", errors="replace")
        for size in feature.subwords:
            grams = words.with_values(tf.strings.ngrams(letters, size, separator=""))
            tokens.append(grams.merge_dims(1, 2))
    return tf.concat(tokens, axis=1)[:, : feature.max_values]


def cross_ids(feature: Cross, parts: Sequence[tf.Tensor], all_missing: tf.Tensor) -> tf.Tensor:
    """Makes [M] ids, int32, or int64 where they grow, of the uint64 fingerprints of each part.

    ``h = mix((h * 0x9E3779B97F4A7C15) ^ part)`` modulo 2^64 for each part, h = 1 at the start; ``mix`` is the
    finaliser ``x ^= x >> 32; x *= 0xD6E8FEB86659FD93; x ^= x >> 32``.
    """
    half = tf.constant(32, tf.uint64)
    state = tf.ones_like(parts[0])
    for part in parts:
        state = tf.bitwise.bitwise_xor(state * tf.constant(0x9E3779B97F4A7C15, tf.uint64), part)
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, half))
        state *= tf.constant(0xD6E8FEB86659FD93, tf.uint64)
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, half))
    if feature.buckets is None:
        return growing_ids(state, all_missing)
    ids = 1 + tf.cast(tf.math.floormod(state, tf.constant(feature.buckets - 1, tf.uint64)), tf.int32)
    return tf.where(all_missing, MISSING_ID, ids)


def feature_ids(schema: Schema, name: str, values: Sequence[RawValue]) -> np.ndarray:
    """Makes the ids of raw values of a single-valued category or number, as a configuration names them.

    Numbers stand for the bucket that they fall into; null or the empty text is missing. Raises InputError: there is no
    such feature or value, or a value has the id of an earlier one.
    """
    feature = schema.by_name.get(name)
    if feature is None:
        raise InputError(f"{name} is not a feature of the log; allowed: {listed(list(schema.by_name), name)}")
    if isinstance(feature, Text | Cross) or name not in schema.single_valued:
        kind = feature.kind if isinstance(feature, Text | Cross) else f"multivalent {feature.kind}"
        raise InputError(
            f"feature {name} is a {kind}; only single-valued categories and numbers have values to name"
        )
    if isinstance(feature, Category):
        ids = _ids_of_categories(feature, values, schema.spells_numbers(feature.source))
    else:
        ids = _ids_of_numbers(feature, values)
    seen: dict[int, object] = {}
    for value, number in zip(values, ids.tolist(), strict=True):
        if number in seen:
            raise InputError(
                f"feature {name}: {value!r} and {seen[number]!r} have the same id {number}; name one of them"
            )
        seen[number] = value
    return ids


def _ids_of_categories(feature: Category, values: Sequence[RawValue], spelled: bool) -> np.ndarray:
    texts = [spell(_text(value)) if spelled else _text(value) for value in values]
    if feature.vocabulary is not None:
        unknown = [text for text in texts if text and text not in feature.vocabulary]
        if unknown:
            allowed = [*feature.vocabulary[:_SHOWN], *(["..."] if len(feature.vocabulary) > _SHOWN else [])]
            raise InputError(
                f"feature {feature.name}: {unknown[0]!r} is not in its vocabulary; allowed: {', '.join(allowed)}"
            )
    return category_ids(feature, tf.constant(texts, tf.string)).numpy()


def _text(value: RawValue) -> str:
    if isinstance(value, float):
        return float_text(value)
    # As Arrow writes truth values.
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _ids_of_numbers(feature: Number, values: Sequence[RawValue]) -> np.ndarray:
    numbers = []
    for value in values:
        if isinstance(value, str) and value:
            raise InputError(f"feature {feature.name}: {value!r} is not a number")
        numbers.append(float("nan") if value is None or value == "" else float(value))
    return number_ids(feature, tf.constant(numbers, tf.float32)).numpy().astype(np.int32)
