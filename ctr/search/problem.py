"""Costs of a search's candidates, and the prefix of the log that the search reads."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np

from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.experiments.measure import Operations
from ctr.io.errors import InputError
from ctr.search.space import Choice, Content, Space
from ctr.training.config import TrainConfig

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Cost = Callable[[Choice], float]  # cost of a candidate relative to the base's (FF 3.2)
Measure = Callable[[TrainConfig], float]  # cost of a configuration, in any unit above 0


def cost_of(space: Space, base: TrainConfig | Content, measure: Measure) -> Cost:
    """Returns a cached function for a candidate's cost relative to the base; it raises InputError if it is invalid."""
    unit = measure(space.apply_values(base, {}))

    @cache
    def cost(choice: Choice) -> float:
        return measure(space.apply(base, choice)) / unit

    return cost


def counted(log: Path, purpose: str) -> Measure:
    """Returns a function that counts the operations of a configuration per example of a log.

    ``purpose``: ``training``, to learn from an example, or ``serving``, only to score it.
    """
    count, key = Operations(log), {"training": "train_flops", "serving": "inference_flops"}[purpose]
    return lambda config: float(count(config)[key])


@dataclass(frozen=True)
class Prefix:
    """The first rows of a training log within its time range."""

    end_us: int | None  # the first query time, in microseconds, after the prefix; None: it has all rows
    rows: int

    @property
    def end(self) -> str | None:
        """Returns ``end_us`` in ISO 8601, or None."""
        if self.end_us is None:
            return None
        return (_EPOCH + timedelta(microseconds=self.end_us)).isoformat()


def find_prefix(log: Path, time_range: TimeRange, share: float) -> tuple[Prefix, int]:
    """Returns the prefix with a ``share`` of the rows in a time range, up to a query time, so that no query is split.

    Also returns the number of rows in the time range; ``share``, in (0, 1], is of these. Raises InputError if the log
    is damaged or has no rows in the time range, or the prefix would have none.
    """
    manifests = read_manifests(log)
    blocks = read_selection(log, read_schema(log), manifests, Selection(time_range=time_range))
    times = np.concatenate([block.query_time for block in blocks] or [np.zeros(0, np.int64)])
    if not len(times):
        raise InputError(f"{log}: the log has no rows in the time range of the configuration")
    index = int(share * len(times))
    if index >= len(times):
        return Prefix(None, len(times)), len(times)
    end_us = int(times[index])
    rows = int(np.searchsorted(times, end_us))
    if not rows:
        raise InputError(
            f"{log}: no query ends within the first {share:.3g} of the {len(times)} rows; a larger prefix is required"
        )
    return Prefix(end_us, rows), len(times)
