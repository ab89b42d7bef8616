"""Operations of the id rules on Arrow arrays of strings and NumPy arrays of numbers, and conversion of values to text.

Strings are large_string without nulls. Items of lists may be dictionary-encoded, and then only the distinct values are
converted; derived columns may also be string, and keep nulls. TensorFlow is loaded only for text, because it cuts and
hashes n-grams faster.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.derived import ColumnRule
from ctr.data.ids.rules import SMALLEST_NORMAL, apply_rule
from ctr.data.schema import MISSING_ID
from ctr.data.spelling import CASTS, WHOLE, WHOLE_SPELLED, Cast, float_text
from ctr.data.value_arrays import ids_of_numbers, numbers_of_ids, places_of
from ctr.io.errors import InputError
from ctr.io.farmhash import fingerprints_of


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type holds UTF-8 text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def spell_array(strings: pa.Array) -> pa.Array:
    """Applies the spelling of ``ctr.data.spelling`` to Arrow strings: 12.0 becomes 12; null stays null."""
    content = strings.buffers()[2]
    # A quick test excludes most columns. A search for one byte is many times faster than for two.
    if content is None or b"." not in (data := content.to_pybytes()) or b".0" not in data:
        return strings
    return pc.replace_substring_regex(strings, WHOLE, WHOLE_SPELLED)


def text_array(values: pa.Array) -> pa.Array:
    """Converts strings, integers, decimals, booleans or floats of an Arrow array to text; NaN is null."""
    kind = values.type
    if is_text(kind):
        return values
    if not pa.types.is_floating(kind):
        return values.cast(pa.string())
    encoded = pc.dictionary_encode(values.cast(pa.float32()) if pa.types.is_float16(kind) else values)
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False)
    texts = pa.array([float_text(number) or None for number in distinct], pa.string())
    return texts.take(encoded.indices)


def string_ids(values: pa.Array | pa.ChunkedArray | np.ndarray) -> np.ndarray:
    """Hashes N strings to int64: FarmHash Fingerprint64, its bits read as signed. Raises InputError for other types."""
    array = pa.array(values) if isinstance(values, np.ndarray) else values
    if array.null_count:
        raise InputError(
            f"{array.null_count} of the values to be converted to ids are null; every row requires one"
        )
    if not is_text(array.type):
        raise InputError(f"values of type {array.type} cannot be converted to ids; strings are required")
    array = array.cast(pa.large_string())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return fingerprint(array).view(np.int64)


def _sizes(strings: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offsets of the strings, int64 [N], and their sizes in bytes."""
    if not len(strings):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    offsets = np.frombuffer(strings.buffers()[1], np.int64)[
        strings.offset : strings.offset + len(strings) + 1
    ]
    return offsets[:-1], np.diff(offsets)


def _on_distinct(function: Callable[..., pa.Array], strings: pa.Array, *arguments: object) -> pa.Array:
    if not pa.types.is_dictionary(strings.type):
        return function(strings, *arguments)
    distinct = function(strings.dictionary, *arguments)
    return pa.DictionaryArray.from_arrays(strings.indices, distinct)


def numbers(values: np.ndarray) -> np.ndarray:
    return values


def spell(strings: pa.Array) -> pa.Array:
    return _on_distinct(spell_array, strings)


def prefix(strings: pa.Array, length: int) -> pa.Array:
    return pc.utf8_slice_codeunits(strings, 0, length)


def cast(strings: pa.Array, cast: Cast) -> pa.Array:
    pattern, spelled = CASTS[cast]
    fits = pc.match_substring_regex(strings, pattern)
    empty = pa.scalar("", strings.type)
    return pc.if_else(fits, pc.replace_substring_regex(strings, pattern, spelled), empty)


def apply(strings: pa.Array, rule: ColumnRule) -> pa.Array:
    encoded = pc.fill_null(strings, "").dictionary_encode()
    texts = [apply_rule(rule, text) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, strings.type).take(encoded.indices)


def periods(times: np.ndarray, length: int, shift: int, count: int) -> np.ndarray:
    numbers = times // length + shift
    return numbers % count if count else numbers


def split(strings: pa.Array, separator: str) -> tuple[pa.Array, np.ndarray]:
    lists = pc.split_pattern(strings, separator) if separator else pc.split_pattern_regex(strings, r"\s+")
    return lists.flatten().cast(pa.large_string()), pc.list_value_length(lists).to_numpy().astype(np.int32)


