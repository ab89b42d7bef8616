"""Costs of the candidates of a search, and the prefix of a log that it reads."""

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

Cost = Callable[[Choice], float]  # of a candidate, in units of the base's cost (FF 3.2)
Measure = Callable[[TrainConfig], float]  # cost of a configuration, in any unit above 0


def cost_of(space: Space, base: TrainConfig | Content, measure: Measure) -> Cost:
    """Returns a cached function for a candidate's cost relative to the base; it raises InputError if impossible."""
    unit = measure(space.apply_values(base, {}))

    @cache
    def cost(choice: Choice) -> float:
        return measure(space.apply(base, choice)) / unit

    return cost


def counted(log: Path, purpose: str) -> Measure:
    """Returns a function that counts the operations of a configuration per example of a log.

    ``purpose`` is ``training``: to learn from an example, or ``serving``: to score it alone.
    """
    count, key = Operations(log), {"training": "train_flops", "serving": "inference_flops"}[purpose]
    return lambda config: float(count(config)[key])


@dataclass(frozen=True)
class Prefix:
    """First rows of a training log, within the time range."""

    end_us: int | None  # the first query time, in microseconds, after it; None: it has all rows
    rows: int

    @property
    def end(self) -> str | None:
        """Returns ``end_us`` in ISO 8601."""
        if self.end_us is None:
            return None
        return (_EPOCH + timedelta(microseconds=self.end_us)).isoformat()


def find_prefix(log: Path, time_range: TimeRange, share: float) -> tuple[Prefix, int]:
    """Returns the prefix with a ``share`` of a log's rows, up to a query time, so that no query is divided.

    Also returns the count of all rows. ``share``: above 0 and at most 1. Raises InputError: the log is damaged, has
    no row in the time range, or the prefix would have none.
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
