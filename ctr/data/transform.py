"""Feature ids of raw columns, by operations that exist in the TensorFlow graph.

The exported model takes raw strings and numbers, so what ingestion did must be done again inside the graph. Both ways
therefore run the same functions (feature_ops.py): ``transform_tensors`` on every row, ``transform_table`` on the
distinct values of each column, whose ids are then gathered with NumPy.

Derived columns are there already in ingestion (``ctr.pipelines.rows.raw_columns``), and inside the graph by the rules
of the schema. Categories spell numbers in one way (``ctr.data.spelling``).

Ids. Strings are hashed with FarmHash Fingerprint64 (``tf.strings.to_hash_bucket_fast``): missing is 0, everything else
``1 + fingerprint mod (buckets - 1)``, or, where ids grow, the fingerprint itself, its 64 bits read as signed; a
vocabulary gives ``1..n``, and ``n + 1`` to other values. A number gives 0 when missing, else ``1 + count(edges <= x)``
in float32. A cross mixes the full 64-bit fingerprints of its parts (not their ids, which collide), for numbers their
ids, in the order in which they are named; a missing part counts as a value of its own, and if all are missing the id
is 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from ctr.data.feature_ops import (
    category_ids,
    cross_ids,
    derived_values,
    fingerprints,
    growing_ids,
    keep_values,
    number_ids,
    number_of,
    row_numbers,
    spell_numbers,
    strip_values,
    text_of,
    text_tokens,
)
from ctr.data.kept_values import VALUE_PREFIX
from ctr.data.parquet_files import IDS_COLUMN
from ctr.data.reader import LARGEST_WEIGHT
from ctr.data.row_ids import ids_of_numbers, number_edges
from ctr.data.schema import MISSING_ID, AnyFeature, Category, Cross, Number, Schema, Text, is_multivalent
from ctr.data.shards import pack_ids, shard_schema
from ctr.data.text_arrays import may_spell, text_array
from ctr.io.errors import InputError
from ctr.io.farmhash_arrays import LONGEST, fingerprints_of
from ctr.io.words import listed

Tensors: TypeAlias = tf.Tensor | tf.RaggedTensor
Lists = tuple[np.ndarray, np.ndarray]  # of a multivalent feature: ids, flat, and lengths int32 of each row

_SAMPLED = 1024  # rows of a number that show whether its values recur


def transform_tensors(schema: Schema, raw: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Makes the ids of all features of N rows, in pure graph operations without state.

    Args:
        raw: one tensor for each of ``schema.inputs``: of a number, [N] of any numeric dtype, NaN where missing; of a
            text, [N] strings (or integers, read as decimal text), empty where missing; where a multivalent category
            reads it also a RaggedTensor [N, None] of these; of the time, [N] int64 microseconds since 1970-01-01 UTC,
            negative where missing.

    Returns:
        [N] for each single-valued feature, RaggedTensor [N, None] for each multivalent one: int32, or int64 where a
        feature's ids grow.
    """
    raw = _with_derived(schema, raw)
    ids: dict[str, Tensors] = {}
    prints: dict[str, Tensors] = {}
    hashed: list[Any] = [feature for feature in schema.features if _is_hashed(feature)]
    for spelled in (True, False):
        alike = [feature for feature in hashed if schema.spells_numbers(feature.source) == spelled]
        _hash_together(alike, spelled, raw, ids, prints)
    for feature in schema.features:
        if feature.name in ids:
            continue
        if isinstance(feature, Cross):
            ids[feature.name] = _cross_tensors(feature, ids, prints)
            continue
        value = raw[feature.source]
        if isinstance(feature, Number):
            ids[feature.name] = number_ids(feature, number_of(value))
            prints[feature.name] = tf.cast(ids[feature.name], tf.uint64)
            continue
        strings = _on_values(text_of, value)
        if isinstance(feature, Text):
            strings = text_tokens(feature, strings)
        elif feature.multivalent:
            is_list = isinstance(strings, tf.RaggedTensor)
            items = strings if is_list else tf.strings.split(strings, feature.separator)
            items = items.with_values(strip_values(feature, items.values))
            strings = keep_values(feature, items, tf.not_equal(items.values, ""))
        if isinstance(feature, Category) and schema.spells_numbers(feature.source):
            strings = _on_values(spell_numbers, strings)
        ids[feature.name] = _on_values(partial(category_ids, feature), strings)
        prints[feature.name] = _on_values(fingerprints, strings)
    return ids


