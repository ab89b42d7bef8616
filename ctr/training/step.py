"""The training step: one compiled function that scores a batch and then learns from it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.models.embeddings import look_up, split_columns
from ctr.models.rows import TablePlan
from ctr.objective.losses import logistic_loss, weighted_mean
from ctr.optim.adagrad import update_rows
from ctr.optim.momentum import clip_by_global_norm
from ctr.optim.shampoo import all_finite
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed
from ctr.training.state import TrainState


class StepResult(NamedTuple):
    """What a step gives back.

    Attributes:
        logit: float32 [B], the prediction of record: from the weights before the update.
        loss: float32 scalar, the weighted mean loss of the batch.
        applied: bool scalar; False when loss or a gradient was not finite and nothing was changed.
    """

    logit: tf.Tensor
    loss: tf.Tensor
    applied: tf.Tensor


def _plan_tensors(plan: TablePlan) -> dict[str, np.ndarray]:
    return {
        "distinct": plan.distinct,
        "single": plan.single,
        "values": plan.values,
        "segments": plan.segments,
    }


def make_step(state: TrainState, config: TrainConfig, jit: bool) -> Callable[[Feed, float], StepResult]:
    """Compiles the step for ``state``.

    Returns:
        A function of a feed and of alpha2 (the ramp of the crosses).
    """
    optimizer = config.optimizer
    tower_rates: dict[str, float] = dict(optimizer.rows.tower_rates.items())
    row_rates = []
    for layout in state.layouts:
        rate = np.full(layout.width + 1, optimizer.rows.learning_rate, np.float32)
        rate[layout.width] = optimizer.rows.linear_learning_rate
        row_rates.append(tf.constant(rate * tower_rates.get(layout.tower, 1.0)))

    decayed = [len(weight.shape) > 1 for weight in state.dense]

    def forward(
        rows: Sequence[tf.Tensor], plans: Sequence[dict[str, tf.Tensor]], alpha2: tf.Tensor
    ) -> tf.Tensor:
        looked_up = [
            look_up(layout, part, plan) for layout, part, plan in zip(state.layouts, rows, plans, strict=True)
        ]
        e0, linear = split_columns(looked_up, state.layouts)
        return state.network(e0, linear, alpha2)

    def learn(
        plans: Sequence[dict[str, tf.Tensor]],
        row_gradients: Sequence[tf.Tensor],
        dense_gradients: Sequence[tf.Tensor],
    ) -> None:
        for table, accumulator, plan, gradient, rate in zip(
            state.tables, state.row_accumulators, plans, row_gradients, row_rates, strict=True
        ):
            update_rows(table, accumulator, plan["distinct"], gradient, rate)
        dense = optimizer.dense
        if dense.clip_norm is not None:
            dense_gradients = clip_by_global_norm(dense_gradients, dense.clip_norm)
        # XLA compiles no call to the host.
        state.shampoo.update(
            dense_gradients, dense.learning_rate, decayed, "between_steps" if jit else "host"
        )

    def step(
        label: tf.Tensor, weight: tf.Tensor, plans: list[dict[str, tf.Tensor]], alpha2: tf.Tensor
    ) -> StepResult:
        rows = [tf.gather(table, plan["distinct"]) for table, plan in zip(state.tables, plans, strict=True)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(rows)
            tape.watch(state.dense)
            logit = forward(rows, plans, alpha2)
            loss = weighted_mean(logistic_loss(label, logit), weight)
        row_gradients, dense_gradients = tape.gradient(
            loss, (rows, state.dense), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        if optimizer.rows.gradient == "sum":
            row_gradients = [tf.convert_to_tensor(g) * tf.reduce_sum(weight) for g in row_gradients]
        else:
            row_gradients = [tf.convert_to_tensor(g) for g in row_gradients]
        applied = all_finite([loss, *row_gradients, *dense_gradients])

        def update() -> tf.Tensor:
            learn(plans, row_gradients, dense_gradients)
            return tf.constant(True)

        return StepResult(logit, loss, tf.cond(applied, update, lambda: tf.constant(False)))

    vector = tf.TensorSpec([None], tf.float32)
    indices = tf.TensorSpec([None], tf.int32)
    plans = [
        {
            "distinct": indices,
            "single": tf.TensorSpec([None, len(layout.single)], tf.int32),
            "values": indices,
            "segments": indices,
        }
        for layout in state.layouts
    ]
    signature = [vector, vector, plans, tf.TensorSpec([], tf.float32)]
    # XLA compiles each of the few padded sizes by itself, from this one trace.
    compiled = tf.function(step, input_signature=signature, jit_compile=jit or None)

    def run(feed: Feed, alpha2: float) -> StepResult:
        result = compiled(
            tf.constant(feed.label),
            tf.constant(feed.train_weight),
            [
                {name: tf.constant(array) for name, array in _plan_tensors(plan).items()}
                for plan in feed.plans
            ],
            tf.constant(alpha2, tf.float32),
        )
        if jit:
            state.shampoo.exchange()
        return StepResult(*result)

    return run
