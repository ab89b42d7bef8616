"""The training step: gather rows, score, losses, gradients, one sum over the group, a finite check, updates.

Functions of tensors alone; ``ctr.training.compiled_step`` compiles them and feeds them with batches.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from ctr.models.click_model import Scores, TowerInput, ensemble_logit, forward
from ctr.models.crosses import Multiply
from ctr.models.dcn import Products, recorded
from ctr.models.embeddings import look_up, tower_inputs
from ctr.models.part import Part
from ctr.models.rows import TableLayout
from ctr.objective.total import loss_and_terms, next_duals, normalizer, slices_of
from ctr.optim.gradients import all_finite
from ctr.optim.momentum import clip_by_global_norm
from ctr.optim.protocol import ProductOptimizer
from ctr.training.config import TrainConfig
from ctr.training.experts import Lesson, linear_curvature, own_lessons
from ctr.training.gradient_noise import squared_norms
from ctr.training.product_factors import click_likelihood, product_factors
from ctr.training.state import TrainState
from ctr.training.step_exchange import gather_scores
from ctr.training.tables.tables import Gathered

_Tensors: TypeAlias = dict[str, tf.Tensor]


class StepResult(NamedTuple):
    """What a step returns.

    Attributes:
        logit: float32 [B], the prediction of record: from the weights before the update.
        loss: float32 scalar, the objective on the batch.
        applied: bool scalar; False when loss or a gradient was not finite and nothing was changed.
        slices: for each family of constraints the rows' slices, int32 [B], -1 for none.
        terms: float32 [T], what each of ``ctr.objective.total.loss_terms`` contributes to the loss.
    """

    logit: tf.Tensor
    loss: tf.Tensor
    applied: tf.Tensor
    slices: list[tf.Tensor]
    terms: tf.Tensor


class _Differentiated(NamedTuple):
    """A batch's scores as in ``StepResult``, the gradients of rows and of dense weights, and what they are of."""

    logit: tf.Tensor
    slices: list[tf.Tensor]
    loss: tf.Tensor
    terms: tf.Tensor
    row_gradients: list[tf.Tensor]
    dense_gradients: list[tf.Tensor]
    lesson: Lesson


