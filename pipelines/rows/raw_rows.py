"""Raw files as rows to be scored: the columns that a model takes, whatever else the files lack.

The same reading, joining and checking as for an ingest, without labels, weights and queries unless they are asked for.
What the model derives itself is left to it; rows that an ingest would reject for it are rejected here too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.config import parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.ids.arrow import string_ids, text_array
from ctr.data.mapping import DelimitedInput, JsonlInput, Label, Mapping, ParquetInput, RowOrder, Time
from ctr.data.schema import QUERY_SIZE, Schema
from ctr.io.errors import InputError
from ctr.pipelines.rows.convert import is_text_or_number
from ctr.pipelines.rows.query_sizes import SizesOf, count_query_sizes
from ctr.pipelines.rows.raw_columns import (
    Columns,
    Verdict,
    add_derived,
    add_versions,
    check_numbers,
    checked_columns,
    read_ids,
    read_keys,
    read_labels,
    read_times,
    read_weights,
)
from ctr.pipelines.rows.reader import read_files
from ctr.pipelines.rows.side_tables import SideTable
from ctr.pipelines.rows.sources import Chunk, SourceFile, mapped_files, require_columns
from ctr.pipelines.rows.table_files import table_file_columns
from ctr.serving.metadata import MAPPING, TIME

BLOCK_BYTES = 4 << 20  # of an input file that are read at a time

# Of N rows the keys (``key_schema``) and the columns that the model takes; and the rows that were rejected, as
# ``rejects.jsonl`` has them. Texts are ``large_binary`` without nulls, lists of them joined with the feature's
# separator; numbers are float32, the time is int64.
RawRows = tuple[pa.Table, pa.Table, list[dict[str, Any]]]

_LABELED = {
    "query_id": pa.int64(),
    "example_id": pa.int64(),
    "label": pa.int8(),
    "train_weight": pa.float32(),
    "metric_weight": pa.float32(),
    TIME: pa.int64(),
}

_TABLE_INPUTS: dict[str, Any] = {
    "csv": DelimitedInput(type="csv"),
    "tsv": DelimitedInput(type="tsv"),
    "jsonl": JsonlInput(type="jsonl"),
    "parquet": ParquetInput(type="parquet"),
}


def plain_mapping(schema: Schema, inputs: Sequence[Path]) -> Mapping:
    """Maps files of one type, by their names, whose columns have the names of the model's inputs.

    The time, where the model takes one, is the column ``time_us`` of microseconds since 1970-01-01 UTC. Raises
    InputError: a name that shows no type, or names that show different ones.
    """
    types = [_shown_type(path) for path in inputs]
    for path, shown in zip(inputs, types, strict=True):
        if shown not in _TABLE_INPUTS:
            raise InputError(
                f"input {path}: its name does not show its format; allowed: .csv, .tsv, .jsonl (also with .gz, .zst) "
                "and .parquet, an example log, or --format or --mapping"
            )
    for path, other in zip(inputs, types, strict=True):
        if other != types[0]:
            raise InputError(
                f"input {path}: a {other} file after {inputs[0]}, a {types[0]} file: all must be of one type"
            )
    form = _TABLE_INPUTS[types[0]]
    if TIME_COLUMN in schema.inputs and schema.inputs[TIME_COLUMN] == "time":
        time = Time(column=TIME_COLUMN, unit="us")
    else:
        time = Time(row_order=RowOrder(start=datetime(1970, 1, 1, tzinfo=UTC), step_us=1))
    label = Label(column="label")
    return Mapping(input=form, time=time, label=label, partition="1d", features=schema.features)


def _shown_type(path: Path) -> str:
    suffixes = [suffix.removeprefix(".") for suffix in path.suffixes if suffix not in (".gz", ".zst")]
    return suffixes[-1] if suffixes else ""


def check_labeled(mapping: Mapping) -> None:
    """Raises InputError where a mapping's queries are not known row by row."""
    if mapping.query is not None and mapping.query.session is not None:
        raise InputError(
            "--labels: the queries of the mapping are sessions, which are known for a whole log only; ingest the files "
            "and score the log"
        )


