"""Compiled step: its functions with their signatures, fed with batches."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr.models.row_curvature import WHOLE, Part
from ctr.objective.targets import target_signature
from ctr.training.config import TrainConfig
from ctr.training.device import accelerator, on_step_device
from ctr.training.feed import Feed
from ctr.training.state import TrainState
from ctr.training.step import Step, StepResult


class Scores(NamedTuple):
    """Scores of a batch: of its good rows, then of the rows of the constraint logs that came with it.

    Or of K batches, whose good rows follow each other.
    """

    logit: np.ndarray  # float32 [N], the predictions from before any update
    slices: list[np.ndarray]  # for each family of constraints, int32 [N]
    applied: np.ndarray | None = None  # bool [K], whether each step changed the weights; None: there was none
    terms: np.ndarray | None = None  # float32 [K, T], what each term contributed to each step's loss
    labels: Sequence[np.ndarray] = ()  # for each further label its logits, float32 [N]


class _Functions(NamedTuple):
    learning: Callable[..., Any]  # the ``tf.function`` that ``learn`` calls
    learn: Callable[..., Any]
    score: Callable[..., Any]


class TrainStep:
    """Compiled functions of a run: the first of ``parts`` scores, and all learn by the mean of their gradients."""

    def __init__(
        self, state: TrainState, config: TrainConfig, jit: bool, parts: Sequence[Part] = (WHOLE,)
    ) -> None:
        self.state, self.config, self.jit = state, config, jit
        # Products with sparse matrices, of which GPUs have no deterministic kernel.
        by_products = not jit and accelerator() is None
        step = Step(state, config, parts, by_products)
        is_divided, self._step = state.workers.size > 1, step
        self._learned_targets = target_signature(config.objective, state.families, state.layouts, is_divided)
        # What is scored may also be a feed to learn from, which has more.
        scored = config.objective.scored_part
        self._scored_targets = target_signature(scored, state.families, state.layouts)
        # By the number of tables that there are plans for, and by whether batches are too small for more than
        # first-order steps: traces of their own.
        self._functions: dict[tuple[int, bool], _Functions] = {}

    def _functions_of(self, feed: Feed) -> "_Functions":
        key = len(feed.plans), feed.preconditions
        if key not in self._functions:
            scalar, plans = tf.TensorSpec([], tf.float32), self.state.tables.signature(len(feed.plans))
            ramps, rates = (
                dict.fromkeys(numbers, scalar)
                for numbers in (self.config.ramps_at(0), self.config.rates_at(0))
            )
            learn = partial(self._step.learn, feed.preconditions)
            learning = self._compile(learn, [self._learned_targets, plans, ramps, rates])
            score = self._compile(self._step.score, [self._scored_targets, plans, ramps])
            self._functions[key] = _Functions(
                learning,
                on_step_device(learning),
                on_step_device(score),
            )
        return self._functions[key]

    def _compile(self, function: Callable[..., Any], signature: Sequence[Any]) -> Callable[..., Any]:
        # XLA compiles each of the few padded sizes by itself, from one trace.
        compiled: Callable[..., Any] = tf.function(
            function, input_signature=signature, jit_compile=self.jit or None, autograph=False
        )
        return compiled

    def learn(self, feed: Feed, ramps: Mapping[str, float], rates: Mapping[str, float]) -> StepResult:
        functions = self._functions_of(feed)
        result = functions.learn(*self._learning_arguments(feed, ramps, rates))
        if self.jit:
            # XLA compiles no call to the host.
            self.state.tables.optimizer.exchange()
            if feed.preconditions:
                self.state.dense_optimizer.exchange()
        return StepResult(*result)

    def learning(
        self, feed: Feed, ramps: Mapping[str, float], rates: Mapping[str, float]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns the ``tf.function`` that ``learn`` calls, and its arguments: for other compilers. Learns nothing."""
        return self._functions_of(feed).learning, self._learning_arguments(feed, ramps, rates)

    def _learning_arguments(
        self, feed: Feed, ramps: Mapping[str, float], rates: Mapping[str, float]
    ) -> tuple[Any, ...]:
        feed = feed.with_rows(self.state.tables, learning=True)
        return *_tensors(feed, self._learned_targets), _scalars(ramps), _scalars(rates)

    def score(self, feed: Feed, ramps: Mapping[str, float]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Scores a batch alone: logits of the click and of each label, float32 [B], and slices as in ``StepResult``."""
        feed = feed.with_rows(self.state.tables)
        logits, slices = self._functions_of(feed).score(
            *_tensors(feed, self._scored_targets), _scalars(ramps)
        )
        return logits, slices


def _tensors(
    feed: Feed, needed: Mapping[str, tf.TensorSpec]
) -> tuple[dict[str, tf.Tensor], list[dict[str, tf.Tensor]]]:
    targets = feed.target_tensors
    return {name: targets[name] for name in needed}, feed.plan_tensors


def _scalars(numbers: Mapping[str, float]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(number, tf.float32) for name, number in numbers.items()}
