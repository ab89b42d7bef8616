"""Raw files to an example log: read, check, transform, set down by interval, sort, publish.

One mechanism for any order of the input. Rows are spilled by the interval of their query time, and when
the input has ended every interval is loaded, sorted and published, in order of time. So memory is bounded
by the largest interval, disk by the log, and the log does not depend on the order of the input or on how
it was cut into chunks. Where rows are grouped (a query column, sessions) query times are known only at
the end: rows are first set down in order of arrival, and the group and time of each stay in memory.

Nothing but published intervals outlives the run, and publishing one again gives the same bytes: a run
that was killed is simply run again.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.log import Manifest, check_log, create_log, publish_interval
from ctr.data.mapping import Mapping
from ctr.data.row_order import KEY_COLUMNS, sort_rows
from ctr.files import is_temporary
from ctr.pipelines.chunks import Chunk
from ctr.pipelines.examples import FILE_COLUMN, ROW_COLUMN, ExampleMaker, Examples, spill_schema
from ctr.pipelines.joins import SideTable
from ctr.pipelines.reader import RawReader
from ctr.pipelines.rejects import EARLY_ROWS, Reject, RejectLog, check_reject_share, make_reject
from ctr.pipelines.sessions import assign_queries
from ctr.pipelines.sources import SourceFile, mapped_files
from ctr.pipelines.spill import Arrival, IntervalSpill, spill_folder

BLOCK_BYTES = 16 << 20
"""Bytes of an input file that are read, checked and transformed at a time."""

_WORKERS = 2
_AHEAD = 2
_STAGES = ("read", "transform", "spill", "sort", "publish")


@dataclass(frozen=True)
class IngestResult:
    """What an ingest did.

    Attributes:
        rows: rows of the input: ``examples`` plus ``rejected``.
        examples: rows that are in the log.
        queries: groups of rows that share a query.
        clicks: examples with label 1.
        rejected: rows set aside.
        reject_reasons: their number by ``key: reason``, the most frequent first.
        rejects_file: where each of them is described; None when there are none.
        intervals: the published intervals (start, end) of query time, in microseconds.
        first_time_us: the earliest query time, None of an empty log.
        last_time_us: the latest query time.
        seconds: how long each stage was busy; stages overlap.
    """

    rows: int
    examples: int
    queries: int
    clicks: int
    rejected: int
    reject_reasons: dict[str, int]
    rejects_file: Path | None
    intervals: list[tuple[int, int]]
    first_time_us: int | None
    last_time_us: int | None
    seconds: dict[str, float]

    def as_text(self) -> str:
        """In a line, followed by the reasons of rejects."""
        text = f"{self.examples} examples, {self.queries} queries, {self.clicks} clicks"
        text += f", {len(self.intervals)} intervals, {self.seconds['total']:.1f} s"
        if self.rejected:
            text += f"\n{self.rejected} of {self.rows} rows rejected, see {self.rejects_file}:"
            text += "".join(f"\n  {count} x {reason}" for reason, count in self.reject_reasons.items())
        return text


def ingest(
    mapping: Mapping,
    inputs: Sequence[Path],
    out: Path,
    *,
    max_reject_share: float = 0.01,
    progress: Callable[[int], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> IngestResult:
    """Publishes the examples of the input files as the log ``out``, which may hold other intervals.

    Args:
        mapping: how the files become examples.
        inputs: files and folders, in the order in which their rows count as arriving.
        out: the log's folder.
        max_reject_share: the job stops when a larger share of rows, in [0, 1], is rejected.
        progress: called with the number of rows read since its last call.
        block_bytes: how much of a file is handled at a time; it changes nothing in the log.

    Raises:
        InputError: no input, a missing column, a damaged file, too many rejects, a log of another schema, or
            an interval published before with other content.
    """
    started = time.perf_counter()
    check_reject_share(max_reject_share)
    sources = mapped_files(mapping, inputs)
    schema = mapping.feature_schema
    check_log(out, schema)
    rejects = RejectLog([source.name for source in sources], max_reject_share)
    rejects_path = out / "rejects" / f"{_names_digest(sources)}.jsonl"
    seconds = {stage: 0.0 for stage in _STAGES}
    try:
        with spill_folder(out) as folder:
            spill = IntervalSpill(folder, mapping.interval_us)
            reading = _Reading(mapping, sources, rejects, progress, block_bytes, seconds)
            rows = _spill_rows(mapping, reading, spill, folder)
            rejects.check(rows)
            create_log(out, schema)
            published = _publish_all(mapping, out, spill, rejects, rows, seconds)
    finally:
        rejects.write(rejects_path)
    _remove_leftovers(out, {rejects_path.name, *(manifest.name for manifest in published)})
    seconds["total"] = time.perf_counter() - started
    examples = sum(manifest.rows for manifest in published)
    rejected = len(rejects.rejects)
    if rows != examples + rejected:
        raise RuntimeError(f"{rows} rows were read, but {examples} published and {rejected} rejected")
    shards = [shard for manifest in published for shard in manifest.shards]
    return IngestResult(
        rows=rows,
        examples=examples,
        queries=sum(manifest.queries for manifest in published),
        clicks=sum(manifest.clicks for manifest in published),
        rejected=rejected,
        reject_reasons=rejects.counts(),
        rejects_file=rejects_path if rejected else None,
        intervals=[(manifest.start, manifest.end) for manifest in published],
        first_time_us=shards[0].first_query_time if shards else None,
        last_time_us=shards[-1].last_query_time if shards else None,
        seconds=seconds,
    )


def _names_digest(sources: Sequence[SourceFile]) -> str:
    """Names the rejects of these inputs, so that those of another day's ingest into the log stay."""
    return hashlib.sha256("\n".join(source.name for source in sources).encode()).hexdigest()[:16]


