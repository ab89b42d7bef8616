"""Makes the partitions of a log of rows: groups and sorts rows, and stages their shards."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.history_state import Histories
from ctr.data.kept_values import FOLDER as VALUES
from ctr.data.kept_values import stage_with_values, values_path
from ctr.data.log import Manifest
from ctr.data.mapping import Mapping, Query
from ctr.data.shards import KEY_COLUMNS, sort_rows
from ctr.data.times import format_time
from ctr.io.files import is_temporary, names_in
from ctr.pipelines.spill import PartitionSpill
from ctr.pipelines.tables.convert import mix_ids
from ctr.pipelines.tables.examples import FILE_COLUMN, ROW_COLUMN, work_ahead
from ctr.pipelines.tables.rejects import Reject, make_reject

# Beside the columns of ``spill_schema``, in logs that group rows: the group, which sessions cut into queries.
GROUP_COLUMN = "@group"

_FILES_NAMED = 3


def spill_rows(mapping: Mapping, tables: Iterable[pa.Table], folder: Path) -> PartitionSpill:
    """Stores all rows by partition, with their query ids and times.

    The tables are under ``spill_schema``, with groups for query ids and rows' own times for query times.
    """
    folder.mkdir()
    spill = PartitionSpill(folder, mapping.partition_us)
    for table in (
        tables if mapping.query is None else _with_queries(mapping.query, tables, folder / "arrival")
    ):
        spill.append(table)
    return spill


def _with_queries(query: Query, tables: Iterable[pa.Table], arrival: Path) -> Iterator[pa.Table]:
    """Yields the rows in order, once all have come, with their queries; the group becomes a column of its own."""
    groups, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    writer = None
    with pa.OSFile(str(arrival), "wb") as file, ExitStack() as stack:
        for table in tables:
            writer = writer or stack.enter_context(pa.ipc.new_stream(file, table.schema))
            writer.write_table(table)
            groups.append(table.column("query_id").to_numpy())
            times.append(table.column("query_time").to_numpy())
    if writer is None:
        return
    gap_us = None if query.session is None else query.session.gap_us
    query_ids, query_times = assign_queries(np.concatenate(groups), np.concatenate(times), gap_us)
    first = 0
    with pa.memory_map(str(arrival)) as stored, pa.ipc.open_stream(stored) as reader:
        for batch in reader:
            table = pa.Table.from_batches([batch])
            last = first + table.num_rows
            table = table.append_column(GROUP_COLUMN, table.column("query_id"))
            yield replace_columns(table, query_id=query_ids[first:last], query_time=query_times[first:last])
            first = last
    arrival.unlink()


def assign_queries(
    groups: np.ndarray, times: np.ndarray, gap_us: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Gives each row its query: [N] int64 query ids (the group, or a hash of group and first time) and query times.

    Rows of different groups (int64 [N]) never share a query; a new session of the group starts after a longer pause
    than ``gap_us``, None: one query a group. The query time is that of the query's last row, so that no label is known
    before its query.
    """
    order = np.lexsort((times, groups))
    sorted_groups, sorted_times = groups[order], times[order]
    starts = np.ones(len(order), bool)
    starts[1:] = sorted_groups[1:] != sorted_groups[:-1]
    if gap_us is not None:
        starts[1:] |= sorted_times[1:] - sorted_times[:-1] > gap_us
    begins = np.flatnonzero(starts)
    lengths = np.diff(np.append(begins, len(order)))
    ids = sorted_groups[begins]
    if gap_us is not None:
        ids = mix_ids(ids, sorted_times[begins])
    query_ids = np.empty(len(order), np.int64)
    query_times = np.empty(len(order), np.int64)
    query_ids[order] = np.repeat(ids, lengths)
    query_times[order] = np.repeat(sorted_times[begins + lengths - 1], lengths)
    return query_ids, query_times


def replace_columns(table: pa.Table, **columns: np.ndarray) -> pa.Table:
    """Replaces columns by others of their types."""
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), pa.array(values))
    return table


def ungrouped(mapping: Mapping, table: pa.Table) -> pa.Table:
    """Restores rows of ``spill_rows`` as they were before they were grouped: held rows are grouped again."""
    if mapping.query is None:
        return table
    groups, times = table.column(GROUP_COLUMN).to_numpy(), table.column("timestamp").to_numpy()
    return replace_columns(table.drop_columns([GROUP_COLUMN]), query_id=groups, query_time=times)


