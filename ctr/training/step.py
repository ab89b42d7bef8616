"""The training step: one compiled function that scores a batch and then learns from it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ctr.models.click_model import Scores, ensemble_logit
from ctr.models.embeddings import look_up, tower_inputs
from ctr.objective.config import ObjectiveConfig
from ctr.objective.targets import target_signature
from ctr.objective.total import loss_and_terms, next_duals, normalizer, slices_of
from ctr.optim.adagrad import update_rows
from ctr.optim.momentum import clip_by_global_norm
from ctr.optim.shampoo import all_finite
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed
from ctr.training.state import TrainState

log = logging.getLogger(__name__)


class StepResult(NamedTuple):
    """What a step gives back.

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


class Steps(NamedTuple):
    """The compiled functions of a run, of a feed and of the ramps' weights (``TrainConfig.ramps_at``).

    Attributes:
        learn: scores a batch and then learns from it.
        score: scores a batch alone: logits, float32 [B], and slices as in ``StepResult``.
        gradients: what ``learn`` would learn by: of the batch's distinct rows of each table, float32 [U, C], and of
            each dense weight. Changes nothing.
    """

    learn: Callable[[Feed, Mapping[str, float]], StepResult]
    score: Callable[[Feed, Mapping[str, float]], tuple[tf.Tensor, list[tf.Tensor]]]
    gradients: Callable[[Feed, Mapping[str, float]], tuple[list[tf.Tensor], list[tf.Tensor]]]


def scored_part(objective: ObjectiveConfig) -> ObjectiveConfig:
    """What of the objective a batch needs to be scored only: which slices its rows are in."""
    return ObjectiveConfig(bias_constraints=objective.bias_constraints)


def _timed(what: str, function: Callable[..., Any], jit: bool) -> Callable[..., Any]:
    """The function; its first call, under ``jit`` also each first one with new shapes, is reported with its time."""
    seen: set[tuple[Any, ...]] = set()

    def call(*arguments: Any) -> Any:
        if not log.isEnabledFor(logging.INFO):
            return function(*arguments)
        shapes = tuple(tuple(tensor.shape) for tensor in tf.nest.flatten(arguments)) if jit else ()
        if shapes in seen:
            return function(*arguments)
        begin = time.perf_counter()
        result = function(*arguments)
        seen.add(shapes)
        plans = arguments[1]
        log.info(
            "the step that %s: first run for %d rows and %d distinct ids, compilation included, %.1f s",
            what,
            plans[0]["single"].shape[0],
            sum(plan["distinct"].shape[0] for plan in plans),
            time.perf_counter() - begin,
        )
        return result

    return call


