"""Speed of models' steps, timed alternately in one process, so that a temporary slowdown affects all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ctr.data.batches import Batch
from ctr.data.schema import Schema
from ctr.data.stream import TEACHER_LOGIT
from ctr.objective.bias_constraints import resolve_families
from ctr.training.compiled_step import CompiledStep
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.feed import make_feed
from ctr.training.state import TrainState


class TimedModel:
    """Untrained model with batches that it learns from repeatedly; teacher logits are 0."""

    def __init__(self, config: TrainConfig, schema: Schema, batches: Sequence[Batch]) -> None:
        schema = config.model.features(schema)
        layouts, objective = config.table_layouts(schema), config.objective
        families = resolve_families(objective.bias_constraints, schema)
        make_deterministic(config.seed)
        self.state = TrainState(layouts, config, resolve_compute_dtype(config.compute_dtype), families)
        self._step = CompiledStep(self.state, config)
        if objective.distillation is not None:
            batches = [_with_teacher(batch) for batch in batches]
        rows = config.batch.rows
        feeds = [make_feed(batch, layouts, rows, objective, families, config.ids) for batch in batches]
        # Growing ids get their rows first, as in a run.
        self.feeds = [feed.with_rows(self.state.tables, learning=True) for feed in feeds]
        self._ramps, self._rates = config.ramps_at(10**9), config.rates_at(10**9)

    def seconds(self) -> float:
        begun = time.perf_counter()
        for feed in self.feeds:
            self._step.learn(feed, self._ramps, self._rates)
        return (time.perf_counter() - begun) / len(self.feeds)

    def scoring_seconds(self) -> float:
        begun = time.perf_counter()
        for feed in self.feeds:
            self._step.score(feed, self._ramps)
        return (time.perf_counter() - begun) / len(self.feeds)


def _with_teacher(batch: Batch) -> Batch:
    joined = {**batch.rows.joined, TEACHER_LOGIT: np.zeros(len(batch.rows), np.float32)}
    return replace(batch, rows=replace(batch.rows, joined=joined))


def take_turns(turns: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Calls each function once per round; returns the seconds of all rounds but the first, which compiles.

    Every other round is reversed, so that no call always follows the same one, which may affect caches and threads.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            taken = turns[name]()
            if number:
                seconds[name].append(taken)
    return seconds


def ratio_quartiles(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Returns the quartiles [25%, 50%, 75%] of the ratios of two turns' seconds, round by round."""
    quartiles: list[float] = np.quantile(np.array(values) / np.array(base), [0.25, 0.5, 0.75]).tolist()
    return quartiles
