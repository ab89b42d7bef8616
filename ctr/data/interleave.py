"""Interleaving of a second log with a first one: its rows become available as the time of the first one advances."""

from collections.abc import Iterable

import numpy as np

from ctr.data.reader import Rows, join_rows
from ctr.io.errors import InputError


class Interleaved:
    """Returns the whole queries of a log up to a time that only rises, ``most`` rows at once unless a query has more.

    The rows of each call depend only on the position at the start and on the times, so that a resume from the position
    of the last returned row continues with the same rows.
    """

    def __init__(self, blocks: Iterable[Rows], most: int, max_query_rows: int, where: str) -> None:
        self._blocks = iter(blocks)
        self._most = most
        self._max_query_rows = max_query_rows
        self._where = where
        self._pending: Rows | None = None
        self._ended = False

    def until(self, time: int) -> Rows | None:
        """Returns the next queries up to a time in microseconds; None without any. Raises InputError for a long one."""
        while not self._ended and not self._enough(time):
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            elif len(block):
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
        given = pending.slice(0, end)
        begins = given.query_begins()
        sizes = np.diff(np.append(begins, end))
        if sizes.max() > self._max_query_rows:
            raise InputError(
                f"{self._where}: query_id {given.query_id[begins[sizes.argmax()]]} has {sizes.max()} rows; at most "
                f"{self._max_query_rows} are allowed (batch.max_query_rows)"
            )
        return given

    def _enough(self, time: int) -> bool:
        """Whether the queries to return are known to be whole."""
        pending = self._pending
        if pending is None:
            return False
        if pending.query_time[-1] > time:
            return True
        begins = pending.query_begins()
        return len(begins) > 1 and int(begins[-1]) >= self._most
