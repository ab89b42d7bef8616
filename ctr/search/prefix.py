"""Prefix of a log that a search reads; what comes after it judges the result."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Prefix:
    """First rows of what a configuration trains on."""

    end: datetime | None  # the first query time that is not in it; None: it is everything
    rows: int
    share: float  # of all rows

    @property
    def end_us(self) -> int | None:
        """Microseconds since 1970, UTC, of the end; None: there is nothing after it."""
        return None if self.end is None else (self.end - _EPOCH) // timedelta(microseconds=1)


def find_prefixes(log: Path, time_range: TimeRange, shares: list[float]) -> list[Prefix]:
    """Finds prefixes with given shares of a log's rows, each up to a query time: no query is divided.

    ``shares``: above 0 and at most 1. Raises InputError: the log is damaged, has no row in the time range,
    or a prefix would have none.
    """
    manifests = read_manifests(log)
    blocks = read_selection(log, read_schema(log), manifests, Selection(time_range=time_range))
    times = np.concatenate([block.query_time for block in blocks] or [np.zeros(0, np.int64)])
    if not len(times):
        raise InputError(f"{log}: the log has no rows in the time range of the configuration")
    found = []
    for share in shares:
        place = int(share * len(times))
        if place >= len(times):
            found.append(Prefix(None, len(times), 1.0))
            continue
        end_us = int(times[place])
        rows = int(np.searchsorted(times, end_us))
        if not rows:
            raise InputError(
                f"{log}: no query ends within the first {share:.3g} of the {len(times)} rows; "
                "a larger prefix is required"
            )
        found.append(Prefix(_EPOCH + timedelta(microseconds=end_us), rows, rows / len(times)))
    return found