def find_mapping(metadata: Any, inputs: Sequence[Path]) -> Mapping | None:
    """Returns the mapping that a model of ``ctr quickstart`` has, unless the names of the files show another type."""
    if MAPPING not in metadata:
        return None
    mapping = parse_model(Mapping, metadata[MAPPING], "the model's own mapping", f"{MAPPING}.")
    others = {kind for path in inputs if path.is_file() and (kind := _shown_type(path)) in _TABLE_INPUTS}
    return mapping if others <= {mapping.input.type} else None


def key_schema(mapping: Mapping | None, labeled: bool = False) -> pa.Schema:
    """Returns the columns that identify rows: file and row, as an ingest numbers them, and an example id if mapped.

    With labels also what an ingest would make of the other keys, so that the rows can be measured.
    """
    columns = {"file": pa.string(), "row": pa.int64()}
    if labeled:
        columns |= _LABELED
    elif mapping is not None and mapping.example_id is not None:
        columns["example_id"] = pa.int64()
    return pa.schema(columns)


def read_raw_rows(
    schema: Schema,
    mapping: Mapping | None,
    inputs: Sequence[Path],
    block_bytes: int = BLOCK_BYTES,
    labeled: bool = False,
) -> Iterator[RawRows]:
    """Reads what a model of ``schema`` takes, as ``mapping`` finds it, in the order of the input files.

    Without a mapping, columns have the names of the model's inputs (``plain_mapping``). A derived column of the mapping
    is made where the model has no rule of its own for it, and the rows of queries are counted. ``labeled``: the keys
    are those of ``key_schema`` with labels; rows that an ingest would reject for them are rejected. Raises InputError:
    no input, a damaged file, a missing column, or one of a type that its features cannot read.
    """
    is_plain = mapping is None
    mapping = mapping or plain_mapping(schema, inputs)
    counts_rows = schema.counts_rows and not is_plain
    schema = schema.stored if counts_rows else schema
    given = [name for name, kind in schema.inputs.items() if kind != "time"]
    wanted = {name: mapping.derive[name] for name in given if name in mapping.derive}
    timed = labeled or len(given) < len(schema.inputs) or any(rule.of_time for rule in wanted.values())
    timed = timed or any(join.valid_from is not None for join in mapping.joins)
    needed = [rule.source for rule in wanted.values() if not rule.of_time]
    needed += [name for name in given if name not in wanted]
    needed += [mapping.example_id] if mapping.example_id else []
    if labeled:
        group = None if mapping.query is None else mapping.query.group_column
        needed += [name for name in (mapping.label.column, mapping.weight, group) if name is not None]
    elif counts_rows and mapping.query is not None:
        needed.append(mapping.query.group_column)
    needed += [mapping.time.column] if timed and mapping.time.column else []
    mapping = mapping.model_copy(update={"features": schema.features, "derive": {**schema.derive, **wanted}})
    files = mapped_files(mapping, inputs)
    if is_plain:
        _check_plain(mapping, files[0].path, needed)
    sizes_of = count_query_sizes(mapping, files, block_bytes) if counts_rows else None
    for chunk, sides, lines in read_files(mapping, files, block_bytes, tuple(dict.fromkeys(needed))):
        first = lines if timed else None
        yield _make_rows(schema, mapping, files[chunk.file], chunk, sides, first, labeled, sizes_of)


def _check_plain(mapping: Mapping, path: Path, needed: Sequence[str]) -> None:
    """Raises InputError where a file does not have the columns of the model's inputs; names what would read it."""
    if isinstance(mapping.input, DelimitedInput | ParquetInput):
        try:
            require_columns(path, needed, table_file_columns(path, mapping.input))
        except InputError as error:
            raise InputError(
                f"{error}; --mapping FILE says which columns the model's inputs are (ctr quickstart has written such a "
                "file beside its log), --format that of a known log"
            ) from None


