"""Ingests raw files to an example log: read, check, transform, spill by partition, sort, publish.

The input may have any order. Rows are spilled by the partition of their query time, and when the input has ended every
partition is loaded, sorted and published, in order of time. So memory is bounded by the largest partition, disk by the
log, and the log does not depend on the order of the input or on its chunks. If rows are grouped (by a query column or
as sessions), query times are known only at the end: rows are first stored in order of arrival, and the group and time
of each stay in memory.

A partition that is published is closed. For files that come one after another, the rows of the open partitions are held
back inside the log's folder (``ctr.pipelines.ingest.state``) and merged with the rows of the next files, so that the
log is that of one ingest of all files.

An ingest is committed at one moment: one that was killed before is run again, one that was killed after is completed by
the next, and a file that is in the log is not added again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.history_state import Histories
from ctr.data.log import (
    Manifest,
    check_no_overlap,
    create_log,
    list_partitions,
    publish_manifest,
)
from ctr.data.mapping import Mapping
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.io.files import file_sha256
from ctr.pipelines.ingest.examples import (
    FILE_COLUMN,
    ROW_COLUMN,
    Reading,
    TimesFound,
    make_chunks,
    spill_schema,
    take_examples,
    timed,
    timed_each,
    timeless_joins,
)
from ctr.pipelines.ingest.parallel import (
    Processes,
    check_workers,
    processes,
    read_in_processes,
    stage_in_processes,
)
from ctr.pipelines.ingest.partitions import (
    closed_rejects,
    closed_text,
    find_published,
    new_shards_removed_on_failure,
    remove_leftovers,
    replace_columns,
    sorted_partitions,
    spill_rows,
    stage,
    ungrouped,
)
from ctr.pipelines.ingest.repeats import Repeats
from ctr.pipelines.ingest.result import IngestResult, few
from ctr.pipelines.ingest.state import (
    HeldRows,
    IngestState,
    InputFile,
    begin_state,
    check_published,
    check_rules,
    commit,
    compare_inputs,
    digest_of,
    finish_publishing,
    ingest_lock,
    input_files,
    label_text,
    last_time,
    manifest_sha256,
    read_blocks,
    read_held,
    read_state,
    rules_of,
    write_blocks,
    write_held,
)
from ctr.pipelines.rows.rejects import MAX_REJECT_SHARE, Reject, RejectLog, check_reject_share, reject_reasons
from ctr.pipelines.rows.sources import SourceFile
from ctr.pipelines.spill import PartitionSpill, spill_folder

BLOCK_BYTES = 16 << 20  # of an input file that are read, checked and transformed at a time
EARLY_US = 631_152_000_000_000  # 1990-01-01: an earlier time is more often a wrong unit of time than a log

_STAGES = ("read", "transform", "spill", "sort", "publish")


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
    workers: int = 1,
) -> IngestResult:
    """Publishes the examples of the input files as the log ``out``, which may hold other partitions.

    Rows of the inputs count as arriving in their order; without any, and without ``append``, what is held back is
    published. With ``append`` more files will come: the rows of partitions that may still get some are held back, until
    one comes that is later than the end of the partition by the allowed lateness (and the gap of sessions).

    Query times from ``now_us`` on are warned of; None: the time of the machine's clock. ``progress`` is called with the
    number of rows read since its last call; ``block_bytes`` change nothing in the log, nor does the number of
    ``workers``, processes that read files, and write partitions, side by side. Raises InputError: no input or
    no example in it, a missing column, a damaged file, too many rejects, a log of another schema, or rows of partitions
    that are closed.
    """
    started = time.perf_counter()
    check_reject_share(max_reject_share)
    check_workers(mapping, workers)
    sources = input_files(out, mapping, inputs, append)
    with spill_folder(out) as folder:
        work = _Ingest(mapping, sources, out, append, allowed_lateness_us, max_reject_share, now_us)
        try:
            with processes(workers) if workers > 1 else nullcontext() as pool:
                work.run(folder, progress, block_bytes, pool)
        finally:
            work.write_rejects()
    work.seconds["total"] = time.perf_counter() - started
    return work.result()


class _Ingest:
    def __init__(
        self,
        mapping: Mapping,
        given: Sequence[SourceFile],
        out: Path,
        append: bool,
        lateness_us: int,
        max_reject_share: float,
        now_us: int | None,
    ) -> None:
        self._mapping, self._out, self._append = mapping, out, append
        session = None if mapping.query is None else mapping.query.session
        self._open_us = lateness_us + (0 if session is None else session.gap_us)
        with ingest_lock(out):
            self._state = finish_publishing(out, read_state(out))
        check_rules(out, self._state, rules_of(mapping))
        self._inputs = compare_inputs(given, self._state, append)
        self._refuse_changed_files()
        self._rejects = RejectLog(self._inputs.names, max_reject_share)
        self._rejects_path = self._inputs.rejects_path(out)
        self._times = TimesFound(EARLY_US, time.time_ns() // 1000 if now_us is None else now_us)
        self._last_before = last_time(out, self._state)
        self._inputs_before = len(self._state.inputs)
        self.seconds = dict.fromkeys(_STAGES, 0.0)
        self._repeats: Repeats | None = None
        self._histories = Histories(out, mapping.feature_schema, checked=False)
        self._manifests: list[Manifest] = []
        self._warnings: list[str] = []
        self._known_rows = self._rows = 0

    def _refuse_changed_files(self) -> None:
        # Most of its rows would be added again, or fall into partitions that are published.
        if changed := self._inputs.changed:
            raise InputError(
                f"input {few(changed)}: {self._out} has a file of this name with other content, and a published "
                "partition never changes; nothing was added",
                "give the rows that are missing in a file of another name, or ingest all files into another output "
                "directory",
            )

    def run(
        self,
        folder: Path,
        progress: Callable[[int], None] | None,
        block_bytes: int,
        pool: Processes | None,
    ) -> None:
        mapping, inputs = self._mapping, self._inputs
        if not inputs.again:
            self._repeats = Repeats(read_blocks(self._out, self._state), len(self._state.inputs))
        reading = Reading(self._rejects, self._times, self._repeats, self.seconds)
        given, hashed = (mapping, inputs.sources, block_bytes), self._repeats is not None
        if pool is None:
            chunks = make_chunks(*given, hashed, self.seconds, inputs.first_line, inputs.first_lines)
        else:
            chunks = read_in_processes(pool, *given, hashed, folder / "read", inputs.first_line)
        tables = take_examples(chunks, reading, progress)
        with ExitStack() as stack:
            hashing = ThreadPoolExecutor(1, "ingest-hash")
            stack.callback(hashing.shutdown, cancel_futures=True)
            new = [] if inputs.again else inputs.sources
            hashes = [hashing.submit(file_sha256, source.path) for source in new]
            held = self._held_tables()
            rows = tables if inputs.again else chain(held, tables)
            read = spill_rows(mapping, rows, folder / "rows", self.seconds)
            merged = spill_rows(mapping, held, folder / "held", self.seconds) if inputs.again else read
            self._rows = reading.rows
            self._rejects.check(self._rows)
            if inputs.sources:
                self._require_examples()
            self._warn_of_empty_files(reading)
            added: list[InputFile] = []
            line = inputs.first_line
            for source, sha256 in zip(inputs.sources, hashes, strict=False):
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
        with ingest_lock(self._out):
            begin_state(self._out)
            create_log(self._out, mapping.feature_schema)
            self._refresh(added)
            if inputs.again:
                self._compare(read)
            # Before anything is published: what is lost, or what histories cannot read, can still be restored.
            check_published(self._out, self._state)
            self._histories.known()
            self._publish(merged, added, pool)

    def _held_tables(self) -> Iterator[pa.Table]:
        """The rows that were held back, their files numbered after those of the input."""
        held_numbers = np.array(list(self._inputs.held_files), np.int64)
        for table in read_held(self._out, self._inputs.held):
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

    def _warn_of_empty_files(self, reading: Reading) -> None:
        empty = [source.name for source in self._inputs.sources if not reading.rows_of[source.number]]
        if empty:
            total = len(self._inputs.sources)
            self._warnings.append(f"{len(empty)} of {total} files hold no rows: {few(empty)}")

    def _refresh(self, inputs: Sequence[InputFile]) -> None:
        """Reads the state again, and refuses what other ingests have added meanwhile if it concerns this one."""
        state = finish_publishing(self._out, read_state(self._out))
        added = state.inputs[len(self._state.inputs) :]
        names = {(file.name, file.sha256) for file in inputs}
        if state.held != self._state.held or (added and self._inputs.continues):
            raise InputError(f"{self._out}: another ingest has added files meanwhile; run this one again")
        for file in added:
            if (file.name, file.sha256) in names:
                raise InputError(f"{self._out}: another ingest has added {file.name} meanwhile")
        self._state = state

    def _compare(self, read: PartitionSpill) -> None:
        """Compares the rows of known files with the published partitions, and publishes those again that are lost."""
        published = set(list_partitions(self._out))
        for start, table, duplicates in sorted_partitions(read, read.starts(), self.seconds):
            partition = (start, start + self._mapping.partition_us)
            with timed(self.seconds, "publish"):
                manifest = None
                if partition in published:
                    manifest = find_published(self._out, self._mapping, self._histories, start, table)
                elif recorded := self._state.published.get(f"{start:019d}-{partition[1]:019d}"):
                    planned = stage(self._out, self._mapping, self._histories, start, table, write=False)
                    if manifest_sha256(planned) == recorded:
                        manifest = stage(self._out, self._mapping, self._histories, start, table)
                        publish_manifest(self._out, manifest)
                if manifest is None:
                    self._known_rows += table.num_rows + len(duplicates)
                else:
                    self._manifests.append(manifest)
                    self._rejects.add(duplicates)

    def _publish(self, merged: PartitionSpill, added: Sequence[InputFile], pool: Processes | None) -> None:
        """Publishes all partitions of new and held rows but those that stay open, whose rows it holds back."""
        mapping, out = self._mapping, self._out
        starts, published = merged.starts(), {start for start, _ in list_partitions(out)}
        length = mapping.partition_us
        for start in starts:
            check_no_overlap(out, start, start + length)
        held_before = self._inputs.held
        latest: list[int] = [] if held_before is None else [held_before.last_time]
        latest += [] if self._times.last is None else [self._times.last]
        open_from = max(latest, default=0) - self._open_us
        held = [s for s in starts if self._append and s not in published and s + length > open_from]
        self._publish_again(merged, [start for start in starts if start in published])
        # Duplicates are found among the rows of the input and those that were held back.
        merged_rows = self._rows + (0 if held_before is None else held_before.rows)
        staged: list[Manifest] = []
        due = [start for start in starts if start not in published and start not in held]
        with new_shards_removed_on_failure(out, mapping, due):
            for manifest, duplicates in self._staged(merged, due, pool):
                self._rejects.add(duplicates)
                self._rejects.check(merged_rows)
                staged.append(manifest)
            self._warn_of_order(staged, published)
            with timed(self.seconds, "publish"):
                change = self._store(merged, added, staged, held, max(latest, default=0))
        with timed(self.seconds, "publish"):
            self._state = commit(out, change)
            self._histories.save()
        self._manifests = sorted([*self._manifests, *staged], key=lambda manifest: manifest.start)
        remove_leftovers(out, self._manifests, self._rejects_path)

    def _staged(
        self, merged: PartitionSpill, due: Sequence[int], pool: Processes | None
    ) -> Iterator[tuple[Manifest, list[Reject]]]:
        """Stages partitions, in order; yields their manifests and duplicates."""
        if pool is not None and not self._mapping.feature_schema.histories:
            yield from timed_each(
                stage_in_processes(pool, self._out, self._mapping, merged, due), self.seconds, "publish"
            )
            return
        for start, table, duplicates in sorted_partitions(merged, due, self.seconds):
            with timed(self.seconds, "publish"):
                manifest = stage(self._out, self._mapping, self._histories, start, table)
            yield manifest, duplicates

    def _publish_again(self, merged: PartitionSpill, starts: Sequence[int]) -> None:
        """Recognizes published partitions that consist of just these rows, and rejects the rows of all others."""
        out, closed = self._out, []
        for start, table, duplicates in sorted_partitions(merged, starts, self.seconds):
            with timed(self.seconds, "publish"):
                self._rejects.add(duplicates)
                manifest = find_published(out, self._mapping, self._histories, start, table)
                if manifest is None:
                    closed.append(table.select([FILE_COLUMN, ROW_COLUMN, "query_time"]))
                else:
                    self._manifests.append(manifest)
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
        self._rejects.add(closed_rejects(rows))
        self._warnings.append(f"{text}; they were rejected; for more files use --append")
        self._rejects.check(self._rows)
        if self._inputs.sources and not self._inputs.again:
            self._require_examples()

    def _store(
        self,
        merged: PartitionSpill,
        added: Sequence[InputFile],
        staged: Sequence[Manifest],
        open_starts: Sequence[int],
        last_time: int,
    ) -> IngestState:
        """Writes the rows to hold back and the hashes of blocks; returns the state that makes all of it valid."""
        out, state = self._out, self._state
        held = state.held if self._inputs.again and self._append else None
        if open_starts:
            parts = [state.held.file if state.held else "", *(file.sha256 for file in added)]
            held = self._hold(merged, open_starts, f"held-{digest_of(*parts)}.arrow", last_time)
        blocks = list(state.blocks)
        if self._repeats is not None and self._repeats.new:
            # Where files were added meanwhile those of this ingest have later numbers.
            later = len(state.inputs) - self._inputs_before
            blocks.append(f"blocks-{digest_of(*(file.sha256 for file in added), str(len(state.inputs)))}.npy")
            write_blocks(out, blocks[-1], [(value, number + later) for value, number in self._repeats.new])
        change = {
            "inputs": (*state.inputs, *added),
            "publishing": tuple(staged),
            "held": held,
            "blocks": tuple(blocks),
            "rules": rules_of(self._mapping),
            "label": label_text(self._mapping),
        }
        return state.model_copy(update=change)

    def _hold(self, merged: PartitionSpill, starts: Sequence[int], file: str, last_time: int) -> HeldRows:
        numbers: set[int] = set()

        def tables() -> Iterator[pa.Table]:
            for start in starts:
                table = ungrouped(self._mapping, merged.pop(start))
                numbers.update(np.unique(table.column(FILE_COLUMN).to_numpy()).tolist())
                yield table

        rows = write_held(self._out, file, spill_schema(self._mapping), tables())
        names = {str(number): self._rejects.names[number] for number in sorted(numbers)}
        return HeldRows(file=file, rows=rows, inputs=names, last_time=last_time, partitions=tuple(starts))

    def _warn_of_order(self, staged: Sequence[Manifest], published: set[int]) -> None:
        """Warns of a hole before the new rows, and of partitions that come after later ones."""
        before, first = self._last_before, self._times.first
        length, again = self._mapping.partition_us, self._inputs.again
        if before is not None and first is not None and not again and first - before > length:
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
        """Describes what was rejected, unless the same files were described when they were added."""
        if not (self._inputs.again and self._rejects_path.exists()):
            self._rejects.write(self._rejects_path)

    def result(self) -> IngestResult:
        """Counts what was done; raises RuntimeError when rows were lost on the way."""
        manifests, rejected = self._manifests, len(self._rejects.rejects)
        examples = sum(manifest.rows for manifest in manifests)
        held_before = 0 if self._inputs.held is None else self._inputs.held.rows
        held = self._state.held
        held_now = 0 if held is None or (self._inputs.again and self._append) else held.rows
        if self._rows + held_before != examples + rejected + self._known_rows + held_now:
            raise RuntimeError(
                f"{self._rows} rows were read and {held_before} were kept unpublished before, but "
                f"{examples} published, {rejected} rejected, {held_now} kept unpublished and {self._known_rows} known"
            )
        shards = [shard for manifest in manifests for shard in manifest.shards]
        repeated = sum(self._repeats.repeated.values()) if self._repeats is not None else 0
        published = list_partitions(self._out)
        length = self._mapping.partition_us
        return IngestResult(
            rows=self._rows,
            examples=examples,
            queries=sum(manifest.queries for manifest in manifests),
            clicks=sum(manifest.clicks for manifest in manifests),
            rejected=rejected,
            reject_reasons=reject_reasons(self._rejects.rejects),
            rejects_file=self._rejects_path if rejected else None,
            partitions=[(manifest.start, manifest.end) for manifest in manifests],
            first_time_us=shards[0].first_query_time if shards else None,
            last_time_us=shards[-1].last_query_time if shards else None,
            held_rows=0 if held is None else held.rows,
            held_partitions=[] if held is None else [(start, start + length) for start in held.partitions],
            closed_until_us=published[-1][1] if published else None,
            known_files=self._inputs.known,
            known_rows=self._known_rows,
            repeated_rows=repeated,
            repeated_share=repeated / self._rows if self._rows else 0.0,
            warnings=[*self._warnings, *self._content_warnings()],
            seconds=self.seconds,
        )

    def _content_warnings(self) -> Iterator[str]:
        if self._repeats is not None:
            names = [file.name for file in self._state.inputs[: self._inputs_before]]
            yield from self._repeats.warnings([*names, *self._inputs.names], self._rows)
        if self._inputs.sources:
            yield from timeless_joins(self._mapping)
        yield from self._times.warnings(self._rows - len(self._rejects.rejects))
