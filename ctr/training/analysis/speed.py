"""Speed of a run, and of models' steps, timed by turns in one process, so that a slow minute is slow for all."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ctr.data.batches import Batch
from ctr.data.schema import Schema
from ctr.data.stream import TEACHER_LOGIT
from ctr.objective.bias_constraints import resolve_families
from ctr.training.compiled_step import TrainStep
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype, resolve_jit
from ctr.training.feed import make_feed
from ctr.training.state import TrainState

_SHORTEST, _LONGEST, _RATIO = 1e-6, 1e5, 1.01


class RunningMedian:
    """Median of any number of times, from a histogram on a logarithmic scale: to within 0.5%, from 1 us to a day."""

    def __init__(self) -> None:
        bins = math.ceil(math.log(_LONGEST / _SHORTEST) / math.log(_RATIO))
        self._counts = np.zeros(bins, np.int64)

    def add(self, seconds: float) -> None:
        place = int(math.log(max(seconds, _SHORTEST) / _SHORTEST) / math.log(_RATIO))
        self._counts[min(place, len(self._counts) - 1)] += 1

    def median(self) -> float:
        """Returns the median in seconds; 0 of none. Of an even number the lower of the two in the middle."""
        return self.quantile(0.5)

    def quantile(self, share: float) -> float:
        """Returns the time that this share of the times does not exceed, in seconds; 0 of none."""
        behind = np.cumsum(self._counts)
        if not behind[-1]:
            return 0.0
        place = int(np.searchsorted(behind, max(1, math.ceil(share * behind[-1]))))
        return float(_SHORTEST * _RATIO ** (place + 0.5))


class Throughput:
    """Examples per second of the passes of this process; the time between two passes does not count."""

    def __init__(self) -> None:
        self.examples, self.seconds = 0, 0.0
        self._last = 0.0
        # A window that was begun before a resume is timed from the resume on.
        self._window = 0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        self._last = time.perf_counter()
        try:
            yield
        finally:
            self.add(0)

    def add(self, examples: int) -> None:
        """Counts examples that were passed, and the time since the last call."""
        last, self._last = self._last, time.perf_counter()
        self.examples += examples
        self.seconds += self._last - last

    def close_window(self) -> float:
        (examples, seconds), self._window = self._window, (self.examples, self.seconds)
        return round((self.examples - examples) / (self.seconds - seconds), 1)


class TimedModel:
    """A fresh model, and batches that it learns from again and again; what sidecars have is made up.

    An expert for pairs beside it is not timed.
    """

    def __init__(self, config: TrainConfig, schema: Schema, batches: Sequence[Batch]) -> None:
        schema = config.model.features(schema)
        layouts, objective = config.table_layouts(schema), config.objective
        constraints = objective.bias_constraints
        families = resolve_families(constraints, schema) if constraints is not None else ()
        make_deterministic(config.seed)
        self.state = TrainState(layouts, config, resolve_compute_dtype(config), families)
        self._steps = TrainStep(self.state, config, resolve_jit(config))
        if objective.distillation is not None:
            batches = [_with_teacher(batch) for batch in batches]
        self.feeds = [make_feed(one, layouts, config.batch.rows, objective, families) for one in batches]
        self._ramps, self._rates = config.ramps_at(10**9), config.rates_at(10**9)

    def seconds(self) -> float:
        begun = time.perf_counter()
        for feed in self.feeds:
            self._steps.learn(feed, self._ramps, self._rates).logit.numpy()
        return (time.perf_counter() - begun) / len(self.feeds)

    def scoring_seconds(self) -> float:
        begun = time.perf_counter()
        for feed in self.feeds:
            self._steps.score(feed, self._ramps)[0][0].numpy()
        return (time.perf_counter() - begun) / len(self.feeds)


def _with_teacher(batch: Batch) -> Batch:
    joined = {**batch.rows.joined, TEACHER_LOGIT: np.zeros(len(batch.rows), np.float32)}
    return replace(batch, rows=replace(batch.rows, joined=joined))


def take_turns(turns: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each in each round but the first, which compiles.

    Every other round goes backwards: what a turn leaves behind, in caches and in threads, is not always the same one's.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            taken = turns[name]()
            if number:
                seconds[name].append(taken)
    return seconds


def ratio_quartiles(own: Sequence[float], base: Sequence[float]) -> list[float]:
    """Returns the quartiles of the ratios of two turns of the same round, the median in the middle."""
    quartiles: list[float] = np.quantile(np.array(own) / np.array(base), [0.25, 0.5, 0.75]).tolist()
    return quartiles
