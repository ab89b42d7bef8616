"""Times of several models' training steps, taken by turns in one process, so that a slow minute is slow for all."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ctr.data.batches import Batch
from ctr.data.schema import Schema
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.feed import make_feed
from ctr.training.state import TrainState
from ctr.training.step import make_steps


class TimedModel:
    """A fresh model, and the batches that it learns from again and again.

    Attributes:
        state: its weights.
    """

    def __init__(self, config: TrainConfig, schema: Schema, batches: Sequence[Batch]) -> None:
        make_deterministic(config.seed)
        layouts = config.model.table_layouts(schema)
        self.state = TrainState(layouts, config, resolve_compute_dtype(config))
        self._step = make_steps(self.state, config, jit=False).learn
        self._feeds = [make_feed(one, layouts, config.batch.rows, config.objective) for one in batches]
        self._ramps = config.ramps_at(10**9)

    def seconds(self) -> float:
        """Of a step, the mean over one turn."""
        begun = time.perf_counter()
        for feed in self._feeds:
            self._step(feed, self._ramps).logit.numpy()
        return (time.perf_counter() - begun) / len(self._feeds)


def by_turns(turns: Mapping[str, Callable[[], float]], base: str, rounds: int) -> dict[str, dict[str, float]]:
    """The median time of each in milliseconds, and the quartiles of its ratio to the base's of the same round.

    Args:
        turns: each takes a turn and returns its seconds.
        base: one of them.
        rounds: after a first one, in which everything is compiled.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            taken = turn()
            if number:
                seconds[name].append(taken)
    times = {}
    for name, own in seconds.items():
        low, middle, high = np.quantile(np.array(own) / np.array(seconds[base]), [0.25, 0.5, 0.75])
        times[name] = {
            "step_ms": 1000 * float(np.median(own)),
            "ratio": float(middle),
            "ratio_q25": float(low),
            "ratio_q75": float(high),
        }
    return times