def sorted_partitions(
    spill: PartitionSpill, starts: Sequence[int]
) -> Iterator[tuple[int, pa.Table, list[Reject]]]:
    """Yields sorted partitions in order, with their duplicates as rejects; the next one is sorted meanwhile."""
    return work_ahead(lambda start: (start, *sorted_once(spill.pop(start))), starts, 1, 1)


def sorted_once(table: pa.Table) -> tuple[pa.Table, list[Reject]]:
    """Sorts a partition; of the rows with one example id in one query, the first to arrive is kept."""
    table = sort_rows(table)
    keys = [table.column(name).to_numpy() for name in KEY_COLUMNS]
    repeated = np.zeros(table.num_rows, bool)
    repeated[1:] = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    if not repeated.any():
        return table, []
    again = table.filter(pa.array(repeated)).select([FILE_COLUMN, ROW_COLUMN, "example_id"]).to_pylist()
    reason, allowed = "duplicate in its query", "each example once in a query"
    rejects = [
        make_reject(row[FILE_COLUMN], row[ROW_COLUMN], "example_id", reason, row["example_id"], allowed)
        for row in again
    ]
    return table.filter(pa.array(~repeated)), rejects


def stage(out: Path, mapping: Mapping, histories: Histories, start: int, table: pa.Table) -> Manifest:
    """Stages a partition of ``sorted_partitions``, with its histories and values.

    Its rows are known to later partitions.
    """
    end = start + mapping.partition_us
    table = histories.fill(start, table)
    options = {"shard_rows": mapping.shard_rows, "labeled": mapping.label is not None}
    kept = mapping.keep_values
    manifest = stage_with_values(out, mapping.feature_schema, kept, start, end, table, **options)
    histories.add(end, table)
    return manifest


def remove_leftovers(
    out: Path, mapping: Mapping, starts: Iterable[int], manifests: Iterable[Manifest], rejects: Path
) -> None:
    """Deletes the shards and values of these partitions that no manifest names, and what was half written.

    Before partitions that are published, readers would take the manifests of such shards for lost.
    """
    stems = tuple(f"{start:019d}-{start + mapping.partition_us:019d}" for start in starts)
    named = {out / "shards" / shard.file for manifest in manifests for shard in manifest.shards}
    named |= {values_path(out, one.name, one.values) for one in manifests if one.values is not None}
    for folder in (out / "shards", out / VALUES):
        for path in (folder / name for name in names_in(folder, "")):
            if path not in named and path.name.startswith(stems):
                path.unlink(missing_ok=True)
    for folder in (out / "manifests", out / "rejects"):
        for path in folder.glob("*"):
            if is_temporary(path) and path.name.startswith((*stems, rejects.name)):
                path.unlink(missing_ok=True)


def closed_rejects(rows: pa.Table) -> Iterator[Reject]:
    """Makes rejects of rows whose partition is published already with other rows."""
    for row in rows.to_pylist():
        time, allowed = format_time(row["query_time"]), "times in partitions that are not published"
        yield make_reject(row[FILE_COLUMN], row[ROW_COLUMN], "partition", "already published", time, allowed)


def closed_text(rows: pa.Table, total: int, names: Sequence[str], length: int) -> str:
    """Describes rows, of ``total``, whose partition, of a length in microseconds, is published already."""
    files, lines, times = (rows.column(name).to_numpy() for name in (FILE_COLUMN, ROW_COLUMN, "query_time"))
    numbers, counts = np.unique(files, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_FILES_NAMED]
    named = [f"{names[numbers[index]]} ({counts[index]})" for index in most]
    if len(numbers) > _FILES_NAMED:
        named.append(f"{len(numbers) - _FILES_NAMED} more files")
    first = int(np.lexsort([lines, files])[0])
    start = int(times[first]) // length * length
    partitions = len(np.unique(times // length))
    return (
        f"{rows.num_rows} of {total} rows fall into {partitions} published partition{'s' * (partitions != 1)}: "
        f"{', '.join(named)}; the first is {names[files[first]]} row {lines[first]} at "
        f"{format_time(int(times[first]))}, in [{format_time(start)}, {format_time(start + length)})"
    )