def _on_values(function: Callable[[tf.Tensor], tf.Tensor], tensor: Tensors) -> Tensors:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_values(function(tensor.values))
    return function(tensor)


def _with_derived(schema: Schema, raw: Mapping[str, Tensors]) -> dict[str, Tensors]:
    numbers = {feature.source for feature in schema.features if isinstance(feature, Number)}
    columns: dict[str, Tensors] = {}
    for feature in schema.features:
        if isinstance(feature, Cross) or feature.source in columns:
            continue
        name = feature.source
        rule = schema.derive.get(name)
        column = name if rule is None else rule.column
        if column not in raw:
            raise InputError(_absent(feature, list(raw), column))
        columns[name] = raw[column] if rule is None else derived_values(rule, raw[column], name in numbers)
    return columns


def _is_hashed(feature: AnyFeature) -> bool:
    return isinstance(feature, Category) and not feature.multivalent and feature.vocabulary is None


def _hash_together(
    features: Sequence[Any],
    spelled: bool,
    raw: Mapping[str, tf.Tensor],
    ids: dict[str, Tensors],
    prints: dict[str, Tensors],
) -> None:
    """Single-valued hashed categories in a few operations: a model that is served has few rows of many features."""
    if not features:
        return
    strings = tf.stack([text_of(raw[feature.source]) for feature in features])
    strings = spell_numbers(strings) if spelled else strings
    hashed = tf.reshape(fingerprints(tf.reshape(strings, [-1])), tf.shape(strings))
    missing = tf.equal(strings, "")
    for growing in (True, False):
        places = [place for place, one in enumerate(features) if (one.buckets is None) == growing]
        if not places:
            continue
        # Mostly all of them: then nothing is copied.
        are_all = len(places) == len(features)
        values, lacking = (each if are_all else tf.gather(each, places) for each in (hashed, missing))
        if growing:
            numbers = growing_ids(values, lacking)
        else:
            buckets = tf.constant([[features[place].buckets - 1] for place in places], tf.uint64)
            numbers = 1 + tf.cast(tf.math.floormod(values, buckets), tf.int32)
            numbers = tf.where(lacking, MISSING_ID, numbers)
        names = [features[place].name for place in places]
        ids |= zip(names, tf.unstack(numbers, num=len(names)), strict=True)
    names = [feature.name for feature in features]
    prints |= zip(names, tf.unstack(hashed, num=len(names)), strict=True)


def _cross_tensors(feature: Cross, ids: Mapping[str, Tensors], prints: Mapping[str, Tensors]) -> Tensors:
    ragged = next((prints[part] for part in feature.of if isinstance(prints[part], tf.RaggedTensor)), None)
    if ragged is None:
        missing = tf.reduce_all([tf.equal(ids[part], 0) for part in feature.of], axis=0)
        return cross_ids(feature, [prints[part] for part in feature.of], missing)
    rows = row_numbers(ragged)
    part_prints = [prints[part] for part in feature.of]
    parts = [ragged.values if part is ragged else tf.gather(part, rows) for part in part_prints]
    return ragged.with_values(cross_ids(feature, parts, tf.zeros_like(rows, tf.bool)))


@dataclass(frozen=True)
class _Encoded:
    """A source column: of each row (or list item) the number of its distinct value."""

    codes: np.ndarray  # int32 [rows], or [items] of a list column
    texts: pa.Array  # large strings; missing is empty; the empty string may stand twice
    spell: bool  # whether a category may have to spell some in another way
    lengths: np.ndarray | None  # int32 [rows] of a list column

    @cached_property
    def distinct(self) -> tf.Tensor:
        return _strings_tensor(self.texts)

    @cached_property
    def prints(self) -> np.ndarray:
        return fingerprint_array(self.texts)

    @cached_property
    def missing(self) -> np.ndarray:
        return np.diff(_offsets(self.texts)) == 0


def _absent(feature: Category | Number | Text, columns: Sequence[str], column: str) -> str:
    known = listed(columns, column)
    return f"feature {feature.name}: its source column {column} is absent; the columns are {known}"


