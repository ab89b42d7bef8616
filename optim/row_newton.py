"""Newton's steps for linear weights with a learned prior, and AdaGrad for the embeddings beside them.

Each weight w of a feature f has a normal prior of mean 0 and precision T_f, and what the log has said of it so far is
kept as an information S, so that its posterior has the precision T_f + S. A batch adds::

    S += H + c G^2 / (1 + H / (T_f + S)),      H = sum x^2 p (1 - p),    G = sum x (p - y)
    w  = (w (T_f + S) + w dS - G) / (T_f + S + dS)

H is the logistic loss's own curvature, with which this is the natural gradient (diagonal online Newton, as in FTRL).
The second term, with c = 0.1, is there because the rows of a query are not independent: what they share makes G larger
than H says, and the weight more certain than it may be; the divisor is what G^2 grows by while w is still unknown.

T_f decides how far the weights of a feature are shrunk, and no constant is right for all: the ids of one feature differ
a lot, those of another one only by chance, and then they do harm. It is learned, by feature, from the gradients of the
progressive loss: with the gradients and information from before, w depends on T_f as w(T_f) = Z / (T_f + S), so that
d loss / d log T_f = - sum over the touched ids of G w T_f / (T_f + S). A Newton step on log T_f follows each batch. A
weight is shrunk by a new T_f when it is touched next: the precision that it has been shrunk by is kept with it.

What is old is forgotten slowly: when the information on a weight grows by the share d, its precision P loses
``FORGETTING`` d P / T_f of itself. Of rare ids that is nothing; frequent ones follow a drift.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.adagrad import RowAdaGrad, grow_rows, row_direction
from ctr.optim.protocol import Cost, RowGradient
from ctr.optim.update_limit import limit_update
from ctr.workers.collectives import Workers

OVERDISPERSION = 0.1
"""c: how much of the squared gradient counts as information."""
FORGETTING = 0.01
"""The share of precision, over the prior's, that is lost while information doubles; see above."""
_PRIOR_INFORMATION = 1.0
"""On log T_f: it starts with a standard deviation of 1."""
_MAX_STEP = 0.5
_RANGE = (-3.0, 12.0)
"""Of log T_f."""
_OPERATIONS = 40
"""For each linear weight of a touched row."""


class PriorGradient(NamedTuple):
    """Of log T of F features, float32 [F] each: the gradient of the loss, and its curvature."""

    gradient: tf.Tensor
    curvature: tf.Tensor


class Posterior(NamedTuple):
    """Linear weights of U rows, float32 [U] each.

    Attributes:
        weight: w.
        information: S.
        prior: the T that ``weight`` was shrunk by.
    """

    weight: tf.Tensor
    information: tf.Tensor
    prior: tf.Tensor


def prior_gradient(
    before: Posterior, precision: tf.Tensor, groups: tf.Tensor, gradient: tf.Tensor, curvature: tf.Tensor
) -> PriorGradient:
    """The gradient of a batch's loss by log T of each feature, before the step.

    Args:
        before: the weights of the touched rows.
        precision: T, float32 [F].
        groups: int32 [U], the feature of each row; -1 for none.
        gradient, curvature: G and H, float32 [U].
    """
    shrinkage = tf.gather(precision, tf.maximum(groups, 0))
    slope = -before.weight * shrinkage / (shrinkage + before.information)
    count = precision.shape[0]
    return PriorGradient(
        tf.math.unsorted_segment_sum(gradient * slope, groups, count),
        tf.math.unsorted_segment_sum(curvature * tf.square(slope), groups, count),
    )


def newton_step(
    before: Posterior,
    precision: tf.Tensor,
    gradient: tf.Tensor,
    curvature: tf.Tensor,
    rate: tf.Tensor | float = 1.0,
) -> Posterior:
    """The weights of some rows after a step; rows without curvature stay as they are.

    Args:
        before: the weights.
        precision: T of each row, float32 [U], above 0.
        gradient, curvature: G and H, float32 [U].
        rate: a factor of the gradient.
    """
    weight, old, prior = before
    total = precision + old
    shrunk = weight * (prior + old) / total
    # No row is without a precision, and 0 / 0 is in none of them.
    lost = FORGETTING * total / precision * tf.math.divide_no_nan(curvature, old + curvature)
    kept = tf.maximum(precision, total / (1.0 + lost))
    gained = curvature + OVERDISPERSION * tf.square(gradient) / (1.0 + curvature / kept)
    after = kept + gained
    moved = (shrunk * kept + weight * gained - rate * gradient) / after
    touched = curvature > 0
    return Posterior(
        tf.where(touched, moved, weight),
        tf.where(touched, after - precision, old),
        tf.where(touched, precision, prior),
    )


