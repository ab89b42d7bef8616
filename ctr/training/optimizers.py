"""The optimizers that a configuration asks for. A new one is named here, and nowhere else in the trainer."""

from collections.abc import Sequence

from ctr.models.rows import TableLayout
from ctr.optim.adagrad import RowAdaGrad
from ctr.optim.dense_shampoo import DenseShampoo
from ctr.optim.protocol import DenseOptimizer, TableOptimizer
from ctr.training.config import DenseOptimizerConfig, EmbeddingOptimizerConfig


def dense_optimizer(config: DenseOptimizerConfig) -> DenseOptimizer:
    """The optimizer of dense weights, without its weights yet."""
    return DenseShampoo(config.shampoo)


def table_optimizer(config: EmbeddingOptimizerConfig, layouts: Sequence[TableLayout]) -> TableOptimizer:
    """The optimizer of embeddings and linear weights, without its tables yet."""
    tower_rates: dict[str, float] = dict(config.tower_rates.items())
    return RowAdaGrad(
        rates=[
            layout.by_column(config.learning_rate, config.linear_learning_rate)
            * tower_rates.get(layout.tower, 1.0)
            for layout in layouts
        ],
        initial_accumulators=[
            layout.by_column(config.initial_accumulator, config.linear_initial_accumulator)
            for layout in layouts
        ],
        limit=config.update_limit,
    )