def _remove_leftovers(out: Path, names: set[str]) -> None:
    """Deletes half-written files of a killed run: those of the files and intervals that this run has written.

    Of no others, since another publisher may be writing them right now.
    """
    for folder in (out / "shards", out / "manifests", out / "rejects"):
        for path in folder.glob("*"):
            if is_temporary(path) and any(path.name.startswith(name) for name in names):
                path.unlink(missing_ok=True)


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] += time.perf_counter() - started


class _Reading:
    """Iterates over the examples of all input files, in order; threads work ahead."""

    def __init__(
        self,
        mapping: Mapping,
        sources: Sequence[SourceFile],
        rejects: RejectLog,
        progress: Callable[[int], None] | None,
        block_bytes: int,
        seconds: dict[str, float],
    ) -> None:
        self._reader = RawReader(mapping, block_bytes)
        self._maker = ExampleMaker(mapping, sources)
        self._sources = sources
        self._rejects = rejects
        self._progress = progress
        self.seconds = seconds
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        """Yields tables under ``spill_schema``; their rejects are noted and counted on the way."""
        with ThreadPoolExecutor(_WORKERS, "ingest") as pool:
            waiting: deque[Future[Examples]] = deque()
            try:
                for job in self._jobs():
                    waiting.append(pool.submit(self._make, *job))
                    if len(waiting) > _AHEAD + 1:
                        yield self._note(waiting.popleft().result())
                while waiting:
                    yield self._note(waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()

    def _jobs(self) -> Iterator[tuple[Chunk, tuple[SideTable, ...], int]]:
        lines = 0
        for source in self._sources:
            chunks = self._reader.read(source)
            last = 0
            while True:
                with _timed(self.seconds, "read"):
                    found = next(chunks, None)
                if found is None:
                    break
                chunk, sides = found
                last = max([last, *chunk.rows[-1:].tolist(), *(reject.row for reject in chunk.rejects)])
                yield chunk, sides, lines
            lines += last

    def _make(self, chunk: Chunk, sides: tuple[SideTable, ...], lines: int) -> Examples:
        with _timed(self.seconds, "transform"):
            return self._maker.make(chunk, sides, lines)

    def _note(self, examples: Examples) -> pa.Table:
        self.rows += examples.count
        self._rejects.add(examples.rejects)
        if self.rows >= EARLY_ROWS:
            self._rejects.check(self.rows)
        if self._progress is not None:
            self._progress(examples.count)
        return examples.table


def _spill_rows(mapping: Mapping, reading: _Reading, spill: IntervalSpill, folder: Path) -> int:
    """Sets all rows down by interval, with their query ids and times; returns the rows of the input."""
    if mapping.query is None:
        for table in reading:
            with _timed(reading.seconds, "spill"):
                spill.append(table)
        return reading.rows
    arrival = Arrival(folder, spill_schema(mapping.feature_schema))
    groups, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    with closing(arrival):
        for table in reading:
            with _timed(reading.seconds, "spill"):
                arrival.append(table)
                groups.append(table.column("query_id").to_numpy())
                times.append(table.column("query_time").to_numpy())
    with _timed(reading.seconds, "spill"):
        session = mapping.query.session
        query_ids, query_times = assign_queries(
            np.concatenate(groups), np.concatenate(times), None if session is None else session.gap_us
        )
        first = 0
        for table in arrival.read_back():
            last = first + table.num_rows
            spill.append(_with_queries(table, query_ids[first:last], query_times[first:last]))
            first = last
    return reading.rows


def _with_queries(table: pa.Table, query_ids: np.ndarray, query_times: np.ndarray) -> pa.Table:
    for name, values in (("query_id", query_ids), ("query_time", query_times)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), pa.array(values))
    return table


def _publish_all(
    mapping: Mapping,
    out: Path,
    spill: IntervalSpill,
    rejects: RejectLog,
    rows: int,
    seconds: dict[str, float],
) -> list[Manifest]:
    """Publishes all intervals in order of time; the next one is sorted while one is written."""
    schema = mapping.feature_schema
    published = []

    def load(start: int) -> tuple[pa.Table, list[Reject]]:
        with _timed(seconds, "sort"):
            return _sorted_interval(spill.take(start))

    with ThreadPoolExecutor(1, "ingest-sort") as pool:
        intervals = spill.intervals()
        ahead = [pool.submit(load, start) for start, _ in intervals[:1]]
        for number, (start, end) in enumerate(intervals):
            table, duplicates = ahead.pop().result()
            ahead += [pool.submit(load, later) for later, _ in intervals[number + 1 : number + 2]]
            rejects.add(duplicates)
            rejects.check(rows)
            with _timed(seconds, "publish"):
                published.append(
                    publish_interval(out, schema, start, end, table, shard_rows=mapping.shard_rows)
                )
    return published


def _sorted_interval(table: pa.Table) -> tuple[pa.Table, list[Reject]]:
    """Sorts an interval; of the rows with one example id in one query the first to arrive stays."""
    table = sort_rows(table)
    keys = [table.column(name).to_numpy() for name in KEY_COLUMNS]
    repeated = np.zeros(table.num_rows, bool)
    repeated[1:] = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    rejects = []
    if repeated.any():
        again = table.filter(pa.array(repeated)).select([FILE_COLUMN, ROW_COLUMN, "example_id"]).to_pylist()
        for row in again:
            place = (row[FILE_COLUMN], row[ROW_COLUMN])
            allowed = "each example once in a query"
            rejects.append(
                make_reject(*place, "example_id", "duplicate in its query", row["example_id"], allowed)
            )
        table = table.filter(pa.array(~repeated))
    return table.drop_columns([FILE_COLUMN, ROW_COLUMN]), rejects
