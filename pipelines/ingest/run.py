"""Raw files to an example log: read, check, transform, set down by partition, sort, publish.

One mechanism for any order of the input. Rows are spilled by the partition of their query time, and when
the input has ended every partition is loaded, sorted and published, in order of time. So memory is bounded
by the largest partition, disk by the log, and the log does not depend on the order of the input or on how
it was cut into chunks. Where rows are grouped (a query column, sessions) query times are known only at
the end: rows are first set down in order of arrival, and the group and time of each stay in memory.

A partition that is published is closed. For files that come one after another the rows of the partitions that
may still get some are held back inside the log's folder (``ctr.pipelines.ingest.state``) and taken together with
the next files' rows, so that the log is that of one ingest of all files.

An ingest happens at one moment: one that was killed before is simply run again, one that was killed after is
completed by the next, and a file that is in the log is not added again.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.log import (
    Manifest,
    check_log,
    check_no_overlap,
    create_log,
    list_intervals,
    parse_manifest,
)
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.io.files import file_sha256, is_temporary
from ctr.pipelines.ingest.example_reader import ExampleReader, TimesFound, timed
from ctr.pipelines.ingest.examples import FILE_COLUMN, spill_schema
from ctr.pipelines.ingest.partitions import (
    ClosedRows,
    as_read,
    iso,
    published_again,
    sorted_partitions,
    spill_rows,
    stage,
)
from ctr.pipelines.ingest.repeats import Repeats
from ctr.pipelines.ingest.state import (
    Commit,
    HeldRows,
    IngestState,
    InputFile,
    check_anything_to_do,
    commit,
    digest_of,
    finish_publishing,
    manifest_sha256,
    only_ingest,
    read_blocks,
    read_held,
    read_state,
    write_blocks,
    write_held,
)
from ctr.pipelines.rows.rejects import RejectLog, check_reject_share
from ctr.pipelines.rows.sources import SourceFile, mapped_files
from ctr.pipelines.spill import IntervalSpill, spill_folder

BLOCK_BYTES = 16 << 20
"""Bytes of an input file that are read, checked and transformed at a time."""

EARLY_US = 946_684_800_000_000
"""2000-01-01: what lies before it is more often a wrong unit of time than a log."""

_STAGES = ("read", "transform", "spill", "sort", "publish")
_WARNED_SHARE = 0.01


@dataclass(frozen=True)
class IngestResult:
    """What an ingest did.

    Attributes:
        rows: rows of the input that were read.
        examples: rows in the partitions that it published, those that were held back before among them.
        queries: groups of rows that share a query.
        clicks: examples with label 1.
        rejected: rows set aside.
        reject_reasons: their number by ``key: reason``, the most frequent first.
        rejects_file: where each of them is described; None when there are none.
        partitions: the published partitions (start, end) of query time, in microseconds.
        first_time_us: the earliest query time, None where nothing was published.
        last_time_us: the latest query time.
        held_rows: rows that are held back until later ones come.
        held_partitions: their partitions (start, end).
        closed_until_us: before this query time the log takes no more rows, but in partitions without any.
        known_files: files of the input that were in the log before; they were not added again.
        known_rows: rows of theirs that were read, and are in partitions with rows of other files.
        repeated_rows: rows whose content was read before, in another file or earlier in the same one.
        repeated_share: of the rows that were read.
        warnings: what may be wrong, a line each.
        seconds: how long each stage was busy; stages overlap.
    """

    rows: int
    examples: int
    queries: int
    clicks: int
    rejected: int
    reject_reasons: dict[str, int]
    rejects_file: Path | None
    partitions: list[tuple[int, int]]
    first_time_us: int | None
    last_time_us: int | None
    held_rows: int
    held_partitions: list[tuple[int, int]]
    closed_until_us: int | None
    known_files: list[str]
    known_rows: int
    repeated_rows: int
    repeated_share: float
    warnings: list[str]
    seconds: dict[str, float]

    def as_text(self) -> str:
        """In a line, followed by what is held back, the reasons of rejects, and warnings."""
        text = f"{self.examples} examples, {self.queries} queries, {self.clicks} clicks"
        text += f", {len(self.partitions)} partitions, {self.seconds['total']:.1f} s"
        if self.known_files:
            shown = ", ".join(self.known_files[:3]) + (", ..." if len(self.known_files) > 3 else "")
            text += (
                f"\n{len(self.known_files)} files are in the log already and were not added again: {shown}"
            )
        if self.held_rows:
            start, end = self.held_partitions[0][0], self.held_partitions[-1][1]
            text += (
                f"\n{self.held_rows} rows of [{iso(start)}, {iso(end)}) are held back, as --append asks, until later "
                "rows come; ctr ingest without files and without --append publishes them"
            )
        elif self.closed_until_us is not None:
            text += (
                f"\nclosed until {iso(self.closed_until_us)}: rows before that time are no longer accepted; "
                "--append keeps the last partition open for files to come"
            )
        if self.rejected:
            # Without new files, duplicates among the rows that were held back.
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
    max_reject_share: float = 0.01,
    progress: Callable[[int], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
    now_us: int | None = None,
) -> IngestResult:
    """Publishes the examples of the input files as the log ``out``, which may hold other partitions.

    Args:
        mapping: how the files become examples.
        inputs: files and folders, in the order in which their rows count as arriving. None, and not ``append``:
            what is held back is published.
        out: the log's folder.
        append: more files will come: the rows of partitions that may still get some are held back.
        allowed_lateness_us: a partition may get rows until one comes that is later than its end by this much (and by
            the gap of sessions), in microseconds.
        max_reject_share: the job stops when a larger share of rows, in [0, 1], is rejected.
        progress: called with the number of rows read since its last call.
        block_bytes: how much of a file is handled at a time; it changes nothing in the log.
        now_us: query times from here on are warned of, in microseconds; None: the time of the machine's clock.

    Raises:
        InputError: no input or no example in it, a missing column, a damaged file, too many rejects, a log of another
            schema, or rows of partitions that are closed.
    """
    started = time.perf_counter()
    check_reject_share(max_reject_share)
    sources = mapped_files(mapping, inputs) if inputs else []
    check_log(out, mapping.feature_schema)
    check_anything_to_do(out, bool(sources), append)
    with spill_folder(out) as folder:
        work = _Ingest(mapping, sources, out, append, allowed_lateness_us, max_reject_share, now_us)
        try:
            work.run(folder, progress, block_bytes)
        finally:
            work.write_rejects()
    work.seconds["total"] = time.perf_counter() - started
    return work.result()


def _names_digest(sources: Sequence[SourceFile], held: Sequence[str]) -> str:
    """Names the rejects of these inputs and held rows, so that those of another day's ingest into the log stay."""
    names = [*(source.name for source in sources), *held]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


