"""State of a run with an expert for pairs beside its model."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.objective.bias_constraints import Family
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype
from ctr.training.pairs.combination import Combination
from ctr.training.pairs.layout import pair_config, pair_layouts
from ctr.training.state import TrainState
from ctr.workers.collectives import Workers
from ctr.workers.parts import Part, Sharding

PREFIX = "pairs/"
"""What names of the expert's arrays begin with in checkpoints."""
_COMBINATION = f"{PREFIX}combination"

ValueT = TypeVar("ValueT")


class PairState(TrainState):
    """Variables of a model, those of the expert beside it, ``pairs``, and what combines the two."""

    def __init__(
        self, config: TrainConfig, schema: Schema, families: Sequence[Family], workers: Workers
    ) -> None:
        dtype = resolve_compute_dtype(config)
        super().__init__(config.table_layouts(schema), config, dtype, families, workers)
        self.schema, self.pair_config = schema, pair_config(config, schema)
        layouts = pair_layouts(config, schema)
        self.pairs = TrainState(layouts, self.pair_config, dtype, (), workers)
        self.combination = Combination()

    def leaves(self) -> dict[str, tf.Variable | np.ndarray]:
        own = {f"{PREFIX}{name}": leaf for name, leaf in self.pairs.leaves().items()}
        return super().leaves() | own | {_COMBINATION: self.combination.to_array()}

    @property
    def sharding(self) -> Sharding:
        return super().sharding.joined(self.pairs.sharding, PREFIX)

    def restore(self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Part] | None = None) -> None:
        own = {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
        super().restore(own, parts)
        self.pairs.restore(of_pairs(arrays), of_pairs(parts or {}))
        self.combination.restore(arrays[_COMBINATION])

    def expert_report(self) -> dict[str, float]:
        gate, _ = self.combination.served
        return {"pairs_gate": round(gate, 6) if self.combination.is_awake else 0.0}

    def parameter_counts(self) -> dict[str, int]:
        of_pairs = self.pairs.parameter_counts()
        return {name: count + of_pairs[name] for name, count in super().parameter_counts().items()}


def of_pairs(arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Selects what the expert restores itself from, of all arrays of a state, or of something for each of them."""
    names = (name for name in arrays if name.startswith(PREFIX) and name != _COMBINATION)
    return {name.removeprefix(PREFIX): arrays[name] for name in names}


def combination_of(arrays: Mapping[str, np.ndarray]) -> Combination:
    """Reads the combination among all arrays of a state."""
    found = Combination()
    found.restore(arrays[_COMBINATION])
    return found
