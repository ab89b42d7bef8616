"""This project's model for benchmarks: training steps on feeds that are made beforehand."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from reference import ADAGRAD, REFERENCE, Size, reference_batches, reference_config, reference_schema
from runner import Numbers

from ctr.config import parse_model
from ctr.data.batches import Batch
from ctr.data.schema import Schema
from ctr.training.compiled_step import CompiledStep
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.feed import Feed, make_feed
from ctr.training.state import TrainState
from ctr.training.step import Scores

SETTLED = 10**9
"""Number of examples after which every ramp has ended."""


@dataclass(frozen=True)
class Model:
    """A fresh model and its feeds.

    Attributes:
        feed_ms: mean milliseconds to make a feed.
        losses: the losses of the steps of each turn.
    """

    config: TrainConfig
    state: TrainState
    feeds: list[Feed]
    feed_ms: float
    learn: Callable[[Feed, Mapping[str, float], Mapping[str, float]], Scores]
    losses: list[list[float]] = field(default_factory=list)

    def turn(self) -> Numbers:
        """Trains on each feed once; returns the mean wall and processor time of a step, in milliseconds."""
        ramps, rates, results = self.config.ramps_at(SETTLED), self.config.rates_at(SETTLED), []
        worked, begun = time.process_time(), time.perf_counter()
        for feed in self.feeds:
            results.append(self.learn(feed, ramps, rates))
        spent, worked = time.perf_counter() - begun, time.process_time() - worked
        self.losses.append([float(result.terms.sum()) for result in results])
        return {"ms": 1000 * spent / len(self.feeds), "processor_ms": 1000 * worked / len(self.feeds)}

    def dense_matrices(self) -> list[Sequence[int]]:
        """Returns the shapes of the matrices among the dense weights."""
        return [tuple(weight.shape) for weight in self.state.dense if len(weight.shape) == 2]


def benchmark_config(changes: Mapping[str, Any], batch: int = REFERENCE.batch) -> TrainConfig:
    """Returns the reference model's configuration with ``changes`` merged in."""
    return parse_model(TrainConfig, reference_config(changes, batch), "benchmark")


def make_model(
    size: Size = REFERENCE,
    changes: Mapping[str, Any] = ADAGRAD,
    batches: Sequence[Batch] = (),
    schema: Schema | None = None,
    families: Sequence[Any] = (),
) -> Model:
    """Creates a model of a size and configuration, with feeds from ``batches``, by default ``reference_batches``."""
    config = benchmark_config(changes, size.batch)
    make_deterministic(config.seed)
    layouts = config.table_layouts(schema or reference_schema(size))
    state = TrainState(layouts, config, resolve_compute_dtype(config.compute_dtype), tuple(families))
    batches = batches or reference_batches(size)
    begun = time.perf_counter()
    feeds = [
        make_feed(batch, layouts, size.batch, config.objective, tuple(families), ids=config.ids)
        for batch in batches
    ]
    feed_ms = 1000 * (time.perf_counter() - begun) / len(feeds)
    return Model(config, state, feeds, feed_ms, CompiledStep(state, config, jit=False).learn)


def gigaflops(matrices: Sequence[Sequence[int]], rows: int) -> float:
    """Returns the gigaflops of a step's products, forward and backward: 6 operations for each weight and row."""
    return 6e-9 * rows * sum(int(np.prod(shape)) for shape in matrices)
