"""Reads the examples of all input files in order, with threads that work ahead; counts rows, times and rejects."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ctr.data.mapping import Mapping
from ctr.data.times import format_time
from ctr.pipelines.ingest.examples import ExampleMaker, Examples
from ctr.pipelines.ingest.repeats import Repeats, hash_rows
from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.rows.joins import SideTable
from ctr.pipelines.rows.reader import RawReader
from ctr.pipelines.rows.rejects import EARLY_ROWS, RejectLog
from ctr.pipelines.rows.sources import SourceFile

_WORKERS = 2
_AHEAD = 2


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the time that the block takes to that of a stage."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - started


@dataclass
class TimesFound:
    """Range of the rows' times, in microseconds, and how many are unlikely."""

    early: int
    now: int
    first: int | None = None  # None before the first row
    last: int | None = None
    before: int = 0  # rows before ``early``
    after: int = 0  # rows from ``now`` on

    def add(self, times: np.ndarray) -> None:
        """Adds the times of rows, [N] int64."""
        if len(times):
            low, high = int(times.min()), int(times.max())
            self.first = low if self.first is None else min(self.first, low)
            self.last = high if self.last is None else max(self.last, high)
            self.before += int(np.count_nonzero(times < self.early)) if low < self.early else 0
            self.after += int(np.count_nonzero(times >= self.now)) if high >= self.now else 0

    def warnings(self, rows: int) -> Iterator[str]:
        for count, what, extreme, time_us in (
            (self.before, "before the year 1990", "earliest", self.first),
            (self.after, "in the future", "latest", self.last),
        ):
            if count and time_us is not None:
                yield (
                    f"{count} of {rows} times lie {what}, the {extreme} at {format_time(time_us)}: "
                    "if that is wrong, check time.unit or time.format of the mapping"
                )


@dataclass
class ExampleReader:
    """Iterator over the examples of input files, in order; adds rejects, times and hashes of rows to what it is given.

    ``row_order`` counts the lines before each file: ``first_lines``, or else those of the files of ``sources`` before
    it, from ``line`` on. ``progress`` is called with the number of rows read since its last call.
    """

    mapping: Mapping
    sources: Sequence[SourceFile]
    rejects: RejectLog
    times: TimesFound
    repeats: Repeats | None  # None: rows are not hashed
    progress: Callable[[int], None] | None
    block_bytes: int
    seconds: dict[str, float]
    line: int = 0
    first_lines: Sequence[int] | None = None
    rows: int = 0  # of the input so far
    rows_of: Counter[int] = field(default_factory=Counter)  # by the number of the file
    # The first line and the number of lines of each file, by its number.
    lines_of: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = RawReader(self.mapping, self.block_bytes)
        self._maker = ExampleMaker(self.mapping, self.sources)

    def __iter__(self) -> Iterator[pa.Table]:
        """Yields tables under ``spill_schema``; counts their rows, and adds their rejects, times and hashes."""
        with ThreadPoolExecutor(_WORKERS, "ingest") as pool:
            waiting: deque[Future[tuple[int, Examples, np.ndarray | None]]] = deque()
            try:
                for job in self._jobs():
                    waiting.append(pool.submit(self._make, *job))
                    if len(waiting) > _AHEAD + 1:
                        yield self._count(*waiting.popleft().result())
                while waiting:
                    yield self._count(*waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()
        if self.repeats is not None:
            self.repeats.finish()

    def _jobs(self) -> Iterator[tuple[Chunk, tuple[SideTable, ...], int]]:
        line = self.line
        for source in self.sources:
            if self.first_lines is not None:
                line = self.first_lines[source.number]
            chunks = self._reader.read(source)
            last = 0
            while True:
                with timed(self.seconds, "read"):
                    found = next(chunks, None)
                if found is None:
                    break
                chunk, sides = found
                last = max([last, *chunk.rows[-1:].tolist(), *(reject.row for reject in chunk.rejects)])
                yield chunk, sides, line
            self.lines_of[source.number] = line, last
            line += last

    def _make(
        self, chunk: Chunk, sides: tuple[SideTable, ...], line: int
    ) -> tuple[int, Examples, np.ndarray | None]:
        with timed(self.seconds, "transform"):
            examples = self._maker.make(chunk, sides, line)
            hashes = None if self.repeats is None else hash_rows(self.mapping, examples.table)
            return chunk.file, examples, hashes

    def _count(self, file: int, examples: Examples, hashes: np.ndarray | None) -> pa.Table:
        self.rows += examples.count
        self.rows_of[file] += examples.count
        self.rejects.add(examples.rejects)
        self.times.add(examples.table.column("query_time").to_numpy())
        if self.repeats is not None and hashes is not None:
            self.repeats.add(file, hashes)
        if self.rows >= EARLY_ROWS:
            self.rejects.check(self.rows)
        if self.progress is not None:
            self.progress(examples.count)
        return examples.table