def _make_rows(
    schema: Schema,
    mapping: Mapping,
    file: SourceFile,
    chunk: Chunk,
    sides: Sequence[SideTable],
    first: int | None,
    labeled: bool,
    sizes_of: SizesOf | None,
) -> RawRows:
    verdict = Verdict(chunk)
    columns = checked_columns(chunk, sides, verdict)
    times = None if first is None else read_times(mapping, columns, chunk, first, verdict)
    add_versions(columns, sides, times)
    keys = {"file": pa.repeat(file.name, len(chunk.rows)), "row": pa.array(chunk.rows, pa.int64())}
    if labeled:
        keys |= _labeled_keys(mapping, file, columns, chunk, times, verdict)
    elif mapping.example_id is not None:
        keys["example_id"] = pa.array(read_ids(mapping.example_id, "example_id", columns, verdict))
    wanted = {name: rule for name, rule in mapping.derive.items() if name in schema.inputs}
    add_derived(wanted, columns, times, verdict)
    # Only to find the rows that an ingest would reject.
    made = dict(columns)
    add_derived(schema.derive, made, times, verdict)
    check_numbers(mapping.number_sources, mapping.vector_sources, made, verdict)
    raw = {}
    for name, kind in schema.inputs.items():
        if kind == "time":
            raw[name] = pa.array(times)
        elif kind == "text":
            raw[name] = _texts(name, schema, columns, verdict)
        else:
            source = next(source for source in mapping.number_sources if schema.column_of(source) == name)
            raw[name] = made[source].cast(pa.float32(), safe=False)
    if sizes_of is not None:
        raw[QUERY_SIZE] = pa.array(sizes_of(columns, verdict))
    tables = [pa.table(keys, schema=key_schema(mapping, labeled)), pa.table(raw)]
    if not verdict.good.all():
        tables = [table.filter(pa.array(verdict.good)) for table in tables]
    rejects = [{**asdict(reject), "file": file.name} for reject in verdict.rejects]
    return tables[0], tables[1], rejects


def _labeled_keys(
    mapping: Mapping,
    file: SourceFile,
    columns: Columns,
    chunk: Chunk,
    times: np.ndarray | None,
    verdict: Verdict,
) -> dict[str, pa.Array]:
    """The columns of ``_LABELED``, as an ingest of the same files makes them."""
    name_hash = string_ids(pa.array([file.name], pa.string()))[0]
    # Without times no id is made of them.
    known = np.zeros(len(chunk.rows), np.int64) if times is None else times
    is_own = times is not None and mapping.time.column is not None
    labels, weights = read_labels(mapping, columns, verdict), read_weights(mapping.weight, columns, verdict)
    ids, queries = read_keys(mapping, name_hash, columns, chunk, known, verdict)
    values = {
        "query_id": queries,
        "example_id": ids,
        "label": labels,
        "train_weight": weights,
        "metric_weight": weights,
        TIME: known if is_own else pa.nulls(len(chunk.rows), pa.int64()),
    }
    return {name: pa.array(column) for name, column in values.items()}


def _texts(name: str, schema: Schema, columns: Columns, verdict: Verdict) -> pa.Array:
    column = columns[name]
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = _joined(name, schema, column, verdict)
    _require_texts(name, column.type)
    return pc.fill_null(text_array(column), "").cast(pa.large_binary())


def _require_texts(name: str, kind: pa.DataType, what: str = "is of type") -> None:
    """Raises InputError for what an ingest would not read either."""
    if not is_text_or_number(kind):
        raise InputError(
            f"the column {name} {what} {kind}; categories and text features are strings, numbers and booleans"
        )


def _joined(name: str, schema: Schema, column: pa.Array, verdict: Verdict) -> pa.Array:
    separator = schema.list_separators.get(name)
    if separator is None:
        reads = "which only multivalent categories with one separator read"
        raise InputError(f"the column {name} holds lists ({column.type}), {reads}")
    items = column.flatten()
    if pa.types.is_dictionary(items.type) or pa.types.is_string_view(items.type):
        items = items.cast(pa.string())
    _require_texts(name, items.type, "holds lists of type")
    items = pc.fill_null(text_array(items), "")
    holding = pc.match_substring(items, separator).to_numpy(zero_copy_only=False)
    bad = np.zeros(len(column), bool)
    bad[column.value_parent_indices().to_numpy()[holding]] = True
    allowed = f"values without the separator {separator!r}, with which lists are joined"
    verdict.refuse(bad, name, "a value contains the separator", column, allowed)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), separator)
