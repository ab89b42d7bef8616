"""The gradients of a batch: scores, losses and what the weights learn by.

Functions of tensors alone, which ``ctr.training.step`` calls.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from ctr.models.click_model import Scores
from ctr.models.embeddings import look_up, tower_inputs
from ctr.models.numbers import look_up_numbers, split_values
from ctr.models.pooling import pool
from ctr.models.row_curvature import Part, row_curvature
from ctr.models.rows import STATISTICS, with_numbers
from ctr.objective.config import ObjectiveConfig
from ctr.objective.losses import normalizer, slices_of
from ctr.optim.first_order.online_bias import Calibrator
from ctr.optim.first_order.online_newton import CalibrationStep
from ctr.training.experts.forward import linear_expert, tables_of
from ctr.training.experts.learning import Batch, lesson_of
from ctr.training.label_outputs import label_lesson
from ctr.training.state import TrainState

_Tensors: TypeAlias = dict[str, tf.Tensor]
Curvature: TypeAlias = tuple[tf.Tensor, ...]


class BatchGradients(NamedTuple):
    """A batch's scores as in ``StepResult``, the gradients of rows and of dense weights, and what they are of.

    ``logits`` are those of the click and of each further label, float32 [B]; ``bends`` what the curvature of each
    table's rows is made of, empty where the optimizer needs none; ``curvatures`` for each table the last fields of a
    ``RowGradient``, None: not computed yet. ``gain`` is that of ``ctr.training.experts.learning.Lesson``.
    """

    logits: list[tf.Tensor]
    slices: list[tf.Tensor]
    loss: tf.Tensor
    terms: tf.Tensor
    row_gradients: list[tf.Tensor]
    dense_gradients: list[tf.Tensor]
    steps: Sequence[tuple[Calibrator, CalibrationStep]]
    bends: Sequence[tuple[tf.Tensor, tf.Tensor]]
    gain: tf.Tensor | None
    curvatures: list[Curvature] | None = None


class Differentiation:
    """Scores batches by the weights of a run, and computes gradients.

    ``plans`` are those of each table, ``rows`` its rows of the batch's distinct ids.
    """

    def __init__(
        self, state: TrainState, objective: ObjectiveConfig, sums_rows: bool, by_products: bool
    ) -> None:
        """``sums_rows``: whether rows learn by the sum of the losses, and not by their mean."""
        self.state, self.objective, self.sums_rows, self.by_products = (
            state,
            objective,
            sums_rows,
            by_products,
        )
        self._workers = state.workers

    def scores(
        self,
        targets: _Tensors,
        rows: Sequence[tf.Tensor],
        plans: Sequence[_Tensors],
        alpha2: tf.Tensor,
        part: Part,
    ) -> dict[str, Scores]:
        """Scores the batch, by each expert that has its tables among ``plans``."""
        model, layouts = self.state.architecture, self.state.layouts[: len(plans)]
        weights = part.weights(self.state.all_weights)
        with tf.name_scope("look_up"):
            looked_up = [
                part.looked_up(
                    layout, look_up(layout, own, plan, model.input_dtype(layout.tower), self.by_products)
                )
                for layout, own, plan in zip(layouts, rows, plans, strict=True)
            ]
            if model.pooled:
                looked_up, layouts = pool(weights, layouts, looked_up, rows, plans, self.by_products)
            if self.state.statistics is not None:
                own = split_values(layouts, targets[STATISTICS]), self.state.statistics.read_value()
                looked_up += look_up_numbers(*own, layouts[0].copies, model.input_dtype)
                layouts = with_numbers(layouts)
            inputs = tower_inputs(looked_up, layouts, model.factors is not None)
        return self.state.experts_of(plans).scores(weights, inputs, alpha2, compiled=True)

    def predictions(self, scores: Mapping[str, Scores], plans: Sequence[_Tensors]) -> list[tf.Tensor]:
        """Computes the logits of the click, and of each further label: float32 [B] each."""
        return self.state.experts_of(plans).predictions(self.state.all_weights, scores)

    def differentiate(
        self,
        targets: _Tensors,
        plans: list[_Tensors],
        rows: list[tf.Tensor],
        ramps: _Tensors,
        duals: list[tf.Tensor],
        part: Part,
    ) -> BatchGradients:
        """Computes the scores of a batch, its loss, and the gradients to learn by."""
        state, objective = self.state, self.objective
        outside = objective.ranks_outside_embeddings
        with tf.GradientTape(persistent=outside, watch_accessed_variables=False) as tape:
            tape.watch(rows)
            tape.watch(state.dense)
            scores = self.scores(targets, rows, plans, ramps["alpha2"], part)
            logit, *label_logits = self.predictions(scores, plans)
            slices = slices_of(state.families, targets, logit)
            batch = Batch(objective, targets, ramps, duals, slices, self._workers)
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
        # The loss is a mean over components. What is one component's own learns as if that one were alone.
        components = state.architecture.components
        if components > 1:
            dense_gradients = [gradient * components for gradient in dense_gradients]
            row_gradients = [
                tf.convert_to_tensor(gradient) * layout.copies
                for gradient, layout in zip(row_gradients, state.layouts, strict=False)
            ]
        row_gradients = [tf.convert_to_tensor(gradient) for gradient in row_gradients]
        if self.sums_rows:
            total_weight = normalizer(objective, targets)
            row_gradients = [gradient * total_weight for gradient in row_gradients]
        bends: list[tuple[tf.Tensor, tf.Tensor]] = []
        if state.tables.optimizer.needs_curvature:
            experts = state.experts_of(plans)
            bends = [
                lesson.curvature[linear_expert(experts, layout)]
                for layout in tables_of(experts, state.layouts)
            ]
        return BatchGradients(
            [logit, *label_logits],
            slices,
            loss,
            terms,
            row_gradients,
            dense_gradients,
            steps,
            bends,
            lesson.gain,
        )

    def curvatures(
        self,
        plans: Sequence[_Tensors],
        targets: _Tensors,
        batch: BatchGradients,
        part: Part,
    ) -> list[Curvature]:
        """Computes for each table the last fields of a ``RowGradient``, where the optimizer needs them."""
        if not batch.bends:
            return [() for _ in plans]
        return [
            part.curvature(layout, row_curvature(layout, plan, *bends, targets["query"]))
            for layout, plan, bends in zip(self.state.layouts, plans, batch.bends, strict=False)
        ]


def mean_of_parts(
    batches: Sequence[BatchGradients], curvatures: Sequence[Sequence[Curvature]]
) -> BatchGradients:
    """Averages what several parts of a model found; all but gradients and curvatures is that of the first one."""
    rows = [_mean(parts) for parts in zip(*(batch.row_gradients for batch in batches), strict=True)]
    dense = [_mean(parts) for parts in zip(*(batch.dense_gradients for batch in batches), strict=True)]
    means: list[Curvature] = [
        # Whose the rows are is the same for all.
        (_mean([curvature for curvature, *_ in parts]), *parts[0][1:]) if parts[0] else ()
        for parts in zip(*curvatures, strict=True)
    ]
    return batches[0]._replace(row_gradients=rows, dense_gradients=dense, curvatures=means)


def _mean(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([*map(tf.convert_to_tensor, tensors)]) / len(tensors)
