"""Makes examples of a chunk of raw rows: parses keys, rejects bad rows one by one, transforms features."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ctr.data.kept_values import VALUE_PREFIX, value_columns
from ctr.data.mapping import Mapping
from ctr.data.shards import shard_schema
from ctr.data.string_ids import string_ids
from ctr.data.transform import pack_table
from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.rows.joins import SideTable
from ctr.pipelines.rows.raw_columns import (
    Verdict,
    add_derived,
    check_numbers,
    checked_columns,
    read_keys,
    read_labels,
    read_times,
    read_weights,
)
from ctr.pipelines.rows.rejects import Reject
from ctr.pipelines.rows.sources import SourceFile

# Columns beside those of a shard, with the source of each example; no feature can have such a name.
FILE_COLUMN, ROW_COLUMN = "@file", "@row"


def spill_schema(mapping: Mapping) -> pa.Schema:
    """Returns the columns of a shard, the kept raw values, and the numbers of file (int32) and row (int64).

    Values are null in rows that were held back by an ingest which kept none.
    """
    schema = mapping.feature_schema
    values = value_columns(schema, mapping.kept_values)
    fields = [
        *(pa.field(VALUE_PREFIX + name, kind) for name, kind in values.items()),
        pa.field(FILE_COLUMN, pa.int32(), nullable=False),
        pa.field(ROW_COLUMN, pa.int64(), nullable=False),
    ]
    return pa.schema([*shard_schema(schema), *fields])


def with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Gives rows that were held back the columns of the present mapping, which may keep other values."""
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


@dataclass(frozen=True)
class Examples:
    """Examples of a chunk, as a table under ``spill_schema``, and the rejected rows.

    In a log that groups rows, ``query_id`` is still the group and ``query_time`` the row's own time.
    """

    table: pa.Table
    rejects: list[Reject]
    count: int


class ExampleMaker:
    """Maker of the examples of chunks; immutable, so that threads may share it."""

    def __init__(self, mapping: Mapping, sources: Sequence[SourceFile]) -> None:
        self._mapping = mapping
        self._schema = mapping.feature_schema
        self._spill_schema = spill_schema(mapping)
        self._encoded = frozenset(mapping.value_sources)
        self._kept = tuple(value_columns(self._schema, mapping.kept_values))
        self._name_hashes = string_ids(pa.array([source.name for source in sources], pa.string()))

    def make(self, chunk: Chunk, sides: Iterable[SideTable], first: int) -> Examples:
        """Makes the examples of a chunk before which its files have ``first`` lines.

        Raises:
            InputError: a column of a type that its use cannot read.
        """
        mapping, verdict = self._mapping, Verdict(chunk)
        columns = checked_columns(chunk, sides, verdict, self._encoded)
        times = read_times(mapping, columns, chunk, first, verdict)
        labels = read_labels(mapping, columns, verdict)
        weights = read_weights(mapping, columns, verdict)
        ids, groups = read_keys(mapping, self._name_hashes[chunk.file], columns, chunk, times, verdict)
        add_derived(mapping.derive, columns, times, verdict)
        check_numbers(mapping.number_sources, columns, verdict)
        keys = {
            "query_time": times,
            "timestamp": times,
            "query_id": groups,
            "example_id": ids,
            "label": labels,
            "train_weight": weights,
            "metric_weight": weights,
        }
        origin = {FILE_COLUMN: np.full(len(times), chunk.file, np.int32), ROW_COLUMN: chunk.rows}
        raw = {name: columns[name] for name in self._schema.sources}
        return Examples(self._pack(keys, raw, origin, verdict.good), verdict.rejects, chunk.count)

    def _pack(
        self,
        keys: dict[str, np.ndarray],
        raw: dict[str, pa.Array],
        origin: dict[str, np.ndarray],
        good: np.ndarray,
    ) -> pa.Table:
        tables = [pa.table(keys), pa.table(raw), pa.table(origin)]
        if not good.all():
            tables = [table.filter(pa.array(good)) for table in tables]
        packed = pack_table(self._schema, tables[0], tables[1], self._kept)
        for name in (FILE_COLUMN, ROW_COLUMN):
            packed = packed.append_column(self._spill_schema.field(name), tables[2].column(name))
        return packed
