"""Work of an ingest in several processes: files that are read and transformed, partitions that are sorted and written.

One process, the publisher, decides: it takes the files' rows in their order, and publishes. So the log has the same
bytes with any number of processes.
"""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from ctr.data.history_state import Histories
from ctr.data.log import Manifest
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.ingest.examples import Made, make_chunks
from ctr.pipelines.ingest.partitions import sorted_once, stage
from ctr.pipelines.processes import safe_workers
from ctr.pipelines.rows.rejects import Reject
from ctr.pipelines.rows.sources import SourceFile
from ctr.pipelines.spill import PartitionSpill, read_spilled
from ctr.workers.cluster import WorkerLostError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Processes:
    """Processes that work for one publisher."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool, self._count = pool, count

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yields the results of ``work`` in the order of the items, of which one for each process is under way."""
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(work, item))
                if len(waiting) > self._count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise WorkerLostError(
                "--workers: a process was ended from outside, as it happens where memory is short",
                "run the command again",
            ) from None
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def processes(count: int) -> Iterator[Processes]:
    """Starts processes, which end with the block."""
    # Arrow's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with safe_workers(), ProcessPoolExecutor(count, context) as pool:
        try:
            yield Processes(pool, count)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def check_workers(mapping: Mapping, workers: int) -> None:
    """Raises InputError for a wrong number of processes, or a mapping whose files depend on those before them."""
    if workers < 1:
        raise InputError(f"--workers {workers}: not allowed; allowed: 1 or more")
    if workers > 1 and mapping.time.row_order is not None:
        raise InputError(
            "--workers: with time.row_order, times count the lines of all files before; allowed: 1, or a mapping whose "
            "rows have times"
        )


# ---------------------------------------------------------------- files


@dataclass(frozen=True)
class _FileWork:
    mapping: Mapping
    source: SourceFile
    block_bytes: int
    hashed: bool
    path: Path  # where its rows go


@dataclass(frozen=True)
class _FileRead:
    path: Path
    chunks: list[Made]  # whose tables are in the file at ``path``
    fault: InputError | None  # which ended the file behind these chunks


def read_in_processes(
    pool: Processes,
    mapping: Mapping,
    sources: Sequence[SourceFile],
    block_bytes: int,
    hashed: bool,
    folder: Path,
    line: int,
) -> Iterator[Made]:
    """Yields what ``make_chunks`` does of all files, in their order; their rows wait in ``folder`` for their turn."""
    folder.mkdir()
    works = (
        _FileWork(mapping, source, block_bytes, hashed, folder / str(source.number)) for source in sources
    )
    for read in pool.map(_read_file, works):
        last = 0
        with pa.memory_map(str(read.path)) as file, pa.ipc.open_stream(file) as reader:
            for chunk in read.chunks:
                last = max(last, chunk.last_row)
                yield chunk.with_table(pa.Table.from_batches([reader.read_next_batch()]), line)
        read.path.unlink()
        if read.fault is not None:
            raise read.fault
        line += last


def _read_file(work: _FileWork) -> _FileRead:
    chunks: list[Made] = []
    fault = None
    with pa.OSFile(str(work.path), "wb") as file:
        writer = None
        try:
            for made in make_chunks(work.mapping, [work.source], work.block_bytes, work.hashed):
                [batch] = made.table.combine_chunks().to_batches() or [_no_rows(made.table)]
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
                chunks.append(made.with_table(made.table.slice(0, 0), made.before))
        except InputError as error:
            fault = error
        finally:
            if writer is None:
                writer = pa.ipc.new_stream(file, pa.schema([]))
            writer.close()
    return _FileRead(work.path, chunks, fault)


def _no_rows(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.schema)


# ---------------------------------------------------------------- partitions


@dataclass(frozen=True)
class _PartitionWork:
    out: Path
    mapping: Mapping
    start: int
    path: Path  # of its rows, in the order of arrival


def stage_in_processes(
    pool: Processes, out: Path, mapping: Mapping, spill: PartitionSpill, starts: Sequence[int]
) -> Iterator[tuple[Manifest, list[Reject]]]:
    """Sorts and stages partitions, in order; yields their manifests with their duplicates as rejects."""
    works = (_PartitionWork(out, mapping, start, spill.hand_over(start)) for start in starts)
    return pool.map(_stage, works)


def _stage(work: _PartitionWork) -> tuple[Manifest, list[Reject]]:
    table, duplicates = sorted_once(read_spilled(work.path))
    work.path.unlink()
    # Of a log without histories, which take partitions in order.
    histories = Histories(work.out, work.mapping.feature_schema)
    return stage(work.out, work.mapping, histories, work.start, table), duplicates
