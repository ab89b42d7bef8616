"""The training step: gather rows, score, losses, gradients, one sum over the group, a finite check, updates.

Contains functions of tensors only; ``ctr.training.compiled_step`` compiles them and calls them with batches.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from ctr.models.click_model import Scores as ExpertScores
from ctr.models.embeddings import look_up, tower_inputs
from ctr.models.numbers import look_up_numbers, next_statistics, split_values
from ctr.models.pooling import pool
from ctr.models.row_curvature import Part, row_curvatures
from ctr.models.rows import STATISTICS, with_numbers
from ctr.objective.config import ObjectiveConfig
from ctr.objective.losses import BatchObjective, next_duals, normalizer, slices_of
from ctr.optim.first_order.online_bias import Calibrator
from ctr.optim.first_order.online_newton import CalibrationStep
from ctr.optim.gradients import all_finite
from ctr.training.config import OptimizerConfig
from ctr.training.experts.forward import linear_expert, tables_of
from ctr.training.experts.learning import lesson_of
from ctr.training.label_outputs import label_lesson
from ctr.training.state import TrainState
from ctr.training.tables.tables import Gathered

_Tensors: TypeAlias = dict[str, tf.Tensor]
Curvature: TypeAlias = tuple[tf.Tensor, ...]


class StepResult(NamedTuple):
    """Predictions and losses that a step returns.

    Attributes:
        logit: float32 [B], the prediction of record: from the weights before the update.
        applied: bool scalar; False when the loss or a gradient was not finite and nothing was changed.
        slices: for each family of constraints the rows' slices, int32 [B], -1 for none.
        terms: float32 [T], the contribution of each of ``ctr.objective.losses.loss_terms`` to the loss.
        labels: for each further label, its logits, float32 [B], also from before the update.
    """

    logit: tf.Tensor
    applied: tf.Tensor
    slices: list[tf.Tensor]
    terms: tf.Tensor
    labels: Sequence[tf.Tensor] = ()


class BatchGradients(NamedTuple):
    """A batch's scores as in ``StepResult``, its gradients with respect to rows and dense weights, and ``steps``.

    ``logits`` has the logits of the click and of each further label, float32 [B]; ``curvatures`` has, for each table,
    ``curvature`` and ``groups`` of its ``RowGradient``, or nothing if the optimizer needs none. ``steps`` pairs each
    calibrator with its step; ``ctr.training.experts.learning.Lesson`` describes ``steps`` and ``gain``.
    """

    logits: list[tf.Tensor]
    slices: list[tf.Tensor]
    loss: tf.Tensor
    terms: tf.Tensor
    row_gradients: list[tf.Tensor]
    dense_gradients: list[tf.Tensor]
    curvatures: list[Curvature]
    steps: Sequence[tuple[Calibrator, CalibrationStep]]
    gain: tf.Tensor | None


class Scores(NamedTuple):
    """Scores of a batch: first for its good rows, then for the rows of constraint logs that came with it.

    For K batches, the good rows of all batches in order.
    """

    logit: np.ndarray  # float32 [N], the predictions from before any update
    slices: list[np.ndarray]  # for each family of constraints, int32 [N]
    applied: np.ndarray | None = None  # bool [K], whether each step changed the weights; None: no step
    terms: np.ndarray | None = None  # float32 [K, T], what each term contributed to each step's loss
    labels: Sequence[np.ndarray] = ()  # for each further label its logits, float32 [N]


class Step:
    """Functions of tensors with which a run scores batches and learns from them.

    They take the ``targets`` of the batch's rows (``ctr.objective.targets``), a plan for each table, and the current
    values of ramps and learning rates, float32 scalars.

    Attributes:
        state: the variables that ``learn`` changes.
        objective: the objective of the run.
        parts: parts of the model; training uses the mean of their gradients, and the first one scores.

    ``by_products``: whether multivalent embeddings are averaged by products with sparse matrices.
    """

    def __init__(
        self,
        state: TrainState,
        objective: ObjectiveConfig,
        optimizer: OptimizerConfig,
        parts: Sequence[Part],
        by_products: bool,
    ) -> None:
        self.state, self.objective, self.parts = state, objective, parts
        self._group, self._clip_norm = state.group, optimizer.dense.clip_norm
        self._sums_rows = optimizer.embeddings.gradient == "sum"
        self._by_products = by_products

    def learn(
        self,
        preconditions: bool,
        targets: _Tensors,
        plans: list[_Tensors],
        ramps: _Tensors,
        rates: _Tensors,
    ) -> StepResult:
        """Scores a batch with the weights from before the step, and then learns from it.

        Without ``preconditions`` dense weights take first-order steps, as with small batches.
        """
        state = self.state
        # The optimizer's state of the rows is read here, too, in parallel to the products.
        gathered = state.tables.gather(plans, learning=True)
        duals = [dual.read_value() for dual in state.duals]
        parts = [
            self.differentiate(targets, gathered.views, gathered.rows, ramps, duals, part)
            for part in self.parts
        ]
        batch = self._sum_over_group(gathered, mean_of_parts(parts))
        seen = [weights.read_value() for weights in state.slices_seen]
        constrained = BatchObjective(self.objective, targets, ramps, duals, batch.slices, self._group)
        moved = next_duals(constrained, state.families, batch.logits[0], rates["duals"], seen)
        changed = [tensor for pair in moved for tensor in pair]
        numbers = self._next_statistics(targets)
        applied = all_finite([batch.loss, *batch.row_gradients, *batch.dense_gradients, *changed])
        applied, (logit, *labels), slices = self._gather_scores(applied, batch.logits, batch.slices)

        def update() -> tf.Tensor:
            state.tables.update(gathered, batch.row_gradients, batch.curvatures, rates["embeddings"])
            self._update_dense(batch.dense_gradients, rates["dense"], preconditions)
            for calibrator, step in batch.steps:
                calibrator.apply(step)
            if batch.gain is not None:
                state.experts.gain.assign_add(tf.cast(batch.gain, tf.float64))
            for variable, value in numbers:
                variable.assign(value)
            for dual, weights, (next_dual, next_seen) in zip(
                state.duals, state.slices_seen, moved, strict=True
            ):
                dual.assign(next_dual)
                weights.assign(next_seen)
            return tf.constant(True)

        applied = tf.cond(applied, update, lambda: tf.constant(False))
        return StepResult(logit, applied, slices, batch.terms, labels)

    def score(
        self, targets: _Tensors, plans: list[_Tensors], ramps: _Tensors
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns a batch's logits of the click and of each label, float32 [B], and slices as in ``StepResult``."""
        gathered = self.state.tables.gather(plans)
        _, logits = self._scores(targets, gathered.rows, gathered.views, ramps["alpha2"], self.parts[0])
        slices = slices_of(self.state.families, targets, logits[0])
        return self._gather_scores(tf.constant(True), logits, slices)[1:]

    def _gather_scores(
        self, holds: tf.Tensor, logits: Sequence[tf.Tensor], slices: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Returns whether ``holds`` in the whole group, and the logits and slices of all rows of the batch."""
        if self._group.size == 1:
            return holds, list(logits), list(slices)
        # Slice indices are small enough to be exact in float32. Nothing else may read the logits, not even their shape:
        # TensorFlow would add up their terms in another order.
        columns = [*logits, *(tf.cast(numbers, tf.float32) for numbers in slices)]
        flag = tf.fill([1, len(columns)], tf.cast(holds, tf.float32))
        with tf.name_scope("gather_scores"):
            message = tf.concat([tf.stack(columns, axis=1), flag], axis=0)
            gathered = tf.reshape(self._group.all_gather(message), [-1, tf.shape(message)[0], len(columns)])
        holds, rows = tf.reduce_all(gathered[:, -1] > 0), tf.reshape(gathered[:, :-1], [-1, len(columns)])
        scores = tf.unstack(rows, len(columns), axis=1)
        return holds, scores[: len(logits)], [tf.cast(index, tf.int32) for index in scores[len(logits) :]]

    def _next_statistics(self, targets: _Tensors) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Returns the variables with statistics of numbers, and their values after the rows that are learned from."""
        state = self.state
        if state.statistics is None or state.apart is None:
            return []
        statistics, apart = state.statistics.read_value(), state.apart.read_value()
        numbers, counts = targets[STATISTICS], targets["own_weight"] > 0
        with tf.name_scope("statistics"):
            gather = self._gather_parts if self._group.size > 1 else None
            after = next_statistics(state.layouts, statistics, apart, numbers, counts, gather)
        return list(zip((state.statistics, state.apart), after, strict=True))

    def _gather_parts(self, part: tf.Tensor) -> list[tf.Tensor]:
        return tf.unstack(tf.reshape(self._group.all_gather(part), [self._group.size, *part.shape]))

    def _scores(
        self,
        targets: _Tensors,
        rows: Sequence[tf.Tensor],
        plans: Sequence[_Tensors],
        alpha2: tf.Tensor,
        part: Part,
    ) -> tuple[dict[str, ExpertScores], list[tf.Tensor]]:
        """Returns the scores of each expert with tables in ``plans``, and the logits of click and labels, [B]."""
        model, layouts = self.state.architecture, self.state.layouts[: len(plans)]
        weights = part.weights(self.state.all_weights)
        with tf.name_scope("look_up"):
            looked_up = [
                part.looked_up(
                    layout, look_up(layout, values, plan, model.input_dtype(layout.tower), self._by_products)
                )
                for layout, values, plan in zip(layouts, rows, plans, strict=True)
            ]
            if model.pooled:
                looked_up, layouts = pool(weights, layouts, looked_up, rows, plans, self._by_products)
            if self.state.statistics is not None:
                numbers = split_values(layouts, targets[STATISTICS]), self.state.statistics.read_value()
                looked_up += look_up_numbers(*numbers, layouts[0].copies, model.input_dtype)
                layouts = with_numbers(layouts)
            inputs = tower_inputs(looked_up, layouts, model.factors is not None)
        experts = self.state.experts_of(plans)
        scores = experts.scores(weights, inputs, alpha2, compiled=True)
        return scores, experts.predictions(self.state.all_weights, scores)

    def differentiate(
        self,
        targets: _Tensors,
        plans: list[_Tensors],
        rows: list[tf.Tensor],
        ramps: _Tensors,
        duals: list[tf.Tensor],
        part: Part,
    ) -> BatchGradients:
        """Computes the scores, loss and gradients of a batch."""
        state, objective = self.state, self.objective
        outside = objective.ranks_outside_embeddings
        with tf.GradientTape(persistent=outside, watch_accessed_variables=False) as tape:
            tape.watch(rows)
            tape.watch(state.dense)
            scores, logits = self._scores(targets, rows, plans, ramps["alpha2"], part)
            logit = logits[0]
            slices = slices_of(state.families, targets, logit)
            batch = BatchObjective(objective, targets, ramps, duals, slices, self._group)
            with tf.name_scope("loss"):
                lesson = lesson_of(state.experts, state.experts_of(plans), batch, scores, logit)
                loss, terms, learned, rest = lesson.loss, lesson.terms, lesson.learned, lesson.unranked
                steps = list(lesson.steps)
                if state.label_biases:
                    label_terms, label_steps = label_lesson(batch, state.label_biases, scores)
                    added = tf.add_n(label_terms)
                    loss, terms = loss + added, tf.concat([terms, tf.stack(label_terms)], axis=0)
                    learned, rest = learned + added, rest + added
                    steps += label_steps
        zero = tf.UnconnectedGradients.ZERO
        row_gradients, dense_gradients = tape.gradient(
            learned, (rows, state.dense), unconnected_gradients=zero
        )
        dense_gradients = [tf.convert_to_tensor(gradient) for gradient in dense_gradients]
        if outside:
            unranked = tape.gradient(rest, rows, unconnected_gradients=zero)
            row_gradients = [
                tf.where(layout.by_column(1, 0) > 0, *both)
                for layout, *both in zip(state.layouts, unranked, row_gradients, strict=False)
            ]
        # The loss is a mean over components. Weights of a single component learn as if it were alone.
        components = state.architecture.components
        if components > 1:
            dense_gradients = [gradient * components for gradient in dense_gradients]
            row_gradients = [
                tf.convert_to_tensor(gradient) * layout.copies
                for gradient, layout in zip(row_gradients, state.layouts, strict=False)
            ]
        row_gradients = [tf.convert_to_tensor(gradient) for gradient in row_gradients]
        if self._sums_rows:
            total_weight = normalizer(objective, targets)
            row_gradients = [gradient * total_weight for gradient in row_gradients]
        curvatures: list[Curvature] = [() for _ in plans]
        if state.tables.optimizer.needs_curvature:
            experts = state.experts_of(plans)
            layouts = tables_of(experts, state.layouts)
            bends = [lesson.curvature[linear_expert(experts, layout)] for layout in layouts]
            sums = row_curvatures(layouts, plans, bends, targets["query"])
            curvatures = [part.curvature(*each) for each in zip(layouts, sums, strict=True)]
        return BatchGradients(
            logits, slices, loss, terms, row_gradients, dense_gradients, curvatures, steps, lesson.gain
        )

    def _sum_over_group(self, gathered: Gathered, batch: BatchGradients) -> BatchGradients:
        """Sums loss, gradients and curvatures over the group, for tables only of this worker's rows; keeps logits."""
        row_gradients, curvatures = self.state.tables.rows.add_up(
            gathered.plans, batch.row_gradients, batch.curvatures
        )
        # Separately: their shapes are static, so that nothing is padded.
        with tf.name_scope("all_reduce"):
            loss, terms, *dense_gradients = self._group.all_reduce(
                [batch.loss, batch.terms, *batch.dense_gradients]
            )
        return batch._replace(
            loss=loss,
            terms=terms,
            row_gradients=row_gradients,
            dense_gradients=dense_gradients,
            curvatures=curvatures,
        )

    def _update_dense(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, preconditions: bool) -> None:
        gradients = [
            tf.zeros_like(gradient) if name in self.state.fitted else gradient
            for name, gradient in zip(self.state.weights, gradients, strict=True)
        ]
        if self._clip_norm is not None:
            # Per component, like its other gradients.
            size = len(gradients) // self.state.architecture.components
            gradients = [
                gradient
                for begin in range(0, len(gradients), size)
                for gradient in tf.clip_by_global_norm(gradients[begin : begin + size], self._clip_norm)[0]
            ]
        with tf.name_scope("dense_update"):
            self.state.dense_optimizer.update(gradients, rate, preconditions)


def mean_of_parts(parts: Sequence[BatchGradients]) -> BatchGradients:
    """Averages gradients and curvatures over the parts of a model; everything else is taken from the first part."""
    if len(parts) == 1:
        return parts[0]
    rows = [_mean(gradients) for gradients in zip(*(part.row_gradients for part in parts), strict=True)]
    dense = [_mean(gradients) for gradients in zip(*(part.dense_gradients for part in parts), strict=True)]
    curvatures: list[Curvature] = [
        # The features of the rows are the same for all.
        (_mean([curvature for curvature, *_ in of_table]), *of_table[0][1:]) if of_table[0] else ()
        for of_table in zip(*(part.curvatures for part in parts), strict=True)
    ]
    return parts[0]._replace(row_gradients=rows, dense_gradients=dense, curvatures=curvatures)


def _mean(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([*map(tf.convert_to_tensor, tensors)]) / len(tensors)