def strip(strings: pa.Array, characters: str) -> pa.Array:
    return _on_distinct(pc.ascii_trim, strings, characters)


def keep(strings: pa.Array, rows: np.ndarray, most: int, which: str) -> tuple[pa.Array, np.ndarray]:
    present = ~is_empty(strings)
    lengths = np.bincount(np.repeat(np.arange(len(rows)), rows)[present], minlength=len(rows))
    counts = np.minimum(lengths, most)
    begins = np.cumsum(lengths) - lengths + (lengths - counts if which == "last" else 0)
    places = np.flatnonzero(present)
    if (counts < lengths).any():
        places = places[places_of(begins, counts)]
    return strings.take(pa.array(places)), counts.astype(np.int32)


def ngrams(
    strings: pa.Array, words: Sequence[int], subwords: Sequence[int], most: int
) -> tuple[Any, np.ndarray]:
    import tensorflow as tf

    from ctr.data.ids import graph

    content = strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    texts = tf.constant(content, tf.string, shape=(len(content),))
    grams, rows = graph.ngrams(texts, words, subwords, most)
    return grams, rows.row_lengths().numpy().astype(np.int32)


def fingerprint(strings: Any) -> np.ndarray:
    if not isinstance(strings, pa.Array):
        from ctr.data.ids import graph

        prints: np.ndarray = graph.fingerprint(strings).numpy()
        return prints
    if pa.types.is_dictionary(strings.type):
        gathered: np.ndarray = fingerprint(strings.dictionary)[strings.indices.to_numpy()]
        return gathered
    begins, sizes = _sizes(strings)
    content = strings.buffers()[2]
    data = np.frombuffer(b"" if content is None else content, np.uint8)
    return fingerprints_of(data, begins, sizes)


def bucket(prints: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    (count,) = counts
    return 1 + (prints % np.uint64(count)).astype(np.int32)


def grown(prints: np.ndarray) -> np.ndarray:
    ids = prints.view(np.int64).copy()
    ids[ids == 0] = 1
    return ids


def look_up(prints: np.ndarray, places: Mapping[int, int]) -> np.ndarray:
    keys = np.array(sorted(places), np.uint64)
    ids = np.array([places[key] for key in keys.tolist()], np.int32)
    index = np.minimum(np.searchsorted(keys, prints), len(keys) - 1)
    return np.where(keys[index] == prints, ids[index], len(keys) + 1)


def rank(numbers: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    numbers = np.where(np.abs(numbers) < SMALLEST_NORMAL, np.float32(0), numbers)
    ids = np.searchsorted(np.asarray(edges, np.float32), numbers, side="right").astype(np.int32)
    ids += 1
    return ids


def bits(numbers: np.ndarray) -> np.ndarray:
    return ids_of_numbers(numbers)


def whole(bits: np.ndarray, rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    finite = np.isfinite(numbers_of_ids(bits))
    counts = np.bincount(np.repeat(np.arange(len(rows)), rows)[finite], minlength=len(rows))
    valid = (rows == size) & (counts == size)
    return bits[np.repeat(valid, rows)], np.where(valid, rows, 0).astype(np.int32)


def mix(parts: Sequence[np.ndarray]) -> np.ndarray:
    state = np.ones(len(parts[0]), np.uint64)
    for part in parts:
        state *= np.uint64(0x9E3779B97F4A7C15)
        state ^= part.astype(np.uint64, copy=False)
        state ^= state >> np.uint64(32)
        state *= np.uint64(0xD6E8FEB86659FD93)
        state ^= state >> np.uint64(32)
    return state


def spread(vector: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.repeat(vector, rows)


def is_empty(strings: Any) -> np.ndarray:
    if not isinstance(strings, pa.Array):
        return np.zeros(len(strings), bool)  # no n-gram is
    if pa.types.is_dictionary(strings.type):
        empty: np.ndarray = is_empty(strings.dictionary)[strings.indices.to_numpy()]
        return empty
    return _sizes(strings)[1] == 0


def is_nan(numbers: np.ndarray) -> np.ndarray:
    return np.isnan(numbers)


def all_zero(ids: Sequence[np.ndarray]) -> np.ndarray:
    return np.logical_and.reduce([column == MISSING_ID for column in ids])


def where(condition: np.ndarray, constant: Any, values: np.ndarray) -> np.ndarray:
    return np.where(condition, constant, values)