class RowNewton(RowAdaGrad):
    """Newton's steps for the linear weights of tables, element-wise AdaGrad for their embeddings.

    The information S is where AdaGrad would have the sum of squares of a linear weight.

    Args:
        rates: for each table float32 [C], the learning rates of its columns; of linear weights a factor of the step.
        initial_accumulators: for each table float32 [C], at which the sums of its columns start; of linear weights 0.
        features: for each table the number of its features.
        copies: of each table's columns, the last one in each copy being linear weights.
        precision: T of every feature at the beginning.
        limit, owners: see ``RowAdaGrad``.
    """

    row_state: tuple[str, ...] = ("rows_accumulator", "rows_prior")
    feature_state: tuple[str, ...] = ("prior_precision",)
    needs_curvature = True

    def __init__(
        self,
        rates: Sequence[np.ndarray],
        initial_accumulators: Sequence[np.ndarray],
        features: Sequence[int],
        copies: int,
        precision: float,
        limit: tuple[float, float] | None = None,
        owners: Sequence[Workers] | None = None,
    ) -> None:
        super().__init__(rates, initial_accumulators, limit, owners)
        self.features, self.copies, self.precision = tuple(features), copies, precision
        self.priors: dict[str, tf.Variable] = {}
        self.precisions: dict[str, tf.Variable] = {}

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        """Takes the tables, float32 [R, C] each, and creates the variables."""
        super().build(weights)
        for (name, table), features in zip(weights.items(), self.features, strict=True):
            start = tf.fill([tf.shape(table)[0], self.copies], np.float32(self.precision))
            self.priors[name] = tf.Variable(start, trainable=False, shape=[table.shape[0], self.copies])
            # Of each feature and copy log T, and the information on it.
            begin = [np.float32(np.log(self.precision)), np.float32(_PRIOR_INFORMATION)]
            self.precisions[name] = tf.Variable(
                np.tile(np.array(begin, np.float32), (features, self.copies)), trainable=False
            )

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The sums, the T that each row was shrunk by, [R, copies], and of each feature log T and its information."""
        return {
            **super().variables,
            **{f"rows_prior/{name}": variable for name, variable in self.priors.items()},
            **{f"prior_precision/{name}": variable for name, variable in self.precisions.items()},
        }

    def begin_rows(self, table: int, rows: np.ndarray, size: int) -> None:
        """Lets rows begin anew; ``size`` is the table's number of rows by now."""
        super().begin_rows(table, rows, size)
        prior = list(self.priors.values())[table]
        grow_rows(prior, size)
        values = np.full((len(rows), self.copies), self.precision, np.float32)
        prior.scatter_update(tf.IndexedSlices(values, rows))

    def read(self, rows: Sequence[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """The sums of these rows, [U, C] for each table, and the T that they were shrunk by, [U, copies]."""
        priors = [tf.gather(variable, own) for variable, own in zip(self.priors.values(), rows, strict=True)]
        return list(zip(super().read(rows), priors, strict=True))

    def update(self, gradients: Sequence[RowGradient], rate: tf.Tensor, compiled: bool) -> None:
        """One step on the touched rows; ``rate`` is a factor of the columns' rates."""
        del compiled
        names = list(self.accumulators)
        groups = zip(names, self.tables, self.rates, gradients, self.owners, strict=True)
        for name, table, rates, one, owners in groups:
            with tf.name_scope("row_update"):
                self._update_table(name, table, rate * rates, one, owners)

    def _update_table(
        self, name: str, table: tf.Variable, rates: tf.Tensor, one: RowGradient, owners: Workers
    ) -> None:
        assert one.curvature is not None and one.groups is not None
        width = table.shape[1] // self.copies
        sums, priors = one.state
        direction, squared = row_direction(sums, one.gradient)
        precisions = self.precisions[name].read_value()
        values, accumulators, shrunk_by, learned = [], [], [], []
        for copy in range(self.copies):
            begin, at = copy * width, (copy + 1) * width - 1
            own = slice(begin, at)
            values.append(one.values[:, own] - rates[own] * direction[:, own])
            accumulators.append(sums[:, own] + squared[:, own])
            before = Posterior(one.values[:, at], sums[:, at], priors[:, copy])
            logs, known = precisions[:, 2 * copy], precisions[:, 2 * copy + 1]
            precision = tf.exp(logs)
            gradient = one.gradient[:, at]
            found = prior_gradient(before, precision, one.groups, gradient, one.curvature)
            found = PriorGradient(*owners.all_reduce(found))
            of_rows = tf.gather(precision, tf.maximum(one.groups, 0))
            after = newton_step(before, of_rows, gradient, one.curvature, rates[at])
            values.append(after.weight[:, tf.newaxis])
            accumulators.append(after.information[:, tf.newaxis])
            shrunk_by.append(after.prior)
            known += found.curvature
            step = tf.clip_by_value(found.gradient / known, -_MAX_STEP, _MAX_STEP)
            learned += [tf.clip_by_value(logs - step, *_RANGE), known]
        moved = tf.concat(values, axis=1)
        if self.limit is not None:
            moved = one.values - limit_update(one.values, one.values - moved, *self.limit, owners)
        table.scatter_update(tf.IndexedSlices(moved, one.rows))
        accumulator, prior = self.accumulators[name], self.priors[name]
        accumulator.scatter_update(tf.IndexedSlices(tf.concat(accumulators, axis=1), one.rows))
        prior.scatter_update(tf.IndexedSlices(tf.stack(shrunk_by, axis=1), one.rows))
        self.precisions[name].assign(tf.stack(learned, axis=1))

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """The operations of a step in which so many rows of each table are touched, [U, C]."""
        linear = sum(_OPERATIONS * rows * self.copies for rows, _ in shapes)
        return Cost(update=super().cost(shapes).update + linear)
