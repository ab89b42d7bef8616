"""Packs whole queries into batches, and reads the queries of a second log beside them.

A query never straddles two batches: the labels of its first impressions would leak, through the update between the
two, into the predictions of its last.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from ctr.data.reader import QUERY_TOO_LARGE, Rows, join_rows


class LargeQuery(NamedTuple):
    """A query with more rows than ``max_query_rows``, which is rejected: its rows are [begin, end) of the log."""

    query_id: int
    begin: int
    end: int
    rows: int


@dataclass(frozen=True)
class Batch:
    """Whole queries: good rows, the faulty rows among them, and the position in the log after all of these.

    ``last`` is the time and id of the last query; None: they are taken from the rows.
    """

    rows: Rows
    rejects: Rows
    end: int
    last: Sequence[int] | None = None
    is_new: bool = True  # whether they are scored for the first time, for the predictions of record
    has_labels: bool = True  # whether they are learned from
    # For each constraint log, by number from 1 on, its rows that are learned together with these.
    others: Mapping[int, "Batch"] = field(default_factory=dict)

    @property
    def _parts(self) -> list[Rows]:
        return [part for part in (self.rows, self.rejects) if len(part)]

    @property
    def begin(self) -> int:
        return int(min(part.position[0] for part in self._parts))

    @property
    def last_query(self) -> list[int]:
        """Returns the query time, in microseconds, and query id of the last query."""
        if self.last is not None:
            return list(self.last)
        last = max(self._parts, key=lambda part: part.position[-1])
        return [int(last.query_time[-1]), int(last.query_id[-1])]

    @property
    def large_queries(self) -> list[LargeQuery]:
        """Lists the rejected queries that have too many rows."""
        large = self.rejects.keep(self.rejects.fault == QUERY_TOO_LARGE)
        begins = large.query_begins().tolist()
        return [
            LargeQuery(
                query_id=int(large.query_id[begin]),
                begin=int(large.position[begin]),
                end=int(large.position[end - 1]) + 1,
                rows=end - begin,
            )
            for begin, end in pairwise([*begins, len(large)])
        ]

    @property
    def times(self) -> tuple[int, int]:
        times = [part.query_time for part in self._parts]
        return int(min(part[0] for part in times)), int(max(part[-1] for part in times))


QUICK, QUICK_ROWS = 11585, 1024
"""After n rows, growing batches may have (n / ``QUICK``)^2 rows whatever ``growth`` says, up to ``QUICK_ROWS``.

