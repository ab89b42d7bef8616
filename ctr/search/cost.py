"""Costs of candidates, in units of that of the configuration that they change (FF 3.2)."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from ctr.experiments.measure import Operations
from ctr.search.space import Choice, Content, Space
from ctr.training.config import TrainConfig

Cost = Callable[[Choice], float]  # of a candidate, in units of that of the base
Measure = Callable[[TrainConfig], float]  # cost of a configuration, in any unit above 0


def cost_of(space: Space, base: TrainConfig | Content, measure: Measure) -> Cost:
    """Costs over that of the base, kept once known; raise InputError where a configuration is not possible."""
    unit = measure(space.apply_values(base, {}))

    @cache
    def cost(choice: Choice) -> float:
        return measure(space.apply(base, choice)) / unit

    return cost


def counted(log: Path, purpose: str) -> Measure:
    """Counts the operations of a configuration for an example of a log.

    ``purpose`` is ``training``: to learn from an example, or ``serving``: to score it alone.
    """
    count, key = Operations(log), {"training": "train_flops", "serving": "inference_flops"}[purpose]
    return lambda config: float(count(config)[key])
