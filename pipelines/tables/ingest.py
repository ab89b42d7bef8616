"""Ingests raw files to an example log: read, check, transform, spill by partition, sort, publish.

The input may have any order. Rows are spilled by the partition of their query time, and when the input has ended every
partition is loaded, sorted and published, in order of time. So memory is bounded by the largest partition, disk by the
log, and the log does not depend on the order of the input or on its chunks. If rows are grouped (by a query column or
as sessions), query times are known only at the end: rows are first stored in order of arrival, and the group and time
of each stay in memory.

A partition that is published is closed. For files that come one after another, the rows of the open partitions are held
back inside the log's folder (``ctr.pipelines.tables.state``) and merged with the rows of the next files, so that the
log is that of one ingest of all files.

An ingest is committed at one moment: one that was killed before is run again, one that was killed after is completed by
the next, and a file that is in the log is not added again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.history_state import Histories
from ctr.data.kept_values import FOLDER as VALUES
from ctr.data.kept_values import stage_with_values, values_path
from ctr.data.log import Manifest, check_no_overlap, create_log, list_partitions
from ctr.data.mapping import Mapping, Query
from ctr.data.shards import KEY_COLUMNS, sort_rows
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.io.files import file_sha256, hold, is_temporary, make_folder, names_in
from ctr.pipelines.spill import PartitionSpill, read_state_tables, spill_folder, write_state_tables
from ctr.pipelines.tables.convert import mix_ids
from ctr.pipelines.tables.examples import (
    FILE_COLUMN,
    ROW_COLUMN,
    Reading,
    TimesRead,
    read_examples,
    spill_schema,
    work_ahead,
)
from ctr.pipelines.tables.input_files import SourceFile
from ctr.pipelines.tables.rejects import (
    MAX_REJECT_SHARE,
    Reject,
    RejectLog,
    check_reject_share,
    make_reject,
    reject_reasons,
)
from ctr.pipelines.tables.state import (
    FOLDER,
    REMEDY,
    HeldRows,
    InputFile,
    begin_state,
    check_published,
    check_rules,
    commit,
    compare_inputs,
    digest_of,
    finish_publishing,
    input_files,
    last_time,
    read_state,
    rules_of,
)

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
    than ``gap_us``, None: one query a group. The query time is its last row's time, so that no label is known
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
    names = mapping.keep_values
    manifest = stage_with_values(out, mapping.feature_schema, names, start, end, table, **options)
    histories.add(end, table)
    return manifest


def remove_leftovers(
    out: Path, mapping: Mapping, starts: Iterable[int], manifests: Iterable[Manifest], rejects: Path
) -> None:
    """Deletes shards and values of these partitions that no manifest names, and temporary files.

    Before partitions that are published, readers would take the manifests of such shards for lost.
    """
    stems = tuple(f"{start:019d}-{start + mapping.partition_us:019d}" for start in starts)
    named = {out / "shards" / shard.file for manifest in manifests for shard in manifest.shards}
    named |= {values_path(out, part.name, part.values) for part in manifests if part.values is not None}
    for folder in (out / "shards", out / VALUES):
        for path in (folder / name for name in names_in(folder, "")):
            if path not in named and path.name.startswith(stems):
                path.unlink(missing_ok=True)
    for folder in (out / "manifests", out / "rejects"):
        for path in folder.glob("*"):
            if is_temporary(path) and path.name.startswith((*stems, rejects.name)):
                path.unlink(missing_ok=True)


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


BLOCK_BYTES = 16 << 20  # of an input file that are read, checked and transformed at a time
EARLY_US = 631_152_000_000_000  # 1990-01-01: an earlier time is more often a wrong unit of time than a log


def few(names: Sequence[str]) -> str:
    """Lists the first three names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