def _strings_tensor(strings: pa.Array) -> tf.Tensor:
    content = strings.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    return tf.constant(content, tf.string, shape=(len(content),))


def _encode(feature: Category | Text, column: pa.ChunkedArray) -> _Encoded:
    lengths = None
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if not (isinstance(feature, Category) and feature.multivalent):
            raise InputError(
                f"feature {feature.name}: its source column {feature.source} holds lists ({kind}), "
                "which only a multivalent category reads"
            )
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int32)
        column = pc.list_flatten(column)
        kind = column.type
    if pa.types.is_dictionary(kind) and not _has_usable_dictionaries(column):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_dictionary(kind):
        return _of_dictionary(column.unify_dictionaries(), lengths)
    text = _is_text(kind) or pa.types.is_string_view(kind)
    if not (text or _is_number(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"feature {feature.name}: its source column {feature.source} is of type {kind}; a {feature.kind} reads "
            "strings, numbers and booleans: convert the column to strings"
        )
    if pa.types.is_float16(kind):
        # Arrow finds no distinct values among them.
        column = column.cast(pa.float32())
    elif not _is_number(kind):
        column = column.cast(pa.large_string())
    return _of_dictionary(pc.dictionary_encode(column).unify_dictionaries(), lengths)


def _has_usable_dictionaries(column: pa.ChunkedArray) -> bool:
    """Whether its dictionaries hold text and can be joined into one, with a further value for null."""
    # Indices of fewer bits may leave no room for the values of other chunks.
    if not _is_text(column.type.value_type) or column.type.index_type != pa.int32():
        return False
    # Arrow joins no dictionaries with nulls.
    return column.num_chunks <= 1 or not any(chunk.dictionary.null_count for chunk in column.chunks)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _of_dictionary(encoded: pa.ChunkedArray, lengths: np.ndarray | None) -> _Encoded:
    distinct = pa.array([], pa.large_string())
    if encoded.num_chunks:
        distinct = pc.fill_null(text_array(encoded.chunk(0).dictionary), "").cast(pa.large_string())
    missing = len(distinct)  # one more distinct value, empty, stands for null
    codes = [pc.fill_null(chunk.indices, missing).to_numpy() for chunk in encoded.chunks]
    texts = pa.concat_arrays([distinct, pa.array([""], pa.large_string())])
    return _Encoded(np.concatenate([np.zeros(0, np.int32), *codes]), texts, may_spell(distinct), lengths)


def _float_column(feature: Number, column: pa.ChunkedArray) -> np.ndarray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if not (_is_number(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"feature {feature.name}: its source column {feature.source} is of type {kind}; a number is required"
        )
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    return pc.fill_null(column.cast(pa.float32(), safe=False), np.nan).to_numpy()


def _gather_lists(values: np.ndarray, lengths: np.ndarray, codes: np.ndarray) -> Lists:
    """Concatenates the lists number ``codes`` of a list of lists; returns (values, lengths)."""
    begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1]
    chosen = lengths[codes]
    shifts = begins[codes] - (np.cumsum(chosen, dtype=np.int64) - chosen)
    return values[np.arange(int(chosen.sum(dtype=np.int64))) + np.repeat(shifts, chosen)], chosen


@dataclass(frozen=True)
class _Column:
    """A transformed feature: ids [M], fingerprints if a cross asks, lengths if multivalent, and the strings."""

    ids: np.ndarray
    prints: np.ndarray | None
    lengths: np.ndarray | None
    strings: tf.Tensor | pa.Array | None = None
    places: np.ndarray | None = None

    def raw_values(self) -> pa.Array:
        assert self.strings is not None
        distinct = self.strings
        if not isinstance(distinct, pa.Array):
            distinct = pa.array(distinct.numpy(), pa.large_binary()).cast(pa.large_string())
        values = distinct.take(pa.array(self.places))
        if self.lengths is None:
            return values
        offsets = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        return pa.LargeListArray.from_arrays(pa.array(offsets), values)


def _string_column(feature: Category | Text, source: _Encoded, spelled: bool, crossed: bool) -> _Column:
    if _is_hashed(feature) and source.lengths is None and not (spelled and source.spell):
        return _hashed_column(feature, source, crossed)
    lengths, codes, strings = source.lengths, source.codes, source.distinct
    if lengths is not None:
        assert isinstance(feature, Category)
        strings = strip_values(feature, strings)
        items = tf.RaggedTensor.from_row_lengths(codes, lengths, validate=False)
        kept = keep_values(feature, items, tf.not_equal(strings, "").numpy()[codes])
        codes, lengths = kept.values.numpy(), kept.row_lengths().numpy().astype(np.int32)
    elif is_multivalent(feature, {}):
        if isinstance(feature, Text):
            tokens = text_tokens(feature, strings)
        else:
            items = tf.strings.split(strings, feature.separator)
            items = items.with_values(strip_values(feature, items.values))
            tokens = keep_values(feature, items, tf.not_equal(items.values, ""))
        strings = tokens.values
        places = np.arange(strings.shape[0], dtype=np.int32)
        codes, lengths = _gather_lists(places, tokens.row_lengths().numpy().astype(np.int32), codes)
    if spelled and isinstance(feature, Category) and (source.spell or feature.strip):
        strings = spell_numbers(strings)
    prints = fingerprints(strings).numpy()[codes] if crossed else None
    return _Column(category_ids(feature, strings).numpy()[codes], prints, lengths, strings, codes)


def _hashed_column(feature: Category | Text, source: _Encoded, crossed: bool) -> _Column:
    """A single-valued category of which no value is spelled in another way: the ids of ``category_ids``."""
    prints, codes = source.prints, source.codes
    ids: np.ndarray
    if feature.buckets is None:
        ids = prints.view(np.int64).copy()
        ids[ids == 0] = 1
    else:
        ids = 1 + (prints % np.uint64(feature.buckets - 1)).astype(np.int32)
    ids[source.missing] = MISSING_ID
    return _Column(ids[codes], prints[codes] if crossed else None, None, source.texts, codes)


def _number_column(feature: Number, values: np.ndarray) -> _Column:
    """A number, float32 [N]: the ids of ``number_ids``, of each different value once where they recur."""
    edges, some = number_edges(feature), values[:_SAMPLED]
    if len(np.unique(some)) * 2 > len(some):
        ids = ids_of_numbers(edges, values)
    else:
        codes, distinct = pd.factorize(values)
        # The code of what is missing is -1.
        ids = ids_of_numbers(edges, np.append(distinct, np.float32(np.nan)))[codes]
    return _Column(ids, ids.astype(np.uint64), None)


def _cross_column(feature: Cross, columns: Mapping[str, _Column]) -> _Column:
    parts = [columns[part] for part in feature.of]
    lengths = next((part.lengths for part in parts if part.lengths is not None), None)
    missing = np.zeros(1, bool)
    if lengths is None:
        missing = np.logical_and.reduce([part.ids == MISSING_ID for part in parts])
    prints = [
        part.prints if lengths is None or part.lengths is not None else np.repeat(part.prints, lengths)
        for part in parts
        if part.prints is not None
    ]
    return _Column(cross_ids(feature, prints, missing).numpy(), None, lengths)


def transform_table(schema: Schema, table: pa.Table) -> tuple[np.ndarray, dict[str, Lists]]:
    """Makes the ids of all features of a table's N rows, equal to those of ``transform_tensors``.

    Categories and text are made of strings, numbers and booleans (which become text as ``ctr.data.spelling`` says), or
    dictionaries of them; multivalent categories also of lists of these; numbers of any numeric type. Null, NaN and the
    empty string are missing. Returns [N, F], the single-valued ids in the schema's order (C-contiguous), and for each
    multivalent feature its ids (flat) and lengths (int32 [N]). Raises InputError: a source column is absent or of a
    type that its feature cannot read.
    """
    return _packed(schema, _transformed(schema, table), table.num_rows)


def _transformed(schema: Schema, table: pa.Table) -> dict[str, _Column]:
    crossed = {part for feature in schema.features if isinstance(feature, Cross) for part in feature.of}
    encoded: dict[str, _Encoded] = {}
    columns: dict[str, _Column] = {}
    for feature in schema.features:
        if isinstance(feature, Cross):
            columns[feature.name] = _cross_column(feature, columns)
            continue
        if feature.source not in table.column_names:
            raise InputError(_absent(feature, table.column_names, feature.source))
        column = table.column(feature.source)
        if isinstance(feature, Number):
            columns[feature.name] = _number_column(feature, _float_column(feature, column))
        else:
            if feature.source not in encoded:
                encoded[feature.source] = _encode(feature, column)
            source, spelled = encoded[feature.source], schema.spells_numbers(feature.source)
            columns[feature.name] = _string_column(feature, source, spelled, feature.name in crossed)
    return columns


def _packed(schema: Schema, columns: Mapping[str, _Column], rows: int) -> tuple[np.ndarray, dict[str, Lists]]:
    single = [columns[name].ids for name in schema.single_valued]
    kind = schema.id_type
    matrix = np.stack(single, axis=1, dtype=kind) if single else np.zeros((rows, 0), kind)
    lists = {name: (columns[name].ids.astype(kind), columns[name].lengths) for name in schema.multivalent}
    return matrix, lists  # type: ignore[return-value]  # the lengths of a multivalent feature are there


def pack_table(schema: Schema, keys: pa.Table, raw: pa.Table, kept: Sequence[str] = ()) -> pa.Table:
    """Makes rows of a shard of key columns (those of ``shard_schema`` that are not features) and raw source columns.

    Of the features ``kept`` raw values follow in columns of their own (``ctr.data.kept_values.value_columns``). Raises
    InputError: keys absent, null or out of their range (labels are 0 and 1, weights from 0 to ``LARGEST_WEIGHT``); and
    all that ``transform_table`` refuses.
    """
    target = shard_schema(schema)
    transformed = _transformed(schema, raw)
    matrix, lists = _packed(schema, transformed, raw.num_rows)
    columns: list[pa.Array | pa.ChunkedArray] = []
    for field in target:
        if field.name == IDS_COLUMN:
            columns.append(pack_ids(matrix))
        elif (name := field.name) in lists:
            values, lengths = lists[name]
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            if offsets[-1] >= 2**31:
                raise InputError(f"feature {name}: {offsets[-1]} values in one table; at most 2^31 - 1 fit")
            columns.append(pa.ListArray.from_arrays(offsets.astype(np.int32), values, type=field.type))
        else:
            columns.append(_key_column(keys, field))
    packed = pa.table(columns, schema=target)
    for name in kept:
        packed = packed.append_column(VALUE_PREFIX + name, transformed[name].raw_values())
    return packed


def _key_column(keys: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    name = field.name
    if name not in keys.column_names:
        raise InputError(
            f"the key column {name} is absent; the columns are {listed(keys.column_names, name)}"
        )
    column = keys.column(name)
    if column.null_count:
        raise InputError(f"the key column {name} has {column.null_count} nulls; every row requires a value")
    try:
        column = column.cast(field.type)
    except pa.ArrowException as error:
        raise InputError(f"the key column {name} is not {field.type}: {error}") from None
    if name == "label" and not np.isin(column.to_numpy(), (0, 1)).all():
        raise InputError("the key column label holds values other than 0 and 1")
    if name.endswith("weight"):
        weights = column.to_numpy()
        if not ((weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
            raise InputError(f"the key column {name} holds values outside 0 to {LARGEST_WEIGHT:,.0f}")
    return column


def _offsets(strings: pa.Array) -> np.ndarray:
    """Where the texts of a large_string array begin, and where the last one ends: int64 [N + 1]."""
    return np.frombuffer(strings.buffers()[1], np.int64)[strings.offset : strings.offset + len(strings) + 1]


def fingerprint_array(strings: pa.Array) -> np.ndarray:
    """Hashes an Arrow large_string array without nulls: FarmHash Fingerprint64, uint64 [N]."""
    if not len(strings):
        return np.zeros(0, np.uint64)
    offsets, content = _offsets(strings), strings.buffers()[2]
    sizes = np.diff(offsets)
    data = np.frombuffer(b"" if content is None else content, np.uint8)
    long = sizes > LONGEST
    if not long.any():
        return fingerprints_of(data, offsets[:-1], sizes)
    found = np.empty(len(strings), np.uint64)
    short = np.flatnonzero(~long)
    found[short] = fingerprints_of(data, offsets[short], sizes[short])
    others = np.flatnonzero(long)
    found[others] = fingerprints(_strings_tensor(strings.take(pa.array(others)))).numpy()
    return found
