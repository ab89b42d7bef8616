"""Construction of optimizers; a new one needs its keys in ``config.py`` and its construction here."""

from collections.abc import Sequence
from typing import assert_never

from ctr.models.rows import TableLayout
from ctr.optim.protocol import DenseOptimizer
from ctr.optim.rows.adagrad import RowAdaGrad
from ctr.optim.rows.newton import RowNewton
from ctr.optim.rows.one_sided import RowOneSided
from ctr.optim.rows.rule import RowRule, RowSetup
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.options import ShampooOptions
from ctr.training.config import DenseOptimizerConfig, EmbeddingOptimizerConfig
from ctr.workers.collectives import ALONE, Workers


def dense_optimizer(
    config: DenseOptimizerConfig, preconditions: bool = True, group: Workers = ALONE
) -> DenseOptimizer:
    """Makes the optimizer of dense weights, before the weights are known.

    Args:
        config: the optimizer's configuration.
        preconditions: whether any batch is large enough for Shampoo; otherwise the grafting method is used alone.
        group: the workers that divide its state.
    """
    return DenseShampoo(config.shampoo if preconditions else config.shampoo.graft_alone(), group)


def table_optimizer(
    config: EmbeddingOptimizerConfig,
    layouts: Sequence[TableLayout],
    groups: Sequence[Workers] | None = None,
) -> RowRule:
    """Makes the optimizer of embeddings and linear weights, before its tables exist.

    ``groups``: for each table, the workers that its rows are divided among; by default no table is divided.
    """
    newton = config.linear_rule == "newton"
    # Newton's rates multiply its steps; it accumulates information instead of AdaGrad's sums.
    linear = (1.0, 0.0) if newton else (config.linear_learning_rate, config.linear_initial_accumulator)
    tower_rates: dict[str, float] = dict(config.tower_rates.items())
    setup = RowSetup(
        rates=[
            layout.by_column(config.learning_rate, linear[0]) * tower_rates.get(layout.tower, 1.0)
            for layout in layouts
        ],
        initial_accumulators=[layout.by_column(config.initial_accumulator, linear[1]) for layout in layouts],
        copies=layouts[0].copies,
        limit=config.update_limit,
        groups=groups,
    )
    if newton:
        features = [len(layout.features) for layout in layouts]
        # A table whose features are not the log's (pairs) is a separate model.
        of_model = sum(not feature.of for layout in layouts for feature in layout.features)
        precisions = [len(layout.features) if layout.features[0].of else of_model for layout in layouts]
        return RowNewton(setup, features, precisions)
    if config.rule == "one_sided":
        return RowOneSided(setup, ShampooOptions(rows="one_sided"))
    if config.rule == "adagrad":
        return RowAdaGrad(setup)
    assert_never(config.rule)