The number is rounded down to a power of four, so that few shapes are compiled.
"""


@dataclass(frozen=True)
class BatchSize:
    """Maximum number of rows of a batch, by the position of its first row."""

    rows: int
    growth: float | None = None  # share of the rows before it; None: ``rows`` from the start
    first: int = 8  # rows that are allowed whatever ``growth`` says
    origin: int = 0  # the position in the log from which on the rows before a batch count

    def at(self, position: int) -> int:
        if self.growth is None:
            return self.rows
        before = max(0, position - self.origin)
        quick = _power_of_two(before // QUICK) ** 2
        grown = max(_power_of_two(int(self.growth * before)), min(QUICK_ROWS, quick))
        return min(self.rows, max(self.first, grown))


def _power_of_two(number: int) -> int:
    """Rounds down to a power of two; 0 stays 0."""
    return 1 << number.bit_length() >> 1


def whole_query_batches(
    blocks: Iterable[Rows], batch_rows: int | BatchSize, max_query_rows: int
) -> Iterator[Batch]:
    """Packs whole queries into batches, larger ones alone; any of more than ``max_query_rows`` rows is rejected."""
    size = BatchSize(batch_rows) if isinstance(batch_rows, int) else batch_rows
    pending: list[Rows] = []
    waiting = 0
    enough = size.rows
    for block in blocks:
        if not len(block):
            continue
        pending.append(block)
        waiting += len(block)
        if waiting > enough:
            rows = join_rows(pending)
            packed = 0
            for batch in _pack(rows, size, max_query_rows, ended=False):
                packed += len(batch.rows) + len(batch.rejects)
                yield batch
            rest = rows.slice(packed, len(rows))
            pending, waiting = [rest], len(rest)
            # Joined again only when it has doubled: a large query may come in many small blocks.
            enough = max(size.rows, 2 * waiting)
    if waiting:
        yield from _pack(join_rows(pending), size, max_query_rows, ended=True)


def batches_within(
    ends: np.ndarray, blocks: Iterable[Rows], batch_rows: int | BatchSize, max_query_rows: int
) -> Iterator[Batch]:
    """Packs like ``whole_query_batches``, but begins a new batch after each end.

    Ends are ascending positions in the log (int64) that no block and no query crosses.
    """
    filled = (block for block in blocks if len(block))
    for _, part in groupby(filled, lambda block: int(np.searchsorted(ends, block.position[0], side="right"))):
        yield from whole_query_batches(part, batch_rows, max_query_rows)


def _pack(rows: Rows, size: BatchSize, max_query_rows: int, ended: bool) -> Iterator[Batch]:
    # Unless the log has ended, the last query may continue in the next block.
    begins = rows.query_begins()
    # Ends of complete queries: the last query of ``rows`` may continue unless the log has ended.
    ends = np.concatenate([begins[1:], [len(rows)]]) if ended else begins[1:]
    position = 0
    while position < len(rows):
        batch_rows = size.at(int(rows.position[position]))
        fitting = int(np.searchsorted(ends, position + batch_rows, side="right")) - 1
        if fitting < 0 or ends[fitting] <= position:
            fitting = int(np.searchsorted(ends, position, side="right"))
            if fitting >= len(ends):
                return
        elif not ended and fitting == len(ends) - 1 and len(rows) - position <= batch_rows:
            # More of the log may still fit into this batch.
            return
        end = int(ends[fitting])
        yield set_rejects_apart(_reject_large_queries(rows.slice(position, end), max_query_rows))
        position = end


def _reject_large_queries(rows: Rows, max_query_rows: int) -> Rows:
    """Marks all rows of queries that have more than ``max_query_rows`` as faulty."""
    if len(rows) <= max_query_rows:
        return rows
    sizes = np.diff(rows.query_begins(), append=len(rows))
    return replace(
        rows, fault=np.where(np.repeat(sizes > max_query_rows, sizes), np.int8(QUERY_TOO_LARGE), rows.fault)
    )


def set_rejects_apart(rows: Rows) -> Batch:
    """Makes a batch of whole queries with at least one row; faulty rows become its rejects."""
    end = int(rows.position[-1]) + 1
    good = rows.fault == 0
    if good.all():
        return Batch(rows, rows.slice(0, 0), end)
    return Batch(rows.keep(good), rows.keep(~good), end)


class Interleaved:
    """Reads the whole queries of a log up to an increasing time, at most ``most`` rows a call unless a query has more.

    The rows of each call depend only on the position at the start and on the times, so that a resume from the position
    of the last returned row continues with the same rows. Queries of more than ``max_query_rows`` are faulty.
    """

    def __init__(self, blocks: Iterable[Rows], most: int, max_query_rows: int) -> None:
        self._blocks = (block for block in blocks if len(block))
        self._most, self._max_query_rows = most, max_query_rows
        self._pending: Rows | None = None

    def until(self, time: int) -> Rows | None:
        """Returns the next queries up to a time in microseconds; None if there are none."""
        while not self._enough(time) and (block := next(self._blocks, None)) is not None:
            self._pending = block if self._pending is None else join_rows([self._pending, block])
        pending = self._pending
        if pending is None:
            return None
        end = int(np.searchsorted(pending.query_time, time, side="right"))
        if end > self._most:
            ends = np.append(pending.query_begins()[1:], len(pending))
            end = int(ends[max(0, int(np.searchsorted(ends, self._most, side="right")) - 1)])
        if not end:
            return None
        self._pending = pending.slice(end, len(pending)) if end < len(pending) else None
        return _reject_large_queries(pending.slice(0, end), self._max_query_rows)

    def _enough(self, time: int) -> bool:
        pending = self._pending
        if pending is None:
            return False
        if pending.query_time[-1] > time:
            return True
        begins = pending.query_begins()
        return len(begins) > 1 and int(begins[-1]) >= self._most
