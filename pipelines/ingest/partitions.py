"""Makes the partitions of a log of rows: groups and sorts rows, compares them with published partitions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.kept_values import FOLDER as VALUES
from ctr.data.kept_values import partition_values, values_path, write_values
from ctr.data.log import Manifest, is_published
from ctr.data.mapping import Mapping
from ctr.data.row_order import KEY_COLUMNS, sort_rows
from ctr.data.shards import stage_partition
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.io.files import file_sha256, is_temporary
from ctr.pipelines.ingest.examples import FILE_COLUMN, ROW_COLUMN, spill_schema, timed, work_ahead
from ctr.pipelines.rows.convert import mix_ids
from ctr.pipelines.rows.rejects import Reject, RejectLog, make_reject
from ctr.pipelines.spill import ArrivalSpill, PartitionSpill

# Beside the columns of ``spill_schema``, in logs that group rows: the group, which sessions cut into queries.
GROUP_COLUMN = "@group"

_FILES_NAMED = 3
# The folders with what is there before a manifest.
_PARTS = ("shards", VALUES)


def spill_rows(
    mapping: Mapping, tables: Iterable[pa.Table], folder: Path, seconds: dict[str, float]
) -> PartitionSpill:
    """Stores all rows by partition, with their query ids and times.

    The tables are under ``spill_schema``, with groups for query ids and rows' own times for query times.
    """
    folder.mkdir()
    spill = PartitionSpill(folder, mapping.partition_us)
    if mapping.query is None:
        for table in tables:
            with timed(seconds, "spill"):
                spill.append(table)
        return spill
    arrival = ArrivalSpill(folder, spill_schema(mapping))
    groups, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    with closing(arrival):
        for table in tables:
            with timed(seconds, "spill"):
                arrival.append(table)
                groups.append(table.column("query_id").to_numpy())
                times.append(table.column("query_time").to_numpy())
    with timed(seconds, "spill"):
        session = mapping.query.session
        query_ids, query_times = assign_queries(
            np.concatenate(groups), np.concatenate(times), None if session is None else session.gap_us
        )
        first = 0
        for table in arrival.read_back():
            last = first + table.num_rows
            table = table.append_column(GROUP_COLUMN, table.column("query_id"))
            spill.append(_with_queries(table, query_ids[first:last], query_times[first:last]))
            first = last
    return spill


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


def _with_queries(table: pa.Table, query_ids: np.ndarray, query_times: np.ndarray) -> pa.Table:
    for name, values in (("query_id", query_ids), ("query_time", query_times)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), pa.array(values))
    return table


def ungrouped(mapping: Mapping, table: pa.Table) -> pa.Table:
    """Restores rows of ``spill_rows`` as they were before they were grouped: held rows are grouped again."""
    if mapping.query is None:
        return table
    groups, times = table.column(GROUP_COLUMN).to_numpy(), table.column("timestamp").to_numpy()
    return _with_queries(table.drop_columns([GROUP_COLUMN]), groups, times)


def sorted_partitions(
    spill: PartitionSpill, starts: Sequence[int], seconds: dict[str, float]
) -> Iterator[tuple[int, pa.Table, list[Reject]]]:
    """Yields sorted partitions in order, with their duplicates as rejects; the next one is sorted meanwhile."""

    def load(start: int) -> tuple[int, pa.Table, list[Reject]]:
        with timed(seconds, "sort"):
            return start, *_sorted_once(spill.pop(start))

    return work_ahead(load, starts, 1, 1)


def _sorted_once(table: pa.Table) -> tuple[pa.Table, list[Reject]]:
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


def examples_of(table: pa.Table) -> pa.Table:
    """Drops the columns that a log's shards do not have."""
    # No feature can have such a name.
    return table.drop_columns([name for name in table.column_names if name.startswith("@")])


def stage(out: Path, mapping: Mapping, start: int, table: pa.Table, write: bool = True) -> Manifest:
    """Stages a partition of ``sorted_partitions`` (``stage_partition``); values that are kept come first."""
    manifest = stage_partition(
        out,
        mapping.feature_schema,
        start,
        start + mapping.partition_us,
        examples_of(table),
        shard_rows=mapping.shard_rows,
        write=write,
    )
    if write:
        keep_values(out, mapping, manifest, table)
    return manifest


def keep_values(out: Path, mapping: Mapping, manifest: Manifest, table: pa.Table) -> None:
    """Writes the raw values of a partition's rows, where the mapping asks for them and they are not there yet."""
    kept = mapping.kept_values
    if kept and table.num_rows:
        write_values(out, manifest, partition_values(mapping.feature_schema, kept, table))