def make_steps(state: TrainState, config: TrainConfig, jit: bool) -> Steps:
    """Compiles the functions that score and learn for ``state``. Each is compiled when it is first called."""
    optimizer, objective = config.optimizer, config.objective
    tower_rates: dict[str, float] = dict(optimizer.embeddings.tower_rates.items())
    row_rates = []
    for layout in state.layouts:
        rate = layout.by_column(optimizer.embeddings.learning_rate, optimizer.embeddings.linear_learning_rate)
        row_rates.append(tf.constant(rate * tower_rates.get(layout.tower, 1.0)))

    components = state.network.components
    # Of which GPUs have no deterministic kernel.
    by_products = not jit and not tf.config.list_physical_devices("GPU")
    decayed = [len(weight.shape) > 1 for weight in state.dense]

    def forward(
        rows: Sequence[tf.Tensor], plans: Sequence[dict[str, tf.Tensor]], alpha2: tf.Tensor
    ) -> Scores:
        with tf.name_scope("look_up"):
            looked_up = [
                look_up(layout, part, plan, state.network.input_dtype(layout.tower), by_products)
                for layout, part, plan in zip(state.layouts, rows, plans, strict=True)
            ]
            inputs = tower_inputs(looked_up, state.layouts, state.network.factorized)
        return state.network(inputs, alpha2)

    def learn(
        plans: Sequence[dict[str, tf.Tensor]],
        rows: Sequence[tf.Tensor],
        row_sums: Sequence[tf.Tensor],
        row_gradients: Sequence[tf.Tensor],
        dense_gradients: Sequence[tf.Tensor],
    ) -> None:
        for index, (plan, rate) in enumerate(zip(plans, row_rates, strict=True)):
            with tf.name_scope("row_update"):
                update_rows(
                    state.tables[index],
                    state.row_accumulators[index],
                    plan["distinct"],
                    rows[index],
                    row_sums[index],
                    row_gradients[index],
                    rate,
                    optimizer.embeddings.update_limit,
                )
        dense = optimizer.dense
        if dense.clip_norm is not None:
            # Each component by itself, as everything else that it learns by.
            size = len(dense_gradients) // components
            dense_gradients = [
                gradient
                for begin in range(0, len(dense_gradients), size)
                for gradient in clip_by_global_norm(dense_gradients[begin : begin + size], dense.clip_norm)
            ]
        # XLA compiles no call to the host.
        with tf.name_scope("dense_update"):
            state.shampoo.update(
                dense_gradients, dense.learning_rate, decayed, "between_steps" if jit else "host"
            )

    def gather(variables: Sequence[tf.Variable], plans: Sequence[dict[str, tf.Tensor]]) -> list[tf.Tensor]:
        with tf.name_scope("gather"):
            return [
                tf.gather(variable, plan["distinct"]) for variable, plan in zip(variables, plans, strict=True)
            ]

    def differentiate(
        targets: dict[str, tf.Tensor],
        plans: list[dict[str, tf.Tensor]],
        rows: list[tf.Tensor],
        ramps: dict[str, tf.Tensor],
        duals: list[tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Logits, slices, loss and its terms, and the gradients to learn by, of rows and of dense weights."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(rows)
            tape.watch(state.dense)
            scores = forward(rows, plans, ramps["alpha2"])
            logit = ensemble_logit(scores.logits)
            slices = slices_of(state.families, targets, logit)
            with tf.name_scope("loss"):
                loss, terms = loss_and_terms(objective, targets, logit, *scores, ramps, duals, slices)
        row_gradients, dense_gradients = tape.gradient(
            loss, (rows, state.dense), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # The loss is a mean over components. What is one component's own learns as if that one were alone.
        if components > 1:
            dense_gradients = [gradient * components for gradient in dense_gradients]
            row_gradients = [
                tf.convert_to_tensor(gradient) * layout.copies
                for gradient, layout in zip(row_gradients, state.layouts, strict=True)
            ]
        row_gradients = [tf.convert_to_tensor(gradient) for gradient in row_gradients]
        if optimizer.embeddings.gradient == "sum":
            total_weight = normalizer(objective, targets)
            row_gradients = [gradient * total_weight for gradient in row_gradients]
        return logit, slices, loss, terms, row_gradients, dense_gradients

    def step(
        targets: dict[str, tf.Tensor], plans: list[dict[str, tf.Tensor]], ramps: dict[str, tf.Tensor]
    ) -> StepResult:
        # The sums, too, here, where there is time for it beside the products.
        rows, row_sums = gather(state.tables, plans), gather(state.row_accumulators, plans)
        duals = [dual.read_value() for dual in state.duals]
        logit, slices, loss, terms, row_gradients, dense_gradients = differentiate(
            targets, plans, rows, ramps, duals
        )
        seen = [weights.read_value() for weights in state.slices_seen]
        moved = next_duals(
            objective, state.families, targets, logit, ramps["bias_constraints"], duals, seen, slices
        )
        changed = [tensor for pair in moved for tensor in pair]
        applied = all_finite([loss, *row_gradients, *dense_gradients, *changed])

        def update() -> tf.Tensor:
            learn(plans, rows, row_sums, row_gradients, dense_gradients)
            for dual, weights, (next_dual, next_seen) in zip(
                state.duals, state.slices_seen, moved, strict=True
            ):
                dual.assign(next_dual)
                weights.assign(next_seen)
            return tf.constant(True)

        applied = tf.cond(applied, update, lambda: tf.constant(False))
        return StepResult(logit, loss, applied, slices, terms)

    def score(
        targets: dict[str, tf.Tensor], plans: list[dict[str, tf.Tensor]], ramps: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        logit = ensemble_logit(forward(gather(state.tables, plans), plans, ramps["alpha2"]).logits)
        return logit, slices_of(state.families, targets, logit)

    def gradients(
        targets: dict[str, tf.Tensor], plans: list[dict[str, tf.Tensor]], ramps: dict[str, tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        rows, duals = gather(state.tables, plans), [dual.read_value() for dual in state.duals]
        *_, of_rows, of_dense = differentiate(targets, plans, rows, ramps, duals)
        return of_rows, of_dense

    scalar, indices = tf.TensorSpec([], tf.float32), tf.TensorSpec([None], tf.int32)
    plans = [
        {
            "distinct": indices,
            "single": tf.TensorSpec([None, len(layout.single)], tf.int32),
            "values": indices,
            "segments": indices,
        }
        for layout in state.layouts
    ]
    ramps = dict.fromkeys(config.ramps_at(0), scalar)
    learned_targets = target_signature(objective, state.families)
    # What is scored may also be a feed to learn from, which has more.
    scored_targets = target_signature(scored_part(objective), state.families)
    signature, scored = [learned_targets, plans, ramps], [scored_targets, plans, ramps]
    # XLA compiles each of the few padded sizes by itself, from one trace.
    compiled_step = tf.function(step, input_signature=signature, jit_compile=jit or None, autograph=False)
    compiled_score = tf.function(score, input_signature=scored, jit_compile=jit or None, autograph=False)
    compiled_gradients = tf.function(
        gradients, input_signature=signature, jit_compile=jit or None, autograph=False
    )

    def tensors(
        feed: Feed, ramps: Mapping[str, float], needed: Mapping[str, tf.TensorSpec]
    ) -> tuple[Any, ...]:
        targets, plans = feed.tensors
        reached = {name: tf.constant(ramp, tf.float32) for name, ramp in ramps.items()}
        return {name: targets[name] for name in needed}, plans, reached

    learn_timed, score_timed = _timed("learns", compiled_step, jit), _timed("scores", compiled_score, jit)

    def run_step(feed: Feed, ramps: Mapping[str, float]) -> StepResult:
        result = learn_timed(*tensors(feed, ramps, learned_targets))
        if jit:
            state.shampoo.exchange()
        return StepResult(*result)

    def run_score(feed: Feed, ramps: Mapping[str, float]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        logit, slices = score_timed(*tensors(feed, ramps, scored_targets))
        return logit, slices

    def run_gradients(feed: Feed, ramps: Mapping[str, float]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        of_rows, of_dense = compiled_gradients(*tensors(feed, ramps, learned_targets))
        return of_rows, of_dense

    return Steps(run_step, run_score, run_gradients)
