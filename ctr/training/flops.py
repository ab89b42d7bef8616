"""Floating-point operations of a model per example, by closed formulas: to score it, and to learn from it.

A multiplication and an addition are one operation each, and so is a copied element of a table and any function of a
number (exp, sqrt, max). With n components (FF 5) everything below counts n times, except shared embeddings. With m
inputs, batches of B rows and |W| the number of elements of W:

    product [m] x [m, u]            2 m u;  with a bottleneck of rank r  2 m r + 2 r u                 FF 3.1
    bias, activation                u each
    cross of rank k                 4 m k, of a full matrix 2 m^2;  and 4 m for bias, alpha2 e_0 *, + e_i-1   FF 4.3
    heads                           2 h K, for h hidden units;  K = 1 in a plain model, otherwise the width of Q, U
    Q . U, tau                      2 (K + 2);  2 for the sigmoid, 8 a piece for a piecewise linear one  FF 6
    mean of probabilities           8 a component
    look-up of v ids, C columns     v C;  of a multivalent feature 2 v C + C, as it is averaged;  1 a linear weight
    a numeric feature               4 to normalize it, 9 more for its mean and deviation

    backward                        twice the dense part's forward: for each product the gradient of its input (the
                                    first one's goes to the embeddings) and of its matrix; the look-up once more
    optimizers, a step              their declared cost (``ctr.optim.protocol.Cost``):
      AdaGrad                       7 for each element of a distinct row, which the rows of a batch share
      Shampoo, element by element   2 |W|, and the cost of grafting, momentum, decay and limits
      Shampoo, block G [d_1, ..]    2 |G| (d_1 + d_2 + ..) a step to precondition, the same every tau2 steps for
                                    statistics, and 14 d^3 for each root every tau1 steps               PSO 2-3
    clipping                        3 |W|

The operations of a step are divided by B. They are counted as late in a run: more frequent roots at its beginning,
and roots that are reused because their statistics changed little, are ignored. Losses and constraints, some ten
operations per example, are left out. A rank head, which serving lacks, counts for learning alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ctr.models.architecture import Architecture
from ctr.models.embeddings import tower_widths
from ctr.models.rows import TableLayout, number_count
from ctr.training.config import TrainConfig
from ctr.training.experts.forward import dense_shapes, make_experts
from ctr.training.optimizers import dense_optimizer, table_optimizer

_CLIPPING = 3
"""Operations for each element of a gradient whose norm is limited."""
_NORMALIZING, _COUNTING = 4, 9
"""Operations for each number that the network reads, to score and to learn (``ctr.models.numbers``)."""


@dataclass(frozen=True)
class Touched:
    """Average accesses to one table per row of a batch."""

    single: int  # looked-up ids of single-valued features
    values: float  # looked-up ids of multivalent features
    multivalent: int  # number of multivalent features
    distinct: float  # distinct rows of the table


@dataclass(frozen=True)
class Flops:
    """Operations per example."""

    inference: float  # to score it
    forward: float
    backward: float
    rows: float  # to update the rows of tables
    dense: float  # to update dense weights, without the second-order work that the next three count
    statistics: float
    preconditioning: float
    roots: float

    @property
    def train(self) -> float:
        update = self.rows + self.dense + self.statistics + self.preconditioning + self.roots
        return self.forward + self.backward + update


def count_flops(
    config: TrainConfig, layouts: tuple[TableLayout, ...], touched: Mapping[str, Touched], batch_rows: float
) -> Flops:
    """Counts the operations of a configuration per example, for batches of ``batch_rows`` good rows on average."""
    model = make_experts(config.model, config.objective, "float32", layouts).network
    widths = tower_widths(layouts, config.model.factorized is not None)
    looked_up = sum(_look_up(layout, touched[layout.name]) for layout in layouts)
    numbers = number_count(layouts)
    normalizing = _NORMALIZING * numbers
    scored, learned = (dense_forward(model, widths, training) for training in (False, True))
    shapes, optimizer = list(dense_shapes(config.model, config.objective, layouts).values()), config.optimizer
    dense = dense_optimizer(optimizer.dense, config.preconditions).cost(shapes)
    clipping = 0 if optimizer.dense.clip_norm is None else _CLIPPING * sum(map(math.prod, shapes))
    rows = table_optimizer(optimizer.embeddings, layouts).cost(
        [(touched[layout.name].distinct * batch_rows, layout.columns) for layout in layouts]
    )
    # By the inputs of layers alone, not by their weights.
    second = looked_up + learned if config.objective.ranks_outside_embeddings else 0
    return Flops(
        inference=looked_up + scored + normalizing,
        forward=looked_up + learned + normalizing,
        backward=looked_up + 2 * learned + second,
        rows=rows.update / batch_rows,
        dense=(dense.update + clipping) / batch_rows,
        statistics=(rows.statistics + dense.statistics) / batch_rows + _COUNTING * numbers,
        preconditioning=(rows.preconditioning + dense.preconditioning) / batch_rows,
        roots=(rows.roots + dense.roots) / batch_rows,
    )


def dense_parameters(config: TrainConfig, layouts: tuple[TableLayout, ...]) -> int:
    """Counts the dense weights of a configuration."""
    return sum(map(math.prod, dense_shapes(config.model, config.objective, layouts).values()))


def dense_forward(model: Architecture, widths: Mapping[str, int], training: bool) -> int:
    """Counts the operations of a model's dense part per row, including a rank head only if ``training``."""
    factors, count, hidden = model.factors, 0, {}
    for name, tower in model.towers.items():
        m, rank = widths[name], tower.cross_rank
        count += tower.crosses * ((4 * m * rank if rank else 2 * m * m) + 4 * m)
        if model.network is not None and name == "quality":
            # Counts each weight as a matrix that a row is multiplied by once.
            shapes = [shape for shape, _ in model.network.weights(widths[name]).values()]
            count += 2 * sum(map(math.prod, shapes))
        else:
            count += _layers(widths[name], tower.units, tower.ranks)
        hidden[name] = tower.units[-1] if tower.units else widths[name]
    heads = 2 if model.rank_head and training else 1
    if factors is None:
        count += 1 + (heads * 2 * hidden["quality"] + 1 if hidden else 0)
        count += len(model.labels) * (2 * hidden.get("quality", 0) + 1)
    else:
        count += (heads * 2 * hidden["quality"] + 2 * hidden["ui"] + 1) * factors.width
        count += 2 * (factors.width + 2) + (heads - 1) * 2 * factors.width
        count += 8 * factors.pieces if factors.pieces else 2
    if model.components > 1:
        count += 8
    count += sum(pooled.operations for pooled in model.pooled)
    return model.components * count


def _layers(m: int, units: Sequence[int], ranks: Sequence[int]) -> int:
    count = 2 * sum(units)
    for width, rank in zip(units, ranks, strict=True):
        count += 2 * rank * (m + width) if rank else 2 * m * width
        m = width
    return count


def _look_up(layout: TableLayout, touched: Touched) -> float:
    copied = touched.single + 2 * touched.values + touched.multivalent
    return copied * layout.columns + len(layout.features) * layout.copies