class Step:
    """The functions of tensors by which a run scores its batches and learns from them.

    The arguments of all: ``targets`` of the batch's rows (``ctr.objective.targets``), for each table its ``plans``, and
    what ramps and learning rates have reached, float32 scalars.

    Attributes:
        state: the variables that ``learn`` changes.
        config: of the run.
        parts: of the model; it learns by the mean of their gradients, and the first one scores.
        by_products: whether multivalent embeddings are averaged by products with sparse matrices.
        exchanges: whether statistics go to the host, and roots from it, between two steps, and not in them.
    """

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        parts: Sequence[Part],
        by_products: bool,
        exchanges: bool,
    ) -> None:
        """Makes the functions; the arguments are the attributes."""
        self.state, self.config, self.parts = state, config, parts
        self.by_products, self.exchanges = by_products, exchanges
        self._workers = state.group

    def learn(self, targets: _Tensors, plans: list[_Tensors], ramps: _Tensors, rates: _Tensors) -> StepResult:
        """Scores a batch by the weights from before the step, and then learns from it."""
        state = self.state
        # The optimizer's state of the rows is read here, too, where there is time for it beside the products.
        gathered = state.tables.gather(plans, learning=True)
        needed, views = gathered.rows, gathered.views
        duals = [dual.read_value() for dual in state.duals]
        each = [self._differentiate(targets, views, needed, ramps, duals, part) for part in self.parts]
        found, curvatures = each[0], None
        if len(each) > 1:
            found, curvatures = self._mean_of_parts(targets, plans, each)
        if self._workers.size > 1:
            found, curvatures = self._of_whole_batch(targets, gathered, found)
        seen = [weights.read_value() for weights in state.slices_seen]
        moved = next_duals(
            self.config.objective,
            state.families,
            targets,
            found.logit,
            ramps["bias_constraints"],
            duals,
            seen,
            found.slices,
            self._workers,
        )
        changed = [tensor for pair in moved for tensor in pair]
        applied = all_finite([found.loss, *found.row_gradients, *found.dense_gradients, *changed])
        applied, logit, slices = gather_scores(self._workers, applied, found.logit, found.slices)

        def update() -> tf.Tensor:
            of_rows = curvatures
            if of_rows is None:
                of_rows = self._curvatures(plans, targets, found, self.parts[0])
            rate = rates["embeddings"]
            state.tables.update(gathered, found.row_gradients, of_rows, rate, self.exchanges)
            if isinstance(state.dense_optimizer, ProductOptimizer):
                forward = partial(self._forward, needed, views, ramps["alpha2"], self.parts[0])
                given = state.dense_optimizer, forward, needed, state.layers, targets, self._workers
                state.dense_optimizer.observe(partial(product_factors, *given))
            self._update_dense(found.dense_gradients, rates["dense"])
            for calibrator, step in zip(state.calibrators, found.lesson.steps, strict=True):
                calibrator.apply(step)
            for dual, weights, (next_dual, next_seen) in zip(
                state.duals, state.slices_seen, moved, strict=True
            ):
                dual.assign(next_dual)
                weights.assign(next_seen)
            return tf.constant(True)

        applied = tf.cond(applied, update, lambda: tf.constant(False))
        return StepResult(logit, found.loss, applied, slices, found.terms)

    def score(
        self, targets: _Tensors, plans: list[_Tensors], ramps: _Tensors
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Scores a batch alone: logits, float32 [B], and slices as in ``StepResult``."""
        gathered = self.state.tables.gather(plans)
        scores = self._forward(gathered.rows, gathered.views, ramps["alpha2"], self.parts[0])
        logit = ensemble_logit(scores.logits)
        slices = slices_of(self.state.families, targets, logit)
        return gather_scores(self._workers, tf.constant(True), logit, slices)[1:]

    def gradients(
        self, targets: _Tensors, plans: list[_Tensors], ramps: _Tensors
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Computes what ``learn`` would learn by: the gradients of the batch's rows and of the dense weights."""
        gathered, duals = self.state.tables.gather(plans), [dual.read_value() for dual in self.state.duals]
        found = self._differentiate(targets, gathered.views, gathered.rows, ramps, duals, self.parts[0])
        return found.row_gradients, found.dense_gradients

    def gradient_norms(self, targets: _Tensors, plans: list[_Tensors], ramps: _Tensors) -> list[tf.Tensor]:
        """Computes the squared norms of ``ctr.training.gradient_noise`` for each product of the network."""
        products: Products = []
        with tf.GradientTape() as tape:
            gathered = self.state.tables.gather(plans)
            scores = self._forward(
                gathered.rows, gathered.views, ramps["alpha2"], self.parts[0], multiply=recorded(products)
            )
            loss = click_likelihood(None, scores, targets)
        gradients = tape.gradient(loss, [output for _, output in products])
        return [squared_norms(products, gradients, tf.cast(targets["own_weight"] > 0, tf.float32))]

    # Their parts.

    def _mean_of_parts(
        self, targets: _Tensors, plans: list[_Tensors], found: Sequence[_Differentiated]
    ) -> tuple[_Differentiated, list[tuple[tf.Tensor, ...]]]:
        """What several parts found: the means of their gradients and curvatures, all else of the first one."""
        curvatures = [self._curvatures(plans, targets, *both) for both in zip(found, self.parts, strict=True)]
        rows = [_mean(parts) for parts in zip(*(one.row_gradients for one in found), strict=True)]
        dense = [_mean(parts) for parts in zip(*(one.dense_gradients for one in found), strict=True)]
        means: list[tuple[tf.Tensor, ...]] = [
            # Whose the rows are is the same for all.
            (_mean([curvature for curvature, *_ in own]), *own[0][1:]) if own[0] else ()
            for own in zip(*curvatures, strict=True)
        ]
        return found[0]._replace(row_gradients=rows, dense_gradients=dense), means

    def _of_whole_batch(
        self, targets: _Tensors, gathered: Gathered, found: _Differentiated
    ) -> tuple[_Differentiated, list[tuple[tf.Tensor, ...]]]:
        """What all workers found: loss, gradients and curvatures of the whole batch; logits stay this one's.

        Of divided tables those of this worker's rows.
        """
        curvatures = self._curvatures(gathered.views, targets, found, self.parts[0])
        row_gradients, curvatures = self.state.tables.add_up(gathered, found.row_gradients, curvatures)
        # By themselves: of static shapes, their number of bytes is known, and nothing is padded.
        with tf.name_scope("all_reduce"):
            same = self._workers.all_reduce([found.loss, found.terms, *found.dense_gradients])
        loss, terms, *dense_gradients = same
        found = found._replace(
            loss=loss, terms=terms, row_gradients=row_gradients, dense_gradients=dense_gradients
        )
        return found, curvatures

    def _forward(
        self,
        rows: Sequence[tf.Tensor],
        plans: Sequence[_Tensors],
        alpha2: tf.Tensor,
        part: Part,
        chosen: tf.Tensor | None = None,
        multiply: Multiply | None = None,
    ) -> Scores:
        """Scores the batch, or the rows of these numbers alone."""
        model, layouts = self.state.architecture, self.state.layouts
        with tf.name_scope("look_up"):
            looked_up = [
                part.looked_up(
                    layout, look_up(layout, own, plan, model.input_dtype(layout.tower), self.by_products)
                )
                for layout, own, plan in zip(layouts, rows, plans, strict=True)
            ]
            inputs = tower_inputs(looked_up, layouts, model.factors is not None)
        if chosen is not None:
            inputs = {
                name: TowerInput(*(tf.gather(value, chosen, axis=1) for value in own))
                for name, own in inputs.items()
            }
        weights = part.weights(self.state.weights)
        return forward(model, weights, inputs, alpha2, compiled=True, multiply=multiply)

    def _differentiate(
        self,
        targets: _Tensors,
        plans: list[_Tensors],
        rows: list[tf.Tensor],
        ramps: _Tensors,
        duals: list[tf.Tensor],
        part: Part,
    ) -> _Differentiated:
        """Scores, loss, and the gradients to learn by."""
        state, objective = self.state, self.config.objective
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(rows)
            tape.watch(state.dense)
            scores = self._forward(rows, plans, ramps["alpha2"], part)
            logit = ensemble_logit(scores.logits)
            slices = slices_of(state.families, targets, logit)
            with tf.name_scope("loss"):
                loss, terms = self._loss_and_terms(targets, logit, scores, ramps, duals, slices)
                lesson = Lesson(loss, logit)
                if scores.experts:

                    def loss_of(one: tf.Tensor, shifted: tf.Tensor) -> tf.Tensor:
                        own = Scores(one, one)
                        return self._loss_and_terms(targets, one[0], own, ramps, duals, slices, shifted)[0]

                    models = list(scores.experts.values())
                    lesson = own_lessons(loss_of, state.calibrators, self._workers, targets, logit, models)
        row_gradients, dense_gradients = tape.gradient(
            lesson.loss, (rows, state.dense), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # The loss is a mean over components. What is one component's own learns as if that one were alone.
        components = state.architecture.components
        if components > 1:
            dense_gradients = [gradient * components for gradient in dense_gradients]
            row_gradients = [
                tf.convert_to_tensor(gradient) * layout.copies
                for gradient, layout in zip(row_gradients, state.layouts, strict=True)
            ]
        row_gradients = [tf.convert_to_tensor(gradient) for gradient in row_gradients]
        if self.config.optimizer.embeddings.gradient == "sum":
            total_weight = normalizer(objective, targets)
            row_gradients = [gradient * total_weight for gradient in row_gradients]
        return _Differentiated(logit, slices, loss, terms, row_gradients, dense_gradients, lesson)

    def _loss_and_terms(
        self,
        targets: _Tensors,
        logit: tf.Tensor,
        scores: Scores,
        ramps: _Tensors,
        duals: list[tf.Tensor],
        slices: list[tf.Tensor],
        shifted: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return loss_and_terms(
            self.config.objective,
            targets,
            logit,
            scores.logits,
            scores.rank_scores,
            ramps,
            duals,
            slices,
            self._workers,
            shifted,
        )

    def _curvatures(
        self,
        plans: Sequence[_Tensors],
        targets: _Tensors,
        found: _Differentiated,
        part: Part,
    ) -> list[tuple[tf.Tensor, ...]]:
        """For each table the last fields of a ``RowGradient``, where the optimizer needs them."""
        if not self.state.tables.optimizer.needs_curvature:
            return [() for _ in plans]
        return [
            self._curvature(layout, plan, targets, found, part)
            for layout, plan in zip(self.state.layouts, plans, strict=True)
        ]

    def _curvature(
        self, layout: TableLayout, plan: _Tensors, targets: _Tensors, found: _Differentiated, part: Part
    ) -> tuple[tf.Tensor, ...]:
        # Rows of constraint logs learn from their constraint alone.
        weight = targets["own_weight" if self.config.objective.bias_constraints is None else "weight"]
        return part.curvature(layout, linear_curvature(layout, plan, targets, weight, found.lesson))

    def _update_dense(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor) -> None:
        gradients = [
            tf.zeros_like(gradient) if name in self.state.fitted else gradient
            for name, gradient in zip(self.state.weights, gradients, strict=True)
        ]
        norm = self.config.optimizer.dense.clip_norm
        if norm is not None:
            # Each component by itself, as everything else that it learns by.
            size = len(gradients) // self.state.architecture.components
            gradients = [
                gradient
                for begin in range(0, len(gradients), size)
                for gradient in clip_by_global_norm(gradients[begin : begin + size], norm)
            ]
        with tf.name_scope("dense_update"):
            if self.state.averaging is None:
                self.state.dense_optimizer.update(gradients, rate, self.exchanges)
            else:
                self.state.averaging.step(
                    rate, lambda: self.state.dense_optimizer.update(gradients, rate, self.exchanges)
                )


def _mean(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([*map(tf.convert_to_tensor, tensors)]) / len(tensors)
