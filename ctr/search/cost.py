"""Costs of candidates, in units of that of the configuration that they change (FF 3.2)."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from ctr.data.log import read_manifests, read_schema
from ctr.experiments.measure import Operations
from ctr.experiments.run import Progress
from ctr.search.config import CostConfig
from ctr.search.space import Choice, Content, Space
from ctr.search.times import timed, write_times
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


def make_cost(
    config: CostConfig, space: Space, base: Content, log: Path, times: Path, progress: Progress | None = None
) -> Cost:
    """Makes the costs that a search has asked for.

    ``times``: the file of measured times, which is written where it is not there yet; ``progress`` is then
    called with a line. Raises InputError: the log or the file is damaged, or the base does not fit the log.
    """
    if config.measure == "flops":
        return cost_of(space, base, counted(log, config.purpose))
    if not times.exists():
        write_times(times, log, space, base, progress)
    return cost_of(space, base, timed(times, config.purpose, read_schema(log), read_manifests(log)))
