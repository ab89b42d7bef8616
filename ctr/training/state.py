"""The weights and optimizer state of a run."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.errors import InputError
from ctr.models.dcn import DCN
from ctr.models.embeddings import create_table
from ctr.models.rows import FeatureRows, TableLayout, lay_out_tables
from ctr.objective.bias_constraints import Family
from ctr.optim.shampoo import ShampooCore
from ctr.training.config import TrainConfig


def table_layouts(schema: Schema, config: TrainConfig) -> tuple[TableLayout, ...]:
    """The embedding tables for a log's features under a configuration.

    Raises:
        InputError: the configuration does not fit the features, or the features no table.
    """
    widths = config.model.feature_widths(schema)
    columns = {name: index for index, name in enumerate(schema.single_valued)}
    rows = [
        FeatureRows(f.name, f.buckets, widths[f.name], f.tower, columns.get(f.name)) for f in schema.features
    ]
    try:
        return lay_out_tables(rows)
    except ValueError as error:
        raise InputError(f"config: {error}; other widths (model.widths) make other tables") from None


class TrainState:
    """All variables that training changes.

    Attributes:
        tables: for each layout a float32 [rows, width + 1] variable.
        row_accumulators: their AdaGrad sums, of the same shapes.
        network: the dense part of the model.
        dense: its trainable variables.
        shampoo: their optimizer.
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
        model, rows, ranking = config.model, config.optimizer.rows, config.objective.ranking
        self.layouts = layouts
        self.tables = [create_table(layout, model.init_scale, config.seed) for layout in layouts]
        self.row_accumulators = []
        for layout in layouts:
            initial = np.full(layout.width + 1, rows.initial_accumulator, np.float32)
            initial[layout.width] = rows.linear_initial_accumulator
            value = tf.broadcast_to(initial, [layout.rows, layout.width + 1])
            self.row_accumulators.append(tf.Variable(value, trainable=False))
        self.network = DCN(
            cross_layers=model.crosses.layers,
            cross_rank=model.crosses.rank,
            deep_units=model.deep.units,
            activation=model.deep.activation,
            prior=model.prior,
            compute_dtype=compute_dtype,
            rank_head=ranking is not None and ranking.setup == "multi_task",
        )
        width = sum(layout.width * len(layout.features) for layout in layouts)
        self.network(tf.zeros([1, width]), tf.zeros([1]), tf.constant(0.0))
        self.dense = list(self.network.trainable_variables)
        self.shampoo = ShampooCore(config.optimizer.dense.shampoo, self.dense)
        self.families = tuple(families)
        self.duals = [tf.Variable(tf.zeros([family.slices]), trainable=False) for family in families]
        self.slices_seen = [tf.Variable(tf.zeros([2, family.slices]), trainable=False) for family in families]

    def variables(self) -> dict[str, tf.Variable]:
        """All variables under names that do not depend on the process."""
        named = {}
        for layout, table, accumulator in zip(self.layouts, self.tables, self.row_accumulators, strict=True):
            named[f"rows/{layout.name}"] = table
            named[f"rows_accumulator/{layout.name}"] = accumulator
        for index, variable in enumerate(self.dense):
            named[f"dense/{index:03d}"] = variable
        for name, variable in self.shampoo.state.variables.items():
            named[f"shampoo/{name}"] = variable
        for family, variable, seen in zip(self.families, self.duals, self.slices_seen, strict=True):
            named[f"duals/{family.name}"] = variable
            named[f"slices_seen/{family.name}"] = seen
        return named

    def arrays(self) -> dict[str, np.ndarray]:
        """The values of all variables."""
        return {name: variable.numpy() for name, variable in self.variables().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets all variables. Raises ValueError when names or shapes differ."""
        variables = self.variables()
        if set(arrays) != set(variables):
            raise ValueError(f"the checkpoint holds {sorted(arrays)}, the model {sorted(variables)}")
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def parameter_counts(self) -> dict[str, int]:
        """Number of dense and of embedding parameters."""
        return {
            "parameters_dense": sum(int(np.prod(variable.shape)) for variable in self.dense),
            "parameters_embedding": sum(int(np.prod(table.shape)) for table in self.tables),
        }
