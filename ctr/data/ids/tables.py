"""Ids of tables' columns: computed for the distinct values of each column, then gathered for its rows.

The tables already contain the derived columns (``ctr.pipelines.tables.examples``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.features import Category, Cross, Number, Text, Vector
from ctr.data.ids import arrow
from ctr.data.ids.arrow import is_text, text_array
from ctr.data.ids.rules import FeatureIds, IdColumn, column_of, cross_ids
from ctr.data.kept_values import VALUE_PREFIX
from ctr.data.parquet_files import IDS_COLUMN
from ctr.data.reader import LARGEST_WEIGHT
from ctr.data.schema import LABEL_PREFIX, Schema
from ctr.data.shards import NO_LABEL, list_column, pack_ids, shard_schema
from ctr.data.value_arrays import offsets_of, places_of
from ctr.io.errors import InputError, listed

Lists = tuple[np.ndarray, np.ndarray]  # of a multivalent feature: ids, flat, and lengths int32 of each row


@dataclass(frozen=True)
class _Encoded:
    """A dictionary-encoded source column: the index of each row's (or list item's) distinct value."""

    codes: np.ndarray  # int32 [rows], or [items] of a list column
    texts: pa.Array  # large strings; missing is empty; the empty string may occur twice
    lengths: np.ndarray | None  # int32 [rows] of a list column


def _encode(feature: Category | Text, column: pa.ChunkedArray) -> _Encoded:
    lengths = None
    kind = column.type
    if _is_list(kind):
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
    text = is_text(kind) or pa.types.is_string_view(kind)
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
    """Returns whether a column's dictionaries hold text and can be unified, with one more value for null."""
    # Indices of fewer bits may leave no room for the values of other chunks.
    if not is_text(column.type.value_type) or column.type.index_type != pa.int32():
        return False
    # Arrow cannot unify dictionaries with nulls.
    return column.num_chunks <= 1 or not any(chunk.dictionary.null_count for chunk in column.chunks)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _of_dictionary(encoded: pa.ChunkedArray, lengths: np.ndarray | None) -> _Encoded:
    distinct = pa.array([], pa.large_string())
    if encoded.num_chunks:
        distinct = pc.fill_null(text_array(encoded.chunk(0).dictionary), "").cast(pa.large_string())
    missing = len(distinct)  # one more distinct value, empty, stands for null
    codes = [pc.fill_null(chunk.indices, missing).to_numpy() for chunk in encoded.chunks]
    texts = pa.concat_arrays([distinct, pa.array([""], pa.large_string())])
    return _Encoded(np.concatenate([np.zeros(0, np.int32), *codes]), texts, lengths)


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


@dataclass(frozen=True)
class _Column:
    """A feature's ids of distinct values, and the index of each row's or list item's value among these."""

    values: IdColumn
    places: np.ndarray | None = None

    @property
    def ids(self) -> np.ndarray:
        ids: np.ndarray = self.values.ids
        return ids if self.places is None else ids[self.places]

    def of_rows(self) -> IdColumn:
        """Gathers the ids and fingerprints that a cross reads."""
        if self.places is None:
            return self.values
        return self.values._replace(ids=self.ids, prints=self.values.prints[self.places])

    def raw_values(self) -> pa.Array:
        values = self.values.strings
        if not isinstance(values, pa.Array):  # n-grams, in TensorFlow
            values = pa.array(values.numpy(), pa.large_binary()).cast(pa.large_string())
        if self.places is not None:
            values = values.take(pa.array(self.places))
        if self.values.rows is None:
            return values
        return pa.LargeListArray.from_arrays(
            pa.array(offsets_of(self.values.rows)), values.cast(pa.large_string())
        )


def _vector_column(ids: FeatureIds, feature: Vector, column: pa.ChunkedArray) -> _Column:
    kind = column.type
    if pa.types.is_null(kind):
        column = column.cast(pa.list_(pa.float32()))
    elif not (_is_list(kind) and _is_number(kind.value_type)):
        raise InputError(
            f"feature {feature.name}: its source column {feature.source} is of type {kind}; lists of numbers are "
            "required"
        )
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int32)
    numbers = pc.list_flatten(column).cast(pa.float32(), safe=False)
    return _Column(ids.of_values(arrow, feature, pc.fill_null(numbers, np.nan).to_numpy(), lengths))


def _string_column(ids: FeatureIds, feature: Category | Text, source: _Encoded) -> _Column:
    if source.lengths is not None:
        items = pa.DictionaryArray.from_arrays(pa.array(source.codes), source.texts)
        return _Column(ids.of_values(arrow, feature, items, source.lengths))
    values = ids.of_values(arrow, feature, source.texts)
    if values.rows is None:
        return _Column(values, source.codes)
    # The lists of the rows, one after the other.
    chosen = values.rows[source.codes]
    return _Column(values._replace(rows=chosen), places_of(offsets_of(values.rows)[source.codes], chosen))


