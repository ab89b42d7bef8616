"""What learns in a run, by its configuration: the state that it begins with, and the trainer that changes it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ctr.data.schema import Schema
from ctr.objective.bias_constraints import Family
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.pairs import PREFIX, PairState, PairTrainer, pair_layouts
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
    if config.model.pairs is True:
        return PairState(config, schema, families, workers)
    layouts, dtype = config.table_layouts(schema), resolve_compute_dtype(config)
    return TrainState(layouts, config, dtype, families, workers)


def make_trainer(state: TrainState, config: TrainConfig, phase: Phase | None = None) -> Trainer:
    """Makes the trainer of a state."""
    if isinstance(state, PairState):
        return PairTrainer(state, config, phase)
    return Trainer(state, config, phase)


def pairs_to_keep(
    arrays: Mapping[str, np.ndarray], before: tuple[TrainConfig, Schema], after: tuple[TrainConfig, Schema]
) -> dict[str, np.ndarray]:
    """Selects what an expert for pairs goes on with in another run; none where one of the two has none, or other pairs.

    Args:
        arrays: of the state of the run before.
        before, after: configuration and features of each run.
    """
    if not all(config.model.pairs is True for config, _ in (before, after)):
        return {}
    if pair_layouts(*before) != pair_layouts(*after):
        return {}
    return {name: array for name, array in arrays.items() if name.startswith(PREFIX)}


class Learner(NamedTuple):
    """Makers of the state that a run begins with, the same at each call, and of what learns with it."""

    state: Callable[..., TrainState] = fresh_state
    trainer: Callable[[TrainState, TrainConfig, Phase | None], Trainer] = make_trainer


PLAIN = Learner()