@dataclass(frozen=True)
class IngestResult:
    """Rows that an ingest has read, rejected and published."""

    rows: int  # of the input that were read
    examples: int  # rows in the published partitions, including rows held back earlier
    queries: int
    clicks: int | None  # examples with label 1; None: rows have no labels
    rejected: int
    reject_reasons: dict[str, int]  # by ``key: reason``, the most frequent first
    rejects_file: Path | None
    partitions: list[tuple[int, int]]  # published ones (start, end) of query time, in microseconds
    first_time_us: int | None  # query time, None where nothing was published
    last_time_us: int | None
    held_rows: int  # held back until later ones come
    held_partitions: list[tuple[int, int]]
    # Before this query time the log takes no more rows, but in partitions without any.
    closed_until_us: int | None
    known_files: list[str]  # files of the input that were in the log before; they were not added again
    warnings: list[str]
    seconds: dict[str, float]  # ``total``

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rejects_file": str(self.rejects_file or "")}

    def as_text(self) -> str:
        """Formats the result in a line, followed by the unpublished rows, the reasons of rejects, and warnings."""
        clicks = "no labels" if self.clicks is None else f"{self.clicks} clicks"
        text = f"{self.examples} examples, {self.queries} queries, {clicks}"
        text += f", {len(self.partitions)} partitions, {self.seconds['total']:.1f} s"
        if self.known_files:
            shown, count = few(self.known_files), len(self.known_files)
            text += f"\n{count} {'files are' if count > 1 else 'file is'} in the log already, not added again: {shown}"
        if self.held_rows:
            start, end = self.held_partitions[0][0], self.held_partitions[-1][1]
            text += (
                f"\n{self.held_rows} rows of [{format_time(start)}, {format_time(end)}) are kept unpublished, as "
                "--append asks, until later rows come; ctr ingest without files and without --append publishes them"
            )
        elif self.closed_until_us is not None:
            text += (
                f"\npublished up to {format_time(self.closed_until_us)}: earlier rows are no longer accepted; "
                "for more files use --append"
            )
        if self.rejected:
            # Without new files, duplicates among the rows that were kept unpublished.
            share = f"{self.rejected} of {self.rows}" if self.rows else f"{self.rejected}"
            text += f"\n{share} rows rejected, see {self.rejects_file}:"
            text += "".join(f"\n  {count} x {reason}" for reason, count in self.reject_reasons.items())
        return text + "".join(f"\nwarning: {warning}" for warning in self.warnings)