class _Ingest:
    """One ingest, from the files that it is given to what it has done."""

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
        with only_ingest(out):
            self._state = finish_publishing(out, read_state(out))
        known = {source.number: file for source in given if (file := _known(self._state, source)) is not None}
        self._known_files = [file.name for file in known.values()]
        # Files that are all in the log are read to see that it has them; beside new ones they are left out.
        self._again = bool(known) and len(known) == len(given)
        new = [source for source in given if source.number not in known]
        self._sources = list(given) if self._again else [replace(s, number=n) for n, s in enumerate(new)]
        self._first_lines = [known[source.number].first_line for source in given] if self._again else None
        self._held = None if self._again and append else self._state.held
        self._refuse_changed_files()
        # The files of rows that were held back have numbers behind those of the input's.
        held_files = {} if self._held is None else self._held.inputs
        self._held_numbers = np.array(sorted(int(number) for number in held_files), np.int64)
        names = [source.name for source in self._sources]
        names += [held_files[str(number)] for number in self._held_numbers.tolist()]
        self._rejects = RejectLog(names, max_reject_share)
        # Where no file is new, what is rejected is among the rows that were held back.
        alone = [] if self._held is None or (self._sources and not self._again) else [self._held.file]
        self._rejects_path = out / "rejects" / f"{_names_digest(self._sources, alone)}.jsonl"
        now = time.time_ns() // 1000 if now_us is None else now_us
        self._times = TimesFound(EARLY_US, now)
        self._last_before = self._last_time()
        self._inputs_before = len(self._state.inputs)
        self.seconds = dict.fromkeys(_STAGES, 0.0)
        self._repeats: Repeats | None = None
        self._manifests: list[Manifest] = []
        self._warnings: list[str] = []
        self._known_rows = self._rows = 0

    def _refuse_changed_files(self) -> None:
        """Under ``row_order`` a file that changed would be added behind itself, with other times."""
        if self._mapping.time.row_order is None or not self._continues or self._again:
            return
        for name in self._changed:
            raise InputError(
                f"input {name}: a file of this name with other content is in {self._out} already, and rows without a "
                "time are identified by the names of their files: rename it, or use another output directory"
            )

    @property
    def _changed(self) -> list[str]:
        """The names of files that were added before with other content."""
        names = set() if self._again else {file.name for file in self._state.inputs}
        return [source.name for source in self._sources if source.name in names]

    @property
    def _continues(self) -> bool:
        """Whether the lines of new files count from the end of those before."""
        beside_known = bool(self._known_files) and not self._again
        return self._append or self._state.held is not None or beside_known

    @property
    def _merged_rows(self) -> int:
        """Rows of the input and rows that were held back: duplicates are found among both."""
        return self._rows + (0 if self._held is None else self._held.rows)

    def _last_time(self) -> int | None:
        """The latest time of the log before this ingest."""
        if self._state.held is not None:
            return self._state.held.last_time
        intervals = list_intervals(self._out)
        if not intervals:
            return None
        path = self._out / "manifests" / f"{intervals[-1][0]:019d}-{intervals[-1][1]:019d}.json"
        shards = parse_manifest(path.read_bytes(), str(path)).shards
        return shards[-1].last_query_time if shards else None

    def run(self, folder: Path, progress: Callable[[int], None] | None, block_bytes: int) -> None:
        """Reads, sorts and publishes."""
        mapping, new = self._mapping, not self._again
        if new:
            self._repeats = Repeats(read_blocks(self._out, self._state), len(self._state.inputs))
        reading = ExampleReader(
            mapping,
            self._sources,
            self._rejects,
            self._times,
            self._repeats,
            progress,
            block_bytes,
            self.seconds,
            self._state.lines if self._continues else 0,
            self._first_lines,
        )
        with ExitStack() as stack:
            hashing = ThreadPoolExecutor(1, "ingest-hash")
            stack.callback(hashing.shutdown, cancel_futures=True)
            hashes = [hashing.submit(file_sha256, source.path) for source in self._sources if new]
            held = self._held_tables()
            read = spill_rows(
                mapping, reading if self._again else _chain(held, reading), folder / "rows", self.seconds
            )
            merged = spill_rows(mapping, held, folder / "held", self.seconds) if self._again else read
            self._rows = reading.rows
            self._rejects.check(self._rows)
            if self._sources and len(self._rejects.rejects) == self._rows:
                raise InputError(self._no_example())
            inputs = [
                InputFile(
                    name=source.name,
                    bytes=source.path.stat().st_size,
                    sha256=sha256.result(),
                    rows=reading.rows_of[source.number],
                    first_line=reading.lines_of[source.number][0],
                    lines=reading.lines_of[source.number][1],
                )
                for source, sha256 in zip(self._sources, hashes, strict=False)
            ]
        create_log(self._out, mapping.feature_schema)
        with only_ingest(self._out):
            self._refresh(inputs)
            restored = self._compare(read) if self._again else []
            self._publish(merged, inputs, restored)

    def _held_tables(self) -> Iterator[pa.Table]:
        for table in read_held(self._out, self._held):
            place = table.schema.get_field_index(FILE_COLUMN)
            numbers = np.searchsorted(self._held_numbers, table.column(FILE_COLUMN).to_numpy())
            column = pa.array((numbers + len(self._sources)).astype(np.int32))
            yield table.set_column(place, table.schema.field(place), column)

    def _no_example(self) -> str:
        names = ", ".join(source.name for source in self._sources[:3])
        names += ", ..." if len(self._sources) > 3 else ""
        if not self._rows:
            return f"{self._out}: nothing was added: no row in {names}"
        reason, count = next(iter(self._rejects.counts().items()))
        return (
            f"{self._out}: nothing was added: all {self._rows} rows of {names} were rejected, most often {reason} "
            f"({count} rows); see {self._rejects_path}"
        )

    def _refresh(self, inputs: Sequence[InputFile]) -> None:
        """Looks again at what other ingests have done meanwhile."""
        state = finish_publishing(self._out, read_state(self._out))
        added = state.inputs[len(self._state.inputs) :]
        names = {(file.name, file.sha256) for file in inputs}
        if state.held != self._state.held or (added and self._continues):
            raise InputError(f"{self._out}: another ingest has added files meanwhile; run this one again")
        for file in added:
            if (file.name, file.sha256) in names:
                raise InputError(f"{self._out}: another ingest has added {file.name} meanwhile")
        self._state = state

    def _compare(self, read: IntervalSpill) -> list[Manifest]:
        """Compares rows of files that are in the log with what is published; returns what has to be published again."""
        published = set(list_intervals(self._out))
        restored = []
        for start, table, duplicates in sorted_partitions(read, _starts(read), self.seconds):
            interval = (start, start + self._mapping.partition_us)
            with timed(self.seconds, "publish"):
                manifest = None
                if interval in published:
                    manifest = published_again(self._out, self._mapping, start, table)
                elif recorded := self._state.published.get(f"{start:019d}-{interval[1]:019d}"):
                    planned = stage(self._out, self._mapping, start, table, write=False)
                    if manifest_sha256(planned) == recorded:
                        manifest = stage(self._out, self._mapping, start, table)
                        restored.append(manifest)
                if manifest is None:
                    self._known_rows += table.num_rows + len(duplicates)
                    continue
                self._rejects.add(duplicates)
                if interval in published:
                    self._manifests.append(manifest)
        return restored

    def _publish(
        self, merged: IntervalSpill, inputs: Sequence[InputFile], restored: Sequence[Manifest]
    ) -> None:
        """Publishes all partitions of new and held rows but those that stay open, whose rows it holds back."""
        mapping, out = self._mapping, self._out
        starts, published = _starts(merged), {start for start, _ in list_intervals(out)}
        length = mapping.partition_us
        for start in starts:
            check_no_overlap(out, start, start + length)
        latest: list[int] = [] if self._held is None else [self._held.last_time]
        latest += [] if self._times.last is None else [self._times.last]
        open_from = max(latest, default=0) - self._open_us
        held = [s for s in starts if self._append and s not in published and s + length > open_from]
        closed = ClosedRows(self._rejects.names, length)
        there = [start for start in starts if start in published]
        for start, table, duplicates in sorted_partitions(merged, there, self.seconds):
            with timed(self.seconds, "publish"):
                self._rejects.add(duplicates)
                manifest = published_again(out, mapping, start, table)
                if manifest is None:
                    closed.add(table)
                else:
                    self._manifests.append(manifest)
        if closed.count:
            closed.reject(self._rejects, self._rows, out, self._changed)
            self._warnings.append(
                f"{closed.describe(self._rows)}; they were rejected. --append holds partitions open"
            )
            self._rejects.check(self._rows)
            if self._sources and not self._again and len(self._rejects.rejects) == self._rows:
                raise InputError(self._no_example())
        staged = list(restored)
        due = [start for start in starts if start not in published and start not in held]
        with self._leaving_no_shards(due):
            for start, table, duplicates in sorted_partitions(merged, due, self.seconds):
                with timed(self.seconds, "publish"):
                    self._rejects.add(duplicates)
                    self._rejects.check(self._merged_rows)
                    staged.append(stage(out, mapping, start, table))
            self._warn_of_order(staged, published)
            with timed(self.seconds, "publish"):
                change = self._set_down(merged, inputs, staged, held, max(latest, default=0))
        with timed(self.seconds, "publish"):
            self._state = commit(out, self._state, change)
        self._manifests = sorted([*self._manifests, *staged], key=lambda manifest: manifest.start)
        self._remove_leftovers()

    @contextmanager
    def _leaving_no_shards(self, starts: Sequence[int]) -> Iterator[None]:
        """Deletes the new shards of these partitions where the block fails.

        Without a manifest, and before partitions that are published, readers would take their manifests for lost.
        """
        before = {path.name for path in (self._out / "shards").glob("*")}
        try:
            yield
        except BaseException:
            stems = tuple(f"{start:019d}-{start + self._mapping.partition_us:019d}" for start in starts)
            for path in (self._out / "shards").glob("*"):
                if path.name not in before and path.name.startswith(stems):
                    path.unlink(missing_ok=True)
            raise

    def _set_down(
        self,
        merged: IntervalSpill,
        inputs: Sequence[InputFile],
        staged: Sequence[Manifest],
        open_starts: Sequence[int],
        last_time: int,
    ) -> Commit:
        """Sets down what is held back and remembered; returns what makes it, and the staged partitions, hold."""
        out, state = self._out, self._state
        held = state.held if self._again and self._append else None
        if open_starts:
            parts = [state.held.file if state.held else "", *(file.sha256 for file in inputs)]
            held = self._hold(merged, open_starts, f"held-{digest_of(*parts)}.arrow", last_time)
        blocks = None
        if self._repeats is not None and self._repeats.new:
            # Where files were added meanwhile those of this ingest have later numbers.
            later = len(state.inputs) - self._inputs_before
            blocks = f"blocks-{digest_of(*(file.sha256 for file in inputs), str(len(state.inputs)))}.npy"
            write_blocks(out, blocks, [(value, number + later) for value, number in self._repeats.new])
        return Commit(inputs, staged, held, blocks)

    def _hold(self, merged: IntervalSpill, starts: Sequence[int], file: str, last_time: int) -> HeldRows:
        numbers: set[int] = set()

        def tables() -> Iterator[pa.Table]:
            for start in starts:
                table = as_read(self._mapping, merged.take(start))
                numbers.update(np.unique(table.column(FILE_COLUMN).to_numpy()).tolist())
                yield table

        rows = write_held(self._out, file, spill_schema(self._mapping.feature_schema), tables())
        names = {str(number): self._rejects.names[number] for number in sorted(numbers)}
        return HeldRows(file=file, rows=rows, inputs=names, last_time=last_time, partitions=tuple(starts))

    def _remove_leftovers(self) -> None:
        """Deletes what killed runs have left of the files and partitions that this run has written.

        Of no others, since another publisher may be writing them right now.
        """
        shards = {shard.file for manifest in self._manifests for shard in manifest.shards}
        names = {manifest.name for manifest in self._manifests}
        for path in (self._out / "shards").glob("*"):
            if path.name not in shards and path.name[: len(next(iter(names), ""))] in names:
                path.unlink(missing_ok=True)
        for folder in (self._out / "manifests", self._out / "rejects"):
            for path in folder.glob("*"):
                if is_temporary(path) and any(
                    path.name.startswith(n) for n in {*names, self._rejects_path.name}
                ):
                    path.unlink(missing_ok=True)

    def _warn_of_order(self, staged: Sequence[Manifest], published: set[int]) -> None:
        """Warns of a hole before the new rows, and of partitions that come after later ones."""
        before, first = self._last_before, self._times.first
        gap = None if before is None or first is None or self._again else first - before
        if before is not None and first is not None and gap is not None and gap > self._mapping.partition_us:
            self._warnings.append(
                f"no row between {iso(before)}, where the log ended, and {iso(first)}: if a file is missing, its rows "
                "may fall into partitions that are closed now"
            )
        early = [manifest for manifest in staged if published and manifest.start < max(published)]
        if early:
            self._warnings.append(
                f"{len(early)} partitions, from {iso(early[0].start)} on, came after later ones: a run that has read "
                "those refuses to continue with this log"
            )

    def write_rejects(self) -> None:
        """Describes what was rejected, unless the same files were described when they were added."""
        if not (self._again and self._rejects_path.exists()):
            self._rejects.write(self._rejects_path)

    def result(self) -> IngestResult:
        """What was done; raises RuntimeError when rows were lost on the way."""
        manifests, rejected = self._manifests, len(self._rejects.rejects)
        examples = sum(manifest.rows for manifest in manifests)
        held_before = 0 if self._held is None else self._held.rows
        held = self._state.held
        held_now = 0 if held is None or (self._again and self._append) else held.rows
        if self._rows + held_before != examples + rejected + self._known_rows + held_now:
            raise RuntimeError(
                f"{self._rows} rows were read and {held_before} were held back before, but {examples} published, "
                f"{rejected} rejected, {held_now} held back and {self._known_rows} known"
            )
        shards = [shard for manifest in manifests for shard in manifest.shards]
        repeated = sum(self._repeats.repeated.values()) if self._repeats is not None else 0
        published = list_intervals(self._out)
        length = self._mapping.partition_us
        return IngestResult(
            rows=self._rows,
            examples=examples,
            queries=sum(manifest.queries for manifest in manifests),
            clicks=sum(manifest.clicks for manifest in manifests),
            rejected=rejected,
            reject_reasons=self._rejects.counts(),
            rejects_file=self._rejects_path if rejected else None,
            partitions=[(manifest.start, manifest.end) for manifest in manifests],
            first_time_us=shards[0].first_query_time if shards else None,
            last_time_us=shards[-1].last_query_time if shards else None,
            held_rows=0 if held is None else held.rows,
            held_partitions=[] if held is None else [(start, start + length) for start in held.partitions],
            closed_until_us=published[-1][1] if published else None,
            known_files=self._known_files,
            known_rows=self._known_rows,
            repeated_rows=repeated,
            repeated_share=repeated / self._rows if self._rows else 0.0,
            warnings=[*self._warnings, *self._warnings_of_content(repeated)],
            seconds=self.seconds,
        )

    def _warnings_of_content(self, repeated: int) -> Iterator[str]:
        """Warns of rows that were seen before and of times that are unlikely."""
        if self._repeats is not None and repeated > _WARNED_SHARE * self._rows:
            names = [file.name for file in self._state.inputs[: self._inputs_before]]
            names += [source.name for source in self._sources]
            pairs = [
                f"{names[file]} repeats {count} rows of {names[other] if other != file else 'itself'}"
                for (file, other), count in self._repeats.repeated.most_common(3)
            ]
            yield (
                f"{repeated} of {self._rows} rows ({repeated / self._rows:.0%}) were seen before: {', '.join(pairs)}. "
                "They count again: leave copies out and use a new output directory, unless the repetition is intended"
            )
        times = self._times
        good = self._rows - len(self._rejects.rejects)
        if times.before and times.first is not None:
            yield (
                f"{times.before} of {good} times lie before the year 2000, the earliest at {iso(times.first)}: "
                "if that is wrong, check time.unit or time.format of the mapping"
            )
        if times.after and times.last is not None:
            yield (
                f"{times.after} of {good} times lie in the future, the latest at {iso(times.last)}: "
                "if that is wrong, check time.unit or time.format of the mapping"
            )


def _known(state: IngestState, source: SourceFile) -> InputFile | None:
    """The file as it was added to the log before; None: it was not, or it has changed."""
    size = source.path.stat().st_size
    alike = [file for file in state.inputs if (file.name, file.bytes) == (source.name, size)]
    sha256 = file_sha256(source.path) if alike else ""
    return next((file for file in alike if file.sha256 == sha256), None)


def _starts(spill: IntervalSpill) -> list[int]:
    return [start for start, _ in spill.intervals()]


def _chain(held: Iterator[pa.Table], reading: ExampleReader) -> Iterator[pa.Table]:
    yield from held
    yield from reading
