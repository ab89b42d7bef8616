"""The operations that make ids of single values, all of them in the TensorFlow graph and without state.

``transform.py`` runs them on every row inside the exported model, and on distinct values in ingestion.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.data.schema import MISSING_ID, Category, Cross, Number, Text

_NOT_A_WORD = r"[^\p{L}\p{M}\p{N}]+"
# Lower-casing follows the process's locale for Turkish, Azeri and Lithuanian. With ASCII lower-cased
# first, these letters are the ones that would still come out differently under another LANG.
_LOCALE_LETTERS = {"İ": "i̇", "Ì": "ì", "Í": "í", "Ĩ": "ĩ", "Į": "į"}
# TensorFlow's kernels take subnormal numbers as 0 in some threads and not in others; here they are all 0.
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def fingerprints(strings: tf.Tensor) -> tf.Tensor:
    """[M] strings -> [M] uint64, FarmHash Fingerprint64."""
    return tf.bitcast(tf.fingerprint(strings, method="farmhash64"), tf.uint64)


def category_ids(feature: Category | Text, strings: tf.Tensor) -> tf.Tensor:
    """[M] strings -> [M] int32 ids; the empty string is missing."""
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


def number_ids(feature: Number, values: tf.Tensor) -> tf.Tensor:
    """[M] float32 -> [M] int32 ids; NaN is missing."""
    edges = np.asarray(feature.edges(), np.float32)
    edges[np.abs(edges) < _SMALLEST_NORMAL] = 0
    values = tf.where(tf.abs(values) < _SMALLEST_NORMAL, tf.zeros_like(values), values)
    ids = 1 + tf.searchsorted(tf.constant(edges), values, side="right")
    return tf.where(tf.math.is_nan(values), MISSING_ID, ids)


def keep_values(feature: Category, items: tf.RaggedTensor, present: tf.Tensor) -> tf.RaggedTensor:
    """Drops the items that are not ``present`` (bool, one per flat item), then those beyond max_values."""
    items = tf.ragged.boolean_mask(items, items.with_values(present))
    return items[:, : feature.max_values] if feature.keep == "first" else items[:, -feature.max_values :]


def row_numbers(lists: tf.RaggedTensor) -> tf.Tensor:
    """[V] int32: the row of each value, which is the number of rows that end before it or where it stands.

    Fewer operations than ``value_rowids``, of which a server waits for each, and only such as TensorFlow Lite and ONNX
    have, unlike a search among the ends.
    """
    count = tf.shape(lists.values)[0]
    ends = tf.minimum(tf.cast(lists.row_splits[1:], tf.int32), count)
    return tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(ends), ends, count + 1))[:-1]


def lower_case(strings: tf.Tensor) -> tf.Tensor:
    """Lower case by Unicode's rules, whatever the process's locale is."""
    strings = tf.strings.lower(strings)
    for letter, lower in _LOCALE_LETTERS.items():
        strings = tf.strings.regex_replace(strings, letter, lower)
    return tf.strings.lower(strings, encoding="utf-8")


def text_tokens(feature: Text, text: tf.Tensor) -> tf.RaggedTensor:
    """[M] strings -> [M, None] strings: word n-grams, then sub-word n-grams, in the order of the sizes.

    Words are runs of letters (with their combining marks) and digits. The cut comes before the
    lower-casing, which would end a string at its first NUL.
    """
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
    """[M] uint64 fingerprints of each part -> [M] int32 ids.

    ``h = mix((h * 0x9E3779B97F4A7C15) ^ part)`` modulo 2^64 for one part after the other, h = 1 at the
    start; ``mix`` is the finaliser ``x ^= x >> 32; x *= 0xD6E8FEB86659FD93; x ^= x >> 32``.
    """
    half = tf.constant(32, tf.uint64)
    state = tf.ones_like(parts[0])
    for part in parts:
        state = tf.bitwise.bitwise_xor(state * tf.constant(0x9E3779B97F4A7C15, tf.uint64), part)
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, half))
        state *= tf.constant(0xD6E8FEB86659FD93, tf.uint64)
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, half))
    ids = 1 + tf.cast(tf.math.floormod(state, tf.constant(feature.buckets - 1, tf.uint64)), tf.int32)
    return tf.where(all_missing, MISSING_ID, ids)
