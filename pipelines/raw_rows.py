"""Raw files as rows to be scored: the columns that a model's features are made of, whatever else the files lack.

The same reading, joining, deriving and checking as for an ingest, without labels, weights and queries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.mapping import (
    DelimitedInput,
    JsonlInput,
    Label,
    Mapping,
    ParquetInput,
    RowOrder,
    Time,
    input_patterns,
)
from ctr.data.schema import Number, Schema
from ctr.errors import InputError
from ctr.pipelines.chunks import Chunk
from ctr.pipelines.convert import is_text
from ctr.pipelines.joins import SideTable
from ctr.pipelines.raw_columns import (
    Columns,
    Verdict,
    add_derived,
    check_numbers,
    checked_columns,
    read_ids,
    read_times,
)
from ctr.pipelines.reader import RawReader
from ctr.pipelines.sources import SourceFile, find_files

BLOCK_BYTES = 4 << 20
"""Bytes of an input file that are read at a time."""

RawRows = tuple[pa.Table, pa.Table, list[dict[str, Any]]]
"""Of N rows the keys (``key_schema``) and the source columns; and the rows set aside, as ``rejects.jsonl`` has them.

Texts are ``large_binary`` without nulls, lists of them joined with the feature's separator; numbers are float32.
"""

_TABLE_INPUTS: dict[str, Any] = {
    "csv": DelimitedInput(type="csv"),
    "tsv": DelimitedInput(type="tsv"),
    "jsonl": JsonlInput(type="jsonl"),
    "parquet": ParquetInput(type="parquet"),
}


def plain_mapping(schema: Schema, inputs: Sequence[Path]) -> Mapping:
    """For files, of the one type that their names tell, whose columns have the names of the sources.

    Raises:
        InputError: a name that tells no type, or names that tell different ones.
    """
    types = [_table_type(path) for path in inputs]
    for path, other in zip(inputs, types, strict=True):
        if other != types[0]:
            raise InputError(
                f"input {path}: a {other} file after {inputs[0]}, a {types[0]} file: all must be of one type"
            )
    form = _TABLE_INPUTS[types[0]]
    order = RowOrder(start=datetime(1970, 1, 1, tzinfo=UTC), step_us=1)
    label = Label(column="label")
    return Mapping(
        input=form, time=Time(row_order=order), label=label, partition="1d", features=schema.features
    )


def _table_type(path: Path) -> str:
    suffixes = [suffix.removeprefix(".") for suffix in path.suffixes if suffix not in (".gz", ".zst")]
    if not suffixes or suffixes[-1] not in _TABLE_INPUTS:
        raise InputError(
            f"input {path}: its name does not tell what it is; allowed: .csv, .tsv, .jsonl (also with .gz, .zst) and "
            ".parquet, an example log, or --format or --mapping"
        )
    return suffixes[-1]


def key_schema(mapping: Mapping) -> pa.Schema:
    """What tells rows apart: file and row, as an ingest numbers them, and the example id where the mapping has one."""
    fields = [pa.field("file", pa.string()), pa.field("row", pa.int64())]
    return pa.schema([*fields, *([pa.field("example_id", pa.int64())] if mapping.example_id else [])])


def read_raw_rows(
    schema: Schema, mapping: Mapping, inputs: Sequence[Path], block_bytes: int = BLOCK_BYTES
) -> Iterator[RawRows]:
    """Reads the sources of ``schema``, as ``mapping`` finds them, in the order of the input files.

    Raises:
        InputError: no input, a damaged file, a missing column, or one of a type that its features cannot read.
    """
    derive = {name: derived for name, derived in mapping.derive.items() if name in schema.sources}
    mapping = mapping.model_copy(update={"features": schema.features, "derive": derive})
    needed = [derived.source for derived in derive.values() if not derived.of_time]
    needed += [source for source in schema.sources if source not in derive]
    needed += [mapping.example_id] if mapping.example_id else []
    timed = any(derived.of_time for derived in derive.values())
    needed += [mapping.time.column] if timed and mapping.time.column else []
    files = find_files(inputs, input_patterns(mapping.input), [join.file for join in mapping.joins])
    reader = RawReader(mapping, block_bytes, tuple(dict.fromkeys(needed)))
    lines = 0
    for file in files:
        last = 0
        for chunk, sides in reader.read(file):
            last = max([last, *chunk.rows[-1:].tolist(), *(reject.row for reject in chunk.rejects)])
            yield _make_rows(schema, mapping, file, chunk, sides, lines if timed else None)
        lines += last


def _make_rows(
    schema: Schema,
    mapping: Mapping,
    file: SourceFile,
    chunk: Chunk,
    sides: Sequence[SideTable],
    first: int | None,
) -> RawRows:
    verdict = Verdict(chunk)
    columns = checked_columns(chunk, sides, verdict)
    times = None if first is None else read_times(mapping, columns, chunk, first, verdict)
    keys = {"file": pa.repeat(file.name, len(chunk.rows)), "row": pa.array(chunk.rows, pa.int64())}
    if mapping.example_id is not None:
        keys["example_id"] = pa.array(read_ids(mapping.example_id, "example_id", columns, verdict))
    add_derived(mapping.derive, columns, times)
    check_numbers(mapping.number_sources, columns, verdict)
    numbers = {feature.source for feature in schema.features if isinstance(feature, Number)}
    raw = {}
    for name in schema.sources:
        if name in numbers:
            raw[name] = columns[name].cast(pa.float32(), safe=False)
        else:
            raw[name] = _texts(name, mapping, columns, verdict)
    tables = [pa.table(keys, schema=key_schema(mapping)), pa.table(raw)]
    if not verdict.good.all():
        tables = [table.filter(pa.array(verdict.good)) for table in tables]
    rejects = [{**asdict(reject), "file": file.name} for reject in verdict.rejects]
    return tables[0], tables[1], rejects


def _texts(name: str, mapping: Mapping, columns: Columns, verdict: Verdict) -> pa.Array:
    column = columns[name]
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        column = _joined(name, mapping, column, verdict)
        kind = column.type
    _require_texts(name, kind)
    return pc.fill_null(column.cast(pa.large_string()), "").cast(pa.large_binary())


def _require_texts(name: str, kind: pa.DataType, what: str = "is of type") -> None:
    """Raises InputError for what an ingest would not read either."""
    if not (
        is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    ):
        raise InputError(
            f"the column {name} {what} {kind}; categories and texts are strings, integers and booleans"
        )


def _joined(name: str, mapping: Mapping, column: pa.Array, verdict: Verdict) -> pa.Array:
    separator = mapping.list_sources.get(name)
    if separator is None:
        reads = "which only multivalent categories with one separator read"
        raise InputError(f"the column {name} holds lists ({column.type}), {reads}")
    items = column.flatten()
    if pa.types.is_dictionary(items.type) or pa.types.is_string_view(items.type):
        items = items.cast(pa.string())
    _require_texts(name, items.type, "holds lists of type")
    items = pc.fill_null(items.cast(pa.string()), "")
    holding = pc.match_substring(items, separator).to_numpy(zero_copy_only=False)
    bad = np.zeros(len(column), bool)
    bad[column.value_parent_indices().to_numpy()[holding]] = True
    allowed = f"values without the separator {separator!r}, with which lists are joined"
    verdict.refuse(bad, name, "a value holds the separator", column, allowed)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), separator)
