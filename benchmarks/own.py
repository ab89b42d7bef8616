"""The model of this project as benchmarks run it: its steps on feeds that are made beforehand."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from reference import ADAGRAD, REFERENCE, Size, reference_batches, reference_config, reference_schema

from ctr.config import parse_model
from ctr.data.batches import Batch
from ctr.training.analysis.speed import ratio_quartiles, take_turns
from ctr.training.compiled_step import TrainStep
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.feed import Feed, make_feed
from ctr.training.state import TrainState
from ctr.training.step import StepResult

SETTLED = 10**9
"""Examples after which every ramp is up."""


@dataclass(frozen=True)
class Model:
    """A fresh model and its feeds.

    Attributes:
        losses: of the steps of each turn.
        processor_seconds: of a step of each turn, over all threads.
    """

    config: TrainConfig
    state: TrainState
    feeds: list[Feed]
    learn: Callable[[Feed, Mapping[str, float], Mapping[str, float]], StepResult]
    losses: list[list[float]] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        """Of a step, the mean over one turn: all feeds, one after the other."""
        ramps, rates, results = self.config.ramps_at(SETTLED), self.config.rates_at(SETTLED), []
        worked, begun = time.process_time(), time.perf_counter()
        for feed in self.feeds:
            results.append(self.learn(feed, ramps, rates))
            results[-1].logit.numpy()
        seconds = (time.perf_counter() - begun) / len(self.feeds)
        self.processor_seconds.append((time.process_time() - worked) / len(self.feeds))
        self.losses.append([float(result.loss) for result in results])
        return seconds


def make_model(
    size: Size = REFERENCE, changes: Mapping[str, Any] = ADAGRAD, batches: Sequence[Batch] = ()
) -> Model:
    """A model of some size under a configuration, with feeds of ``batches`` or of the size's own ones."""
    config = parse_model(TrainConfig, reference_config(changes, size.batch), "benchmark")
    make_deterministic(config.seed)
    layouts = config.table_layouts(reference_schema(size))
    state = TrainState(layouts, config, resolve_compute_dtype(config))
    feeds = [
        make_feed(one, layouts, size.batch, config.objective, ids=config.ids)
        for one in batches or reference_batches(size)
    ]
    return Model(config, state, feeds, TrainStep(state, config, jit=False).learn)


def median_ms(seconds: Sequence[float]) -> float:
    return 1000 * float(np.median(seconds))


def ratio(own: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """The median ratio of turns of the same round, and its quartiles."""
    low, middle, high = ratio_quartiles(own, base)
    return {"ratio": middle, "q25": low, "q75": high}


def show_ratio(found: Mapping[str, float]) -> str:
    return f"{found['ratio']:.2f} ({found['q25']:.2f}, {found['q75']:.2f})"


def by_turns(turns: Mapping[str, Callable[[], float]], base: str, rounds: int) -> dict[str, dict[str, float]]:
    """The median time of each in milliseconds, and the quartiles of its ratio to the base's of the same round.

    Args:
        turns: each takes a turn and returns its seconds.
        base: one of them.
        rounds: after a first one.
    """
    seconds = take_turns(turns, rounds)
    times = {}
    for name, own in seconds.items():
        low, middle, high = ratio_quartiles(own, seconds[base])
        times[name] = {
            "step_ms": 1000 * float(np.median(own)),
            "ratio": middle,
            "ratio_q25": low,
            "ratio_q75": high,
        }
    return times
