"""The weights and optimizer state of a run."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.models.click_model import Architecture, ClickModel, Factors
from ctr.models.embeddings import create_table, tower_widths
from ctr.models.rows import TableLayout
from ctr.objective.bias_constraints import Family
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.optimizers import dense_optimizer, table_optimizer

_PIECE = 65536


def architecture(config: TrainConfig, compute_dtype: str) -> Architecture:
    """The model's architecture under a configuration."""
    model, ranking, factorized = config.model, config.objective.ranking, config.model.factorized
    factors = None
    if factorized is not None:
        pieces = factorized.pieces if factorized.transfer == "piecewise_linear" else 0
        factors = Factors(factorized.width, factorized.ui_units, pieces, factorized.knot_range)
    return Architecture(
        cross_layers=model.crosses.layers,
        cross_rank=model.crosses.rank,
        deep_units=model.deep.units,
        deep_ranks=model.deep.ranks,
        activation=model.deep.activation,
        smelu_beta=model.deep.smelu_beta,
        prior=model.prior,
        compute_dtype=compute_dtype,
        rank_head=ranking is not None and ranking.setup == "multi_task",
        components=model.ensemble.components,
        factors=factors,
    )


def create_network(
    layouts: tuple[TableLayout, ...], config: TrainConfig, compute_dtype: str, compiled: bool = True
) -> ClickModel:
    """The model without its tables, with fresh weights; ``compiled`` as ``ctr.models.passes`` says."""
    widths = tower_widths(layouts, config.model.factorized is not None)
    return ClickModel(architecture(config, compute_dtype), widths, compiled, seed=config.seed)


def dense_weights(network: ClickModel) -> dict[str, tf.Variable]:
    """The weights of a network by their names in checkpoints."""
    return {f"dense/{index:03d}": weight for index, weight in enumerate(network.weights().values())}


class TrainState:
    """All variables that training changes.

    Attributes:
        tables: for each layout a float32 [rows, columns] variable.
        table_optimizer: their optimizer.
        network: the dense part of the model.
        dense: its weights.
        dense_optimizer: their optimizer.
        duals: for each family of constrained slices its lambda_k, float32 [slices] (FF 7.1).
        slices_seen: what ``ctr.objective.bias_constraints.dual_step`` remembers of the slices, float32 [2, slices].
    """

    def __init__(
        self,
        layouts: tuple[TableLayout, ...],
        config: TrainConfig,
        compute_dtype: str,
        families: Sequence[Family] = (),
    ) -> None:
        model, optimizer = config.model, config.optimizer
        seed = config.seed if model.embedding_seed is None else model.embedding_seed
        self.layouts = layouts
        self.tables = [create_table(layout, model.init_scale, seed) for layout in layouts]
        self.table_optimizer = table_optimizer(optimizer.embeddings, layouts)
        self.table_optimizer.build(
            {layout.name: table for layout, table in zip(layouts, self.tables, strict=True)}
        )
        self.network = create_network(layouts, config, compute_dtype)
        weights = dense_weights(self.network)
        self.dense = list(weights.values())
        self.dense_optimizer = dense_optimizer(optimizer.dense)
        self.dense_optimizer.build(weights)
        self.families = tuple(families)
        self.duals = [tf.Variable(tf.zeros([family.slices]), trainable=False) for family in families]
        self.slices_seen = [tf.Variable(tf.zeros([2, family.slices]), trainable=False) for family in families]

    def variables(self) -> dict[str, tf.Variable]:
        """All variables under names that do not depend on the process."""
        named = {
            f"rows/{layout.name}": table for layout, table in zip(self.layouts, self.tables, strict=True)
        }
        named |= self.table_optimizer.variables
        named |= dense_weights(self.network)
        named |= self.dense_optimizer.variables
        for family, variable, seen in zip(self.families, self.duals, self.slices_seen, strict=True):
            named[f"duals/{family.name}"] = variable
            named[f"slices_seen/{family.name}"] = seen
        return named

    def arrays(self) -> dict[str, np.ndarray]:
        """The values of all variables, to be read before the next step: where TensorFlow allows, its own memory."""
        return {name: np.asarray(variable.read_value()) for name, variable in self.variables().items()}

    def layout(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each of ``arrays``."""
        return {
            name: (tuple(variable.shape), np.dtype(variable.dtype.as_numpy_dtype))
            for name, variable in self.variables().items()
        }

    def pieces(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """The values of all variables, those of many rows in pieces: name, first row and values.

        TensorFlow hands a whole table out as a copy, in memory that is touched for the first time, which takes
        several times as long.
        """
        for name, variable in self.variables().items():
            rows = variable.shape[0] if variable.shape.rank == 2 else 0
            if rows <= _PIECE:
                yield name, 0, np.asarray(variable.read_value())
                continue
            for begin in range(0, rows, _PIECE):
                piece = variable.sparse_read(tf.range(begin, min(begin + _PIECE, rows)))
                yield name, begin, np.asarray(piece)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets all variables. Raises ValueError when names or shapes differ."""
        variables = self.variables()
        if set(arrays) != set(variables):
            raise ValueError(f"the checkpoint holds {sorted(arrays)}, the model {sorted(variables)}")
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def optimizer_report(self) -> dict[str, float | int]:
        """What there is to watch of both optimizers."""
        return {**self.table_optimizer.report(), **self.dense_optimizer.report()}

    def optimizer_timing(self) -> dict[str, float]:
        """Seconds that both optimizers have spent beside the step since the process began."""
        return {**self.table_optimizer.timing(), **self.dense_optimizer.timing()}

    def parameter_counts(self) -> dict[str, int]:
        """Number of dense and of embedding parameters."""
        return {
            "parameters_dense": sum(int(np.prod(variable.shape)) for variable in self.dense),
            "parameters_embedding": sum(int(np.prod(table.shape)) for table in self.tables),
        }


def fresh_state(config: TrainConfig, schema: Schema, families: Sequence[Family] = ()) -> TrainState:
    """The state that a run begins with, the same whenever it is asked for.

    From here on TensorFlow is restricted to operations that repeat bit by bit.
    """
    make_deterministic(config.seed)
    return TrainState(config.model.table_layouts(schema), config, resolve_compute_dtype(config), families)