def ingest(
    mapping: Mapping,
    inputs: Sequence[Path],
    out: Path,
    *,
    append: bool = False,
    allowed_lateness_us: int = 0,
    max_reject_share: float = MAX_REJECT_SHARE,
    progress: Callable[[int], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
    now_us: int | None = None,
) -> IngestResult:
    """Publishes the examples of the input files as the log ``out``, which may hold other partitions.

    Rows of the inputs count as arriving in their order; without any, and without ``append``, what is held back is
    published. With ``append`` more files will come: the rows of partitions that may still get some are held back, until
    one comes that is later than the end of the partition by the allowed lateness (and the gap of sessions).

    Query times from ``now_us`` on are warned of; None: the time of the machine's clock. ``progress`` is called with the
    number of rows read since its last call; ``block_bytes`` change nothing in the log. Raises InputError: no input or
    no example in it, a missing column, a damaged file, too many rejects, a log of another schema, or rows of partitions
    that are closed.
    """
    started = time.perf_counter()
    check_reject_share(max_reject_share)
    sources = input_files(out, mapping, inputs, append)
    make_folder(out / FOLDER)
    with spill_folder(out) as folder, hold(out / FOLDER):
        work = _Ingest(mapping, sources, out, append, allowed_lateness_us, max_reject_share, now_us)
        try:
            staged = work.run(folder, progress, block_bytes)
        except BaseException:
            work.write_rejects()
            raise
        return work.result(staged, time.perf_counter() - started)


class _Ingest:
    """An ingest while it holds the lock of the log's ingests."""

    def __init__(
        self,
        mapping: Mapping,
        files: Sequence[SourceFile],
        out: Path,
        append: bool,
        lateness_us: int,
        max_reject_share: float,
        now_us: int | None,
    ) -> None:
        self._mapping, self._out, self._append = mapping, out, append
        session = None if mapping.query is None else mapping.query.session
        self._open_us = lateness_us + (0 if session is None else session.gap_us)
        state = read_state(out)
        # What a killed ingest has committed but not published.
        self._completed = state.publishing
        self._state = finish_publishing(out, state)
        check_rules(out, self._state, rules_of(mapping))
        self._inputs = compare_inputs(files, self._state, append)
        # Most of its rows would be added again, or fall into partitions that are published.
        if changed := self._inputs.changed:
            raise InputError(
                f"input {few(changed)}: {out} has a file of this name with other content, and a published "
                "partition never changes; nothing was added",
                "give the rows that are missing in a file of another name, or ingest all files into another output "
                "directory",
            )
        self._rejects = RejectLog(self._inputs.names, max_reject_share)
        self._rejects_path = self._inputs.rejects_path(out)
        self._times = TimesRead(EARLY_US, time.time_ns() // 1000 if now_us is None else now_us)
        self._last_before = last_time(out, self._state)
        self._histories = Histories(out, mapping.feature_schema, checked=False)
        self._warnings: list[str] = []
        self._rows = self._held_rows = 0
        self._held_before = 0 if self._inputs.held is None else self._inputs.held.rows

    def run(
        self, folder: Path, progress: Callable[[int], None] | None, block_bytes: int
    ) -> Sequence[Manifest]:
        """Reads, spills and publishes all rows; returns the manifests of the new partitions."""
        mapping, inputs, out = self._mapping, self._inputs, self._out
        reading = Reading(self._rejects, self._times)
        tables = read_examples(mapping, inputs.sources, block_bytes, reading, inputs.first_line, progress)
        with ExitStack() as stack:
            hashing = ThreadPoolExecutor(1, "ingest-hash")
            stack.callback(hashing.shutdown, cancel_futures=True)
            hashes = [hashing.submit(file_sha256, source.path) for source in inputs.sources]
            spill = spill_rows(mapping, chain(self._held_tables(), tables), folder / "rows")
            self._rows = reading.rows
            self._rejects.check(self._rows)
            if inputs.sources:
                self._require_examples()
            empty = [source.name for source in inputs.sources if not reading.rows_of[source.number]]
            if empty:
                total = len(inputs.sources)
                self._warnings.append(f"{len(empty)} of {total} files hold no rows: {few(empty)}")
            added: list[InputFile] = []
            line = inputs.first_line
            for source, sha256 in zip(inputs.sources, hashes, strict=True):
                first, lines = reading.lines_of.get(source.number, (line, 0))
                added.append(
                    InputFile(
                        name=source.name,
                        bytes=source.path.stat().st_size,
                        sha256=sha256.result(),
                        rows=reading.rows_of[source.number],
                        first_line=first,
                        lines=lines,
                    )
                )
                line = first + lines
        begin_state(out)
        create_log(out, mapping.feature_schema)
        self._warn_of_copies(added)
        # Before publishing, so that lost files and unreadable histories can still be restored.
        check_published(out, self._state)
        self._histories.at_end()
        return self._publish(spill, added)

    def _held_tables(self) -> Iterator[pa.Table]:
        """Yields the rows held back earlier, in order of arrival; their files are numbered after the input's."""
        if (held := self._inputs.held) is None:
            return
        held_numbers = np.array(list(self._inputs.held_files), np.int64)
        for table in read_state_tables(self._out / FOLDER / held.file, REMEDY):
            numbers = np.searchsorted(held_numbers, table.column(FILE_COLUMN).to_numpy())
            numbers = (numbers + len(self._inputs.sources)).astype(np.int32)
            yield replace_columns(table, **{FILE_COLUMN: numbers})

    def _require_examples(self) -> None:
        if len(self._rejects.rejects) != self._rows:
            return
        names = few([source.name for source in self._inputs.sources])
        if not self._rows:
            raise InputError(f"{self._out}: nothing was added: no row in {names}")
        reason, count = next(iter(reject_reasons(self._rejects.rejects).items()))
        raise InputError(
            f"{self._out}: nothing was added: all {self._rows} rows of {names} were rejected, most often {reason} "
            f"({count} rows); see {self._rejects_path}"
        )

    def _warn_of_copies(self, added: Sequence[InputFile]) -> None:
        """Warns of files with the same bytes as others under other names, now or before."""
        names = {file.sha256: file.name for file in reversed(self._state.inputs)}
        for file in added:
            other = names.setdefault(file.sha256, file.name)
            if other != file.name and file.rows:
                self._warnings.append(
                    f"{file.name} has the same bytes as {other}, and its rows count again: leave one of them out and "
                    "use a new output directory, unless the repetition is intended"
                )

    def _publish(self, spill: PartitionSpill, added: Sequence[InputFile]) -> Sequence[Manifest]:
        """Publishes all closed partitions of new and held rows; holds back the rows of open partitions."""
        mapping, out = self._mapping, self._out
        starts, published = spill.starts(), {start for start, _ in list_partitions(out)}
        length = mapping.partition_us
        for start in starts:
            check_no_overlap(out, start, start + length)
        held_until = 0 if self._inputs.held is None else self._inputs.held.last_time
        latest = max(held_until, self._times.last or 0)
        closed = [start for start in starts if start in published]
        new = [start for start in starts if start not in published]
        held = [start for start in new if self._append and start + length > latest - self._open_us]
        due = [start for start in new if start not in held]
        self._reject_closed(spill, closed)
        staged: list[Manifest] = []
        try:
            for start, table, duplicates in sorted_partitions(spill, due):
                staged.append(stage(out, mapping, self._histories, start, table))
                self._rejects.add(duplicates)
                # Duplicates may lie among the input's rows and the held rows.
                self._rejects.check(self._rows + self._held_before)
            self._warn_of_order(staged, published)
            change = {
                "inputs": (*self._state.inputs, *added),
                "publishing": tuple(staged),
                "held": self._hold(spill, held, added, latest),
                "rules": rules_of(mapping),
            }
            # Once it is committed, an ingest that is killed does not read its files again.
            self.write_rejects()
            self._state = commit(out, self._state.model_copy(update=change))
        except BaseException:
            left = set(due) - {start for start, _ in list_partitions(out)}
            remove_leftovers(out, mapping, left, read_state(out).publishing, self._rejects_path)
            raise
        self._histories.save()
        done = [*self._completed, *staged]
        remove_leftovers(out, mapping, [manifest.start for manifest in done], done, self._rejects_path)
        return staged

    def _reject_closed(self, spill: PartitionSpill, starts: Sequence[int]) -> None:
        """Rejects the rows of published partitions; InputError where they are too many."""
        out, closed = self._out, []
        for _, table, duplicates in sorted_partitions(spill, starts):
            self._rejects.add(duplicates)
            closed.append(table.select([FILE_COLUMN, ROW_COLUMN, "query_time"]))
        if not closed:
            return
        rows = pa.concat_tables(closed)
        text = closed_text(rows, self._rows, self._rejects.names, self._mapping.partition_us)
        if rows.num_rows > self._rejects.max_share * self._rows:
            raise InputError(
                f"{out}: nothing was added: {text}",
                "ingest these files and those before them into a new output directory, in one command or in order of "
                "time with --append (and --allowed-lateness DURATION for rows that come late)",
            )
        allowed = "times in partitions that are not published"
        self._rejects.add(
            make_reject(
                row[FILE_COLUMN],
                row[ROW_COLUMN],
                "partition",
                "already published",
                format_time(row["query_time"]),
                allowed,
            )
            for row in rows.to_pylist()
        )
        self._warnings.append(f"{text}; they were rejected; for more files use --append")
        self._rejects.check(self._rows)
        self._require_examples()

    def _hold(
        self, spill: PartitionSpill, starts: Sequence[int], added: Sequence[InputFile], last_time: int
    ) -> HeldRows | None:
        """Stores the rows of open partitions; held rows that were not read stay as they are."""
        before = self._state.held
        if not starts:
            return before if self._inputs.held is None else None
        file = f"held-{digest_of(before.file if before else '', *(file.sha256 for file in added))}.arrow"
        numbers: set[int] = set()

        def tables() -> Iterator[pa.Table]:
            for start in starts:
                table = spill.pop(start)
                if self._mapping.query is not None:
                    # As they were before they were grouped: held rows are grouped again.
                    groups, times = (
                        table.column(GROUP_COLUMN).to_numpy(),
                        table.column("timestamp").to_numpy(),
                    )
                    table = replace_columns(
                        table.drop_columns([GROUP_COLUMN]), query_id=groups, query_time=times
                    )
                numbers.update(np.unique(table.column(FILE_COLUMN).to_numpy()).tolist())
                yield table

        path = self._out / FOLDER / file
        self._held_rows = write_state_tables(path, spill_schema(self._mapping), tables())
        names = {str(number): self._rejects.names[number] for number in sorted(numbers)}
        return HeldRows(
            file=file, rows=self._held_rows, inputs=names, last_time=last_time, partitions=tuple(starts)
        )

    def _warn_of_order(self, staged: Sequence[Manifest], published: set[int]) -> None:
        """Warns of a hole before the new rows, and of partitions that come after later ones."""
        before, first = self._last_before, self._times.first
        if before is not None and first is not None and first - before > self._mapping.partition_us:
            self._warnings.append(
                f"no row between {format_time(before)}, where the log ended, and {format_time(first)}: if a file is "
                "missing, its rows may fall into partitions that are published now"
            )
        early = [manifest for manifest in staged if published and manifest.start < max(published)]
        if early:
            self._warnings.append(
                f"{len(early)} partitions, from {format_time(early[0].start)} on, came after later ones: a run that "
                "has read those refuses to continue with this log"
            )

    def write_rejects(self) -> None:
        """Writes the rejects file."""
        self._rejects.write(self._rejects_path)

    def result(self, manifests: Sequence[Manifest], seconds: float) -> IngestResult:
        """Returns the counts of the ingest; raises RuntimeError when rows were lost."""
        rejected = len(self._rejects.rejects)
        examples = sum(manifest.rows for manifest in manifests)
        held = self._state.held
        if self._rows + self._held_before != examples + rejected + self._held_rows:
            raise RuntimeError(
                f"{self._rows} rows were read and {self._held_before} were kept unpublished before, but "
                f"{examples} published, {rejected} rejected and {self._held_rows} kept unpublished"
            )
        shards = [shard for manifest in manifests for shard in manifest.shards]
        published = list_partitions(self._out)
        length = self._mapping.partition_us
        return IngestResult(
            rows=self._rows,
            examples=examples,
            queries=sum(manifest.queries for manifest in manifests),
            clicks=None if self._mapping.label is None else sum(manifest.clicks for manifest in manifests),
            rejected=rejected,
            reject_reasons=reject_reasons(self._rejects.rejects),
            rejects_file=self._rejects_path if rejected else None,
            partitions=[(manifest.start, manifest.end) for manifest in manifests],
            first_time_us=shards[0].first_query_time if shards else None,
            last_time_us=shards[-1].last_query_time if shards else None,
            held_rows=0 if held is None else held.rows,
            held_partitions=[] if held is None else [(start, start + length) for start in held.partitions],
            closed_until_us=published[-1][1] if published else None,
            known_files=self._inputs.ingested,
            warnings=[*self._warnings, *self._content_warnings()],
            seconds={"total": seconds},
        )

    def _content_warnings(self) -> Iterator[str]:
        for join in self._mapping.joins if self._inputs.sources else ():
            # Their values are taken at any time, also before they were known.
            if join.valid_from is None:
                yield (
                    f"the side table {join.file} has no times: rows of the past get its present values too; if "
                    "values change, give it a row for each, and the join valid_from: COLUMN"
                )
        yield from self._times.warnings(self._rows - len(self._rejects.rejects))