def transform_table(schema: Schema, table: pa.Table) -> tuple[np.ndarray, dict[str, Lists]]:
    """Computes the ids of all features of a table's N rows, equal to the result of ``transform_tensors``.

    Categories and text read strings, numbers and booleans (which become text as ``ctr.data.spelling`` says), or
    dictionaries of them; multivalent categories also lists of these; numbers read any numeric type, vectors lists of
    numbers. Null, NaN and the empty string are missing. Returns [N, F], the single-valued ids in the schema's
    order (C-contiguous), and for each multivalent feature its ids (flat) and lengths (int32 [N]). Raises InputError if
    a source column is absent or of a type that its feature cannot read.
    """
    return _packed(schema, _transformed(schema, table), table.num_rows)


def _transformed(schema: Schema, table: pa.Table) -> dict[str, _Column]:
    ids = FeatureIds(schema)
    sources = dict(zip(table.column_names, table.columns, strict=True))
    encoded: dict[str, _Encoded] = {}
    columns: dict[str, _Column] = {}
    histories = schema.histories
    for feature in schema.features:
        if isinstance(feature, Cross):
            parts = [columns[part].of_rows() for part in feature.of]
            columns[feature.name] = _Column(cross_ids(arrow, feature, parts))
            continue
        if feature.name in histories and feature.source not in sources:
            # Filled when the rows of the partition are in order (``ctr.data.history_state``).
            nothing = pa.nulls(table.num_rows, pa.list_(pa.string()))
            sources[feature.source] = pa.chunked_array([nothing])
        column = column_of(sources, feature, feature.source)
        if isinstance(feature, Number):
            columns[feature.name] = _Column(ids.of_values(arrow, feature, _float_column(feature, column)))
        elif isinstance(feature, Vector):
            columns[feature.name] = _vector_column(ids, feature, column)
        else:
            if feature.source not in encoded:
                encoded[feature.source] = _encode(feature, column)
            columns[feature.name] = _string_column(ids, feature, encoded[feature.source])
    return columns


def _packed(schema: Schema, columns: Mapping[str, _Column], rows: int) -> tuple[np.ndarray, dict[str, Lists]]:
    single = [columns[name].ids for name in schema.single_valued]
    kind = schema.id_type
    matrix = np.stack(single, axis=1, dtype=kind) if single else np.zeros((rows, 0), kind)
    lists = {name: (columns[name].ids.astype(kind), columns[name].values.rows) for name in schema.multivalent}
    return matrix, lists


def pack_table(schema: Schema, keys: pa.Table, raw: pa.Table, value_names: Sequence[str] = ()) -> pa.Table:
    """Makes rows of a shard from key columns (``shard_schema`` without the features) and raw source columns.

    Raw values of the features ``value_names`` follow in separate columns (``ctr.data.kept_values.value_columns``).
    Raises InputError for keys that are absent, null or out of range (labels are 0 and 1, weights from 0 to
    ``LARGEST_WEIGHT``), and as ``transform_table`` does.
    """
    target = shard_schema(schema)
    transformed = _transformed(schema, raw)
    matrix, lists = _packed(schema, transformed, raw.num_rows)
    columns: list[pa.Array | pa.ChunkedArray] = []
    for field in target:
        if field.name == IDS_COLUMN:
            columns.append(pack_ids(matrix))
        elif (name := field.name) in lists:
            columns.append(list_column(name, *lists[name], field.type))
        else:
            columns.append(_key_column(keys, field))
    packed = pa.table(columns, schema=target)
    for name in value_names:
        packed = packed.append_column(VALUE_PREFIX + name, transformed[name].raw_values())
    return packed


def _key_column(keys: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    name = field.name
    if name not in keys.column_names:
        raise InputError(
            f"the key column {name} is absent; the columns are {listed(keys.column_names, name)}"
        )
    column = keys.column(name)
    if column.null_count and not field.nullable:
        raise InputError(f"the key column {name} has {column.null_count} nulls; every row requires a value")
    try:
        column = column.cast(field.type)
    except pa.ArrowException as error:
        raise InputError(f"the key column {name} is not {field.type}: {error}") from None
    is_label = name == "label" or name.startswith(LABEL_PREFIX)
    allowed = (0, 1, NO_LABEL) if name == "label" else (0, 1)
    if is_label and not np.isin(column.drop_null().to_numpy(), allowed).all():
        raise InputError(f"the key column {name} holds values other than 0 and 1")
    if name.endswith("weight"):
        weights = column.to_numpy()
        if not ((weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
            raise InputError(f"the key column {name} holds values outside 0 to {LARGEST_WEIGHT:,.0f}")
    return column