def find_published(out: Path, mapping: Mapping, start: int, table: pa.Table) -> Manifest | None:
    """Finds the manifest of a published partition with exactly these rows, and repairs its shards; else None."""
    planned = stage(out, mapping, start, table, write=False)
    if not is_published(out, planned):
        return None
    paths = [(out / "shards" / shard.file, shard.sha256) for shard in planned.shards]
    if not all(path.exists() and file_sha256(path) == sha256 for path, sha256 in paths):
        stage(out, mapping, start, table)
    keep_values(out, mapping, planned, table)
    return planned


@contextmanager
def new_shards_removed_on_failure(out: Path, mapping: Mapping, starts: Sequence[int]) -> Iterator[None]:
    """Deletes the new shards of these partitions, and their values, where the block fails.

    Without a manifest, and before partitions that are published, readers would take their manifests for lost.
    """
    before = {path for folder in _PARTS for path in (out / folder).glob("*")}
    try:
        yield
    except BaseException:
        stems = tuple(f"{start:019d}-{start + mapping.partition_us:019d}" for start in starts)
        for path in (path for folder in _PARTS for path in (out / folder).glob("*")):
            if path not in before and path.name.startswith(stems):
                path.unlink(missing_ok=True)
        raise


def remove_leftovers(out: Path, manifests: Sequence[Manifest], rejects: Path) -> None:
    """Deletes what killed ingests left of these partitions and rejects; others' may be written right now."""
    parts = {shard.file for manifest in manifests for shard in manifest.shards}
    parts |= {values_path(out, manifest).name for manifest in manifests}
    names = {manifest.name for manifest in manifests}
    for path in (path for folder in _PARTS for path in (out / folder).glob("*")):
        if path.name not in parts and path.name[: len(next(iter(names), ""))] in names:
            path.unlink(missing_ok=True)
    for folder in (out / "manifests", out / "rejects"):
        for path in folder.glob("*"):
            if is_temporary(path) and path.name.startswith((*names, rejects.name)):
                path.unlink(missing_ok=True)


class ClosedRows:
    """Rows whose partition, of a length in microseconds, is published already with other rows."""

    def __init__(self, names: Sequence[str], length: int) -> None:
        self._names, self._length = names, length
        self._tables: list[pa.Table] = []

    @property
    def count(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def add(self, table: pa.Table) -> None:
        self._tables.append(table.select([FILE_COLUMN, ROW_COLUMN, "query_time"]))

    def reject(self, rejects: RejectLog, rows: int, out: Path, changed: Sequence[str]) -> None:
        """Rejects the rows one by one; InputError where they are more of ``rows`` than ``rejects`` allow."""
        if self.count > rejects.max_share * rows:
            added = f". With other content {', '.join(changed)} was added before" if changed else ""
            raise InputError(
                f"{out}: nothing was added: {self.describe(rows)}{added}",
                "ingest these files and those before them into a new output directory, in one command or in order of "
                "time with --append (and --allowed-lateness DURATION for rows that come late)",
            )
        found = (row for table in self._tables for row in table.to_pylist())
        reason, allowed = "already published", "times in partitions that are not published"
        rejects.add(
            make_reject(
                row[FILE_COLUMN],
                row[ROW_COLUMN],
                "partition",
                reason,
                format_time(row["query_time"]),
                allowed,
            )
            for row in found
        )

    def describe(self, rows: int) -> str:
        table = pa.concat_tables(self._tables)
        files, lines = table.column(FILE_COLUMN).to_numpy(), table.column(ROW_COLUMN).to_numpy()
        times = table.column("query_time").to_numpy()
        numbers, counts = np.unique(files, return_counts=True)
        counted = Counter(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        named = [f"{self._names[file]} ({count})" for file, count in counted.most_common(_FILES_NAMED)]
        if len(counted) > _FILES_NAMED:
            named.append(f"{len(counted) - _FILES_NAMED} more files")
        first = int(np.lexsort([lines, files])[0])
        start = int(times[first]) // self._length * self._length
        partitions = len(np.unique(times // self._length))
        return (
            f"{table.num_rows} of {rows} rows fall into {partitions} published partition{'s' * (partitions != 1)}: "
            f"{', '.join(named)}; the first is {self._names[files[first]]} row {lines[first]} at "
            f"{format_time(int(times[first]))}, in [{format_time(start)}, {format_time(start + self._length)})"
        )
