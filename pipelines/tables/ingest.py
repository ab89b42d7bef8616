"""Ingests raw files into an example log: read, check, transform, spill by partition, sort, publish.

The input may have any order. Rows are spilled by the partition of their query time, and when the input has ended every
partition is loaded, sorted and published, in order of time. So memory is bounded by the largest partition, disk by the
log, and the log does not depend on the order of the input or on its chunks. If rows are grouped (by a query column or
as sessions), query times are known only at the end: rows are first stored in order of arrival, and the group and
time of each stay in memory.

A partition that is published is closed. For files that come one after another, the rows of the open partitions are held
back inside the log's folder (``ctr.pipelines.tables.state``) and merged with the rows of the next files, so that the
log equals the result of one ingest of all files.

An ingest is committed in one step: if it is killed before that, it can be run again; if it is killed after that, the
next one completes it. A file that is in the log is not added again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.history_state import Histories
from ctr.data.kept_values import FOLDER as VALUES
from ctr.data.kept_values import values_path
from ctr.data.log import Manifest, check_no_overlap, create_log, list_partitions, partition_name
from ctr.data.mapping import TIME_LIMIT_US, Mapping
from ctr.data.shards import KEY_COLUMNS, sort_rows
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.io.files import file_sha256, hold, make_folder, names_in, remove_temporaries
from ctr.pipelines.publish import stage
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
    digest_of,
    finish_publishing,
    input_files,
    is_ingested,
    last_time,
    read_state,
    rules_of,
)

# Beside the columns of ``spill_schema``, in logs that group rows: the group, which sessions cut into queries.
GROUP_COLUMN = "@group"

_NAMED = 3  # of the files at fault
_PIECE_ROWS = 65_536
BLOCK_BYTES = 16 << 20  # of an input file that are read, checked and transformed at a time
EARLY_US = 631_152_000_000_000  # 1990-01-01: an earlier time is more often a wrong unit of time than a log


def with_queries(tables: Iterable[pa.Table], gap_us: int | None, folder: Path) -> Iterator[pa.Table]:
    """Reads all rows, then yields them in order with their queries; the group becomes a separate column.

    The tables have ``spill_schema``, with groups as query ids and times of rows as query times. They are spilled
    to ``folder`` meanwhile, as one partition.
    """
    arrived = PartitionSpill(folder, TIME_LIMIT_US)
    for table in tables:
        arrived.append(table)
    for start in arrived.starts():
        rows = arrived.pop(start)
        groups, times = (rows.column(name).to_numpy() for name in ("query_id", "query_time"))
        query_ids, query_times = assign_queries(groups, times, gap_us)
        rows = rows.append_column(GROUP_COLUMN, rows.column("query_id"))
        rows = replace_columns(rows, query_id=query_ids, query_time=query_times)
        # Only a piece at a time of the rows on disk is copied into memory.
        for piece in rows.to_batches(_PIECE_ROWS):
            yield pa.Table.from_batches([piece])


def assign_queries(
    groups: np.ndarray, times: np.ndarray, gap_us: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Assigns rows to queries: [N] int64 query ids (the group, or a hash of group and first time) and query times.

    Rows of different groups (int64 [N]) never share a query; a new session of the group starts after a pause longer
    than ``gap_us``, or never if it is None. The query time is the time of the query's last row, so that no label is
    available before its query.
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
    """Replaces the values of columns; their fields, and so their types, stay."""
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), pa.array(values))
    return table


def sorted_once(table: pa.Table) -> tuple[pa.Table, list[Reject]]:
    """Sorts a partition; of rows with equal example ids in a query, keeps the first to arrive and rejects the rest."""
    table = sort_rows(table)
    keys = [table.column(name).to_numpy() for name in KEY_COLUMNS]
    repeated = np.zeros(table.num_rows, bool)
    repeated[1:] = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    if not repeated.any():
        return table, []
    duplicates = table.filter(pa.array(repeated))
    ids = duplicates.column("example_id").to_pylist()
    rejects = reject_rows(
        duplicates, "example_id", "duplicate in its query", ids, "each example once in a query"
    )
    return table.filter(pa.array(~repeated)), rejects


def reject_rows(
    rows: pa.Table, key: str, reason: str, values: Iterable[object], allowed: str
) -> list[Reject]:
    """Makes a reject of each row, with its file, its row number and the value."""
    files, lines = (rows.column(name).to_pylist() for name in (FILE_COLUMN, ROW_COLUMN))
    return [
        make_reject(file, line, key, reason, value, allowed)
        for file, line, value in zip(files, lines, values, strict=True)
    ]


def closed_text(rows: pa.Table, total: int, names: Sequence[str], length: int) -> str:
    """Describes how many of ``total`` rows fall into published partitions (of ``length`` microseconds), and which."""
    files, lines, times = (rows.column(name).to_numpy() for name in (FILE_COLUMN, ROW_COLUMN, "query_time"))
    numbers, counts = np.unique(files, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_NAMED]
    named = [f"{names[numbers[index]]} ({counts[index]})" for index in most]
    if len(numbers) > _NAMED:
        named.append(f"{len(numbers) - _NAMED} more files")
    first = int(np.lexsort([lines, files])[0])
    start = int(times[first]) // length * length
    partitions = len(np.unique(times // length))
    return (
        f"{rows.num_rows} of {total} rows fall into {partitions} published partition{'s' * (partitions != 1)}: "
        f"{', '.join(named)}; the first is {names[files[first]]} row {lines[first]} at "
        f"{format_time(int(times[first]))}, in [{format_time(start)}, {format_time(start + length)})"
    )


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
    # Rows before this query time are no longer accepted, except in partitions that have none.
    closed_until_us: int | None
    known_files: list[str]  # files of the input that were in the log before; they were not added again
    warnings: list[str]
    seconds: dict[str, float]  # ``total``

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rejects_file": str(self.rejects_file or "")}

    def as_text(self) -> str:
        """Formats the result in a line, followed by the unpublished rows, the reasons for rejects, and warnings."""
        clicks = "no labels" if self.clicks is None else f"{self.clicks} clicks"
        text = f"{self.examples} examples, {self.queries} queries, {clicks}"
        text += f", {len(self.partitions)} partitions, {self.seconds['total']:.1f} s"
        if self.known_files:
            names, count = few(self.known_files), len(self.known_files)
            text += f"\n{count} {'files are' if count > 1 else 'file is'} in the log already, not added again: {names}"
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
            # Without new files, these are duplicates among the rows held back earlier.
            share = f"{self.rejected} of {self.rows}" if self.rows else f"{self.rejected}"
            text += f"\n{share} rows rejected, see {self.rejects_file}:"
            text += "".join(f"\n  {count} x {reason}" for reason, count in self.reject_reasons.items())
        return text + "".join(f"\nwarning: {warning}" for warning in self.warnings)


@dataclass(frozen=True)
class IngestSettings:
    """Settings of an ingest.

    Attributes:
        append: whether more files will follow. If so, the rows of a partition are held back until a row is later than
            the partition's end by more than the allowed lateness (plus the gap of sessions).
        allowed_lateness_us: how far a row's time may lie behind the latest time read before it, in microseconds.
        max_reject_share: a larger share of rejected rows stops the ingest.
        progress: called with the number of rows read since its last call.
        block_bytes: bytes of a file that are read at a time; they do not change the log.
        now_us: query times from this one on cause a warning. None: the current time.
    """

    append: bool = False
    allowed_lateness_us: int = 0
    max_reject_share: float = MAX_REJECT_SHARE
    progress: Callable[[int], None] | None = None
    block_bytes: int = BLOCK_BYTES
    now_us: int | None = None


def ingest(
    mapping: Mapping, inputs: Sequence[Path], out: Path, settings: IngestSettings | None = None
) -> IngestResult:
    """Publishes the examples of the input files as the log ``out``, which may hold other partitions.

    Rows of the inputs arrive in the order of the inputs; without inputs, and unless ``append``, the rows held
    back are published.

    Raises InputError for no input or no example in it, a missing column, a damaged file, too many rejects, a log of
    another schema, or rows of partitions that are closed.
    """
    started = time.perf_counter()
    settings = settings or IngestSettings()
    check_reject_share(settings.max_reject_share)
    sources = input_files(out, mapping, inputs, settings.append)
    make_folder(out / FOLDER)
    with spill_folder(out) as folder, hold(out / FOLDER):
        work = _Ingest(mapping, sources, out, settings)
        try:
            staged = work.run(folder)
        except BaseException:
            work.rejects.write()
            raise
        return work.result(staged, time.perf_counter() - started)


class _Ingest:
    """Ingest in progress, which holds the log's ingest lock."""

    def __init__(
        self, mapping: Mapping, files: Sequence[SourceFile], out: Path, settings: IngestSettings
    ) -> None:
        self._mapping, self._out, self._settings = mapping, out, settings
        state = read_state(out)
        # The manifests that a killed ingest has committed but not published.
        self._completed = state.publishing
        self._state = state = finish_publishing(out, state)
        check_rules(out, state, rules_of(mapping))
        ingested = [source for source in files if is_ingested(state, source)]
        new = [source for source in files if source not in ingested]
        before = {file.name for file in state.inputs}
        # Most of its rows would be added again, or fall into partitions that are published.
        if changed := [source.name for source in new if source.name in before]:
            raise InputError(
                f"input {few(changed)}: {out} has a file of this name with other content, and a published "
                "partition never changes; nothing was added",
                "give the rows that are missing in a file of another name, or ingest all files into another output "
                "directory",
            )
        self._ingested = [source.name for source in ingested]
        self._sources = [replace(source, number=number) for number, source in enumerate(new)]
        # More files will come: without a new one nothing changes.
        self._held = None if settings.append and not new else state.held
        held = {} if self._held is None else self._held.inputs
        self._held_numbers = sorted(map(int, held))
        names = [source.name for source in self._sources]
        # Named after the inputs, or else the held rows, so that the rejects of another day's ingest into the log stay.
        digest = digest_of(*(names or ([] if self._held is None else [self._held.file])))
        self.rejects = RejectLog(
            [*names, *(held[str(number)] for number in self._held_numbers)],
            settings.max_reject_share,
            out / "rejects" / f"{digest}.jsonl",
        )
        # If no rows wait, lines are counted from the first file of this command.
        continues = settings.append or state.held is not None or bool(ingested and new)
        now_us = time.time_ns() // 1000 if settings.now_us is None else settings.now_us
        self._reading = Reading(
            self.rejects, TimesRead(EARLY_US, now_us), line=state.lines if continues else 0
        )
        self._last_before = last_time(out, state)
        self._histories = Histories(out, mapping.feature_schema, checked=False)
        self._warnings: list[str] = []
        self._held_rows = 0
        self._held_before = 0 if self._held is None else self._held.rows

    def run(self, folder: Path) -> Sequence[Manifest]:
        """Reads, spills and publishes all rows; returns the manifests of the new partitions."""
        mapping, out, reading = self._mapping, self._out, self._reading
        read = read_examples(
            mapping, self._sources, self._settings.block_bytes, reading, self._settings.progress
        )
        tables: Iterator[pa.Table] = chain(self._held_tables(), read)
        if mapping.query is not None:
            gap_us = None if mapping.query.session is None else mapping.query.session.gap_us
            tables = with_queries(tables, gap_us, folder)
        spill = PartitionSpill(folder, mapping.partition_us)
        for table in tables:
            spill.append(table)
        self.rejects.check(reading.rows)
        if self._sources:
            self._require_examples()
        lines = [reading.lines_of[source.number] for source in self._sources]
        first_lines = accumulate(lines, initial=reading.line)
        added = [
            InputFile(
                name=source.name,
                bytes=source.path.stat().st_size,
                sha256=file_sha256(source.path),
                rows=reading.rows_of[source.number],
                first_line=first_line,
                lines=count,
            )
            for source, count, first_line in zip(self._sources, lines, first_lines, strict=False)
        ]
        begin_state(out)
        create_log(out, mapping.feature_schema)
        self._warn_of_files(added)
        # Before publishing, so that lost files and unreadable histories can still be restored.
        check_published(out, self._state)
        self._histories.at_end()
        return self._publish(spill, added)

    def _held_tables(self) -> Iterator[pa.Table]:
        """Yields the rows held back earlier, in order of arrival; their files are numbered after the input's."""
        if self._held is None:
            return
        for table in read_state_tables(self._out / FOLDER / self._held.file, REMEDY):
            numbers = np.searchsorted(self._held_numbers, table.column(FILE_COLUMN).to_numpy())
            numbers = (numbers + len(self._sources)).astype(np.int32)
            yield replace_columns(table, **{FILE_COLUMN: numbers})

    def _require_examples(self) -> None:
        rows, rejects = self._reading.rows, self.rejects.rejects
        if len(rejects) != rows:
            return
        names = few([source.name for source in self._sources])
        if not rows:
            raise InputError(f"{self._out}: nothing was added: no row in {names}")
        reason, count = next(iter(reject_reasons(rejects).items()))
        raise InputError(
            f"{self._out}: nothing was added: all {rows} rows of {names} were rejected, most often {reason} "
            f"({count} rows); see {self.rejects.path}"
        )

    def _warn_of_files(self, added: Sequence[InputFile]) -> None:
        """Warns of files without rows, and of files with the same bytes as another, new or old, under another name."""
        if empty := [file.name for file in added if not file.rows]:
            self._warnings.append(f"{len(empty)} of {len(added)} files hold no rows: {few(empty)}")
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
        latest = max(0 if self._held is None else self._held.last_time, self._reading.times.last or 0)
        open_from = latest - self._settings.allowed_lateness_us
        if mapping.query is not None and mapping.query.session is not None:
            open_from -= mapping.query.session.gap_us
        new = [start for start in starts if start not in published]
        held = [start for start in new if self._settings.append and start + length > open_from]
        due = [start for start in new if start not in held]
        self._reject_closed(spill, [start for start in starts if start in published])
        staged: list[Manifest] = []

        try:
            for start, (table, duplicates) in work_ahead(
                lambda start: sorted_once(spill.pop(start)), due, 1, 1
            ):
                staged.append(stage(out, mapping, start, table, self._histories))
                self.rejects.add(duplicates)
                # Duplicates may lie among the input's rows and the held rows.
                self.rejects.check(self._reading.rows + self._held_before)
            self._warn_of_order(staged, published)
            change = {
                "inputs": (*self._state.inputs, *added),
                "publishing": tuple(staged),
                "held": self._hold(spill, held, added, latest),
                "rules": rules_of(mapping),
            }
            # Once it is committed, an ingest that is killed does not read its files again.
            self.rejects.write()
            self._state = commit(out, self._state.model_copy(update=change))
            self._histories.save()
        finally:
            self._remove_leftovers(due, staged)
        return staged

    def _remove_leftovers(self, due: Sequence[int], staged: Sequence[Manifest]) -> None:
        """Deletes files of due partitions, left by this or a killed ingest, that no manifest names.

        If later partitions are published, readers would consider the manifests of such shards lost.
        """
        out, published = self._out, list_partitions(self._out)
        manifests = [*self._completed, *read_state(out).publishing]
        manifests += [manifest for manifest in staged if (manifest.start, manifest.end) in published]
        named = {out / "shards" / shard.file for manifest in manifests for shard in manifest.shards}
        named |= {values_path(out, part.name, part.values) for part in manifests if part.values is not None}
        starts = (*due, *(manifest.start for manifest in self._completed))
        stems = tuple(partition_name(start, start + self._mapping.partition_us) for start in starts)
        for folder in (out / "shards", out / VALUES):
            for path in (folder / name for name in names_in(folder, "")):
                if path not in named and path.name.startswith(stems):
                    path.unlink(missing_ok=True)
        for folder in (out / "manifests", out / "rejects"):
            remove_temporaries(folder)

    def _reject_closed(self, spill: PartitionSpill, starts: Sequence[int]) -> None:
        """Rejects the rows of published partitions. Raises InputError if there are too many."""
        closed = []
        for start in starts:
            table, duplicates = sorted_once(spill.pop(start))
            self.rejects.add(duplicates)
            closed.append(table.select([FILE_COLUMN, ROW_COLUMN, "query_time"]))
        if not closed:
            return
        rows, total = pa.concat_tables(closed), self._reading.rows
        text = closed_text(rows, total, self.rejects.names, self._mapping.partition_us)
        if rows.num_rows > self._settings.max_reject_share * total:
            raise InputError(
                f"{self._out}: nothing was added: {text}",
                "ingest these files and those before them into a new output directory, in one command or in order of "
                "time with --append (and --allowed-lateness DURATION for rows that come late)",
            )
        times = map(format_time, rows.column("query_time").to_pylist())
        allowed = "times in partitions that are not published"
        self.rejects.add(reject_rows(rows, "partition", "already published", times, allowed))
        self._warnings.append(f"{text}; they were rejected; for more files use --append")
        self.rejects.check(total)
        self._require_examples()

    def _hold(
        self, spill: PartitionSpill, starts: Sequence[int], added: Sequence[InputFile], last_time: int
    ) -> HeldRows | None:
        """Stores the rows of open partitions; held rows that were not read stay unchanged."""
        before = self._state.held
        if not starts:
            return before if self._held is None else None
        file = f"held-{digest_of(before.file if before else '', *(file.sha256 for file in added))}.arrow"
        numbers: set[int] = set()

        def tables() -> Iterator[pa.Table]:
            for start in starts:
                table = spill.pop(start)
                if self._mapping.query is not None:
                    # In their state before grouping: held rows are grouped again.
                    groups, times = (table.column(name).to_numpy() for name in (GROUP_COLUMN, "timestamp"))
                    table = table.drop_columns([GROUP_COLUMN])
                    table = replace_columns(table, query_id=groups, query_time=times)
                numbers.update(np.unique(table.column(FILE_COLUMN).to_numpy()).tolist())
                yield table

        path = self._out / FOLDER / file
        self._held_rows = write_state_tables(path, spill_schema(self._mapping), tables())
        names = {str(number): self.rejects.names[number] for number in sorted(numbers)}
        return HeldRows(
            file=file, rows=self._held_rows, inputs=names, last_time=last_time, partitions=tuple(starts)
        )

    def _warn_of_order(self, staged: Sequence[Manifest], published: set[int]) -> None:
        """Warns of a gap before the new rows, and of partitions that are added after later ones."""
        before, first = self._last_before, self._reading.times.first
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

    def result(self, manifests: Sequence[Manifest], seconds: float) -> IngestResult:
        """Returns the counts of the ingest; raises RuntimeError when rows were lost."""
        rows, rejected = self._reading.rows, len(self.rejects.rejects)
        examples = sum(manifest.rows for manifest in manifests)
        held = self._state.held
        if rows + self._held_before != examples + rejected + self._held_rows:
            raise RuntimeError(
                f"{rows} rows were read and {self._held_before} were kept unpublished before, but "
                f"{examples} published, {rejected} rejected and {self._held_rows} kept unpublished"
            )
        for join in self._mapping.joins if self._sources else ():
            # Their values are used for any time, also before they were valid.
            if join.valid_from is None:
                self._warnings.append(
                    f"the side table {join.file} has no times: rows of the past get its present values too; if "
                    "values change, give it a row for each, and the join valid_from: COLUMN"
                )
        self._warnings += self._reading.times.warnings(rows - rejected)
        shards = [shard for manifest in manifests for shard in manifest.shards]
        published = list_partitions(self._out)
        length = self._mapping.partition_us
        return IngestResult(
            rows=rows,
            examples=examples,
            queries=sum(manifest.queries for manifest in manifests),
            clicks=None if self._mapping.label is None else sum(manifest.clicks for manifest in manifests),
            rejected=rejected,
            reject_reasons=reject_reasons(self.rejects.rejects),
            rejects_file=self.rejects.path if rejected else None,
            partitions=[(manifest.start, manifest.end) for manifest in manifests],
            first_time_us=shards[0].first_query_time if shards else None,
            last_time_us=shards[-1].last_query_time if shards else None,
            held_rows=0 if held is None else held.rows,
            held_partitions=[] if held is None else [(start, start + length) for start in held.partitions],
            closed_until_us=published[-1][1] if published else None,
            known_files=self._ingested,
            warnings=self._warnings,
            seconds={"total": seconds},
        )
