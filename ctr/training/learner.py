"""What learns in a run, by its configuration: the state that it begins with, and the trainer that changes it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ctr.data.schema import Schema
from ctr.objective.bias_constraints import Family
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.state import TrainState
from ctr.training.trainer import Phase, Trainer
from ctr.workers.collectives import ALONE, Workers


def fresh_state(
    config: TrainConfig,
    schema: Schema,
    families: Sequence[Family] = (),
    workers: Workers = ALONE,
) -> TrainState:
    """Makes the state that a run begins with, always the same; lets TensorFlow only do what repeats bit by bit."""
    make_deterministic(config.seed)
    layouts, dtype = config.table_layouts(schema), resolve_compute_dtype(config)
    return TrainState(layouts, config, dtype, families, workers)


class Learner(NamedTuple):
    """Makers of the state that a run begins with, the same at each call, and of what learns with it."""

    state: Callable[..., TrainState] = fresh_state
    trainer: Callable[[TrainState, TrainConfig, Phase | None], Trainer] = Trainer


PLAIN = Learner()
