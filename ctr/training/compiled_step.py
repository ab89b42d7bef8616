"""Compiled step: scores batches and learns from them, one by one or many small ones in one call."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.models.row_curvature import WHOLE, Part
from ctr.models.rows import TableLayout
from ctr.objective.bias_constraints import Family
from ctr.objective.targets import target_signature
from ctr.training.config import TrainConfig
from ctr.training.device import (
    accelerator,
    has_few_shapes,
    make_deterministic,
    on_step_device,
    resolve_compute_dtype,
    resolve_jit,
)
from ctr.training.feed import Feed
from ctr.training.fused_feed import FusedFeed
from ctr.training.fused_steps import FusedSteps
from ctr.training.sizes import FewShapes, fused_shapes
from ctr.training.state import TrainState, predicts_soundly
from ctr.training.step import Scores, Step
from ctr.training.timing import Timing
from ctr.workers.collectives import ALONE, Workers

log = logging.getLogger(__name__)

Phase = Callable[[str], None]
Ramps = Mapping[str, float]
Rates = Mapping[str, float]
Numbers = Mapping[str, np.ndarray]


class CompiledStep:
    """Compiled functions that score and change the weights of a run, each compiled at its first call.

    The first of ``parts`` scores; training uses the mean of the parts' gradients. ``jit``: whether XLA compiles the
    functions; None: as ``config.jit`` says.
    """

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        jit: bool | None = None,
        phase: Phase | None = None,
        parts: Sequence[Part] = (WHOLE,),
    ) -> None:
        self.state, self.timing = state, Timing(state.optimizer_timing)
        self._config, self._phase, is_shared = config, phase, state.group.size > 1
        # XLA compiles the functions for each size of their arguments.
        self._jit = resolve_jit(config.jit, state.group.size) if jit is None else jit
        # Products with sparse matrices, of which GPUs have no deterministic kernel.
        by_products = not self._jit and accelerator() is None
        self._step = Step(state, config.objective, config.optimizer, parts, by_products)
        self._learned_targets = target_signature(config.objective, state.families, state.layouts, is_shared)
        # A scored feed may also be one to learn from, which has more targets.
        self._scored_targets = target_signature(config.objective.scored_part, state.families, state.layouts)
        # By the number of tables with plans, and by ``Feed.preconditions``: each combination is a separate trace.
        self._functions: dict[tuple[int, bool], list[Callable[..., Any]]] = {}
        is_whole = tuple(parts) == (WHOLE,) and not is_shared
        self._fuses = is_whole and not has_few_shapes(config.batch.shapes) and accelerator() != "TPU"
        self._fused: dict[int, FusedSteps] = {}  # by the number of tables
        self._compiled: set[tuple[object, ...]] = set()
        self._last_applied: Callable[[], Feed] | None = None  # of the last step that changed the weights

    def learn(self, feed: Feed, ramps: Ramps, rates: Rates) -> Scores:
        """Scores a batch, then takes a step with it; without good rows there is no step, and the scores are empty."""
        if not feed.rows:
            return self._no_scores()
        begun = time.perf_counter()
        feed = self._with_rows("learn", feed)
        function, arguments = self.learning(feed, ramps, rates)
        with self._calling("learn", feed):
            result = on_step_device(function)(*arguments)
            if self._jit:
                # XLA compiles no call to the host.
                self.state.tables.optimizer.exchange()
                if feed.preconditions:
                    self.state.dense_optimizer.exchange()
        logit, *labels = (feed.in_order(logits.numpy()) for logits in (result.logit, *result.labels))
        slices = [feed.in_order(index.numpy()) for index in result.slices]
        applied, terms = result.applied.numpy()[np.newaxis], result.terms.numpy()[np.newaxis]
        self.state.experts.count(len(feed.batch.rows))
        self.timing.add_steps(time.perf_counter() - begun)
        if applied[0]:
            self._last_applied = lambda: feed
        return Scores(logit, slices, applied, terms, labels)

    def learning(self, feed: Feed, ramps: Ramps, rates: Rates) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns the ``tf.function`` that ``learn`` calls and its arguments, for use with other compilers."""
        feed = self._with_rows("learn", feed)
        arguments = *_tensors(feed, self._learned_targets), _scalars(ramps), _scalars(rates)
        return self._functions_of(feed)[0], arguments

    def learn_fused(self, feed: FusedFeed, ramps: Numbers, rates: Numbers) -> Scores:
        """Takes a step with each of several batches in one call; each batch is scored before its step."""
        layouts = feed.layouts
        if (steps := self._fused.get(len(layouts))) is None:
            steps = FusedSteps(self.state, self._config, layouts, self.fused_shapes(layouts))
            self._fused[len(layouts)] = steps
        begun = time.perf_counter()
        with self._calling("learn", feed):
            scores = steps.learn(feed, ramps, rates)
        self.state.experts.count(feed.rows)
        self.timing.add_steps(time.perf_counter() - begun, len(feed.batches))
        if scores.applied is not None and scores.applied.any():
            last = feed.batches[int(np.flatnonzero(scores.applied)[-1])]
            self._last_applied = lambda: feed.make_feed(last, layouts)
        return scores

    def fused_shapes(self, layouts: tuple[TableLayout, ...]) -> FewShapes:
        """Returns the batch shapes that ``learn_fused`` accepts with these tables; empty if steps are not fused."""
        return fused_shapes(self._config, layouts) if self._fuses else ()

    def score(self, feed: Feed, ramps: Ramps) -> Scores:
        """Scores a batch without learning from it."""
        if not feed.rows:
            return self._no_scores()
        feed = self._with_rows("score", feed)
        with self._calling("score", feed):
            score = on_step_device(self._functions_of(feed)[1])
            scores = score(*_tensors(feed, self._scored_targets), _scalars(ramps))
        (logit, *labels), slices = ([feed.in_order(values.numpy()) for values in part] for part in scores)
        return Scores(logit, slices, labels=labels)

    def predicts_soundly(self, ramps: Ramps) -> bool:
        """Returns whether the weights give plausible logits for the last batch learned from; True before any step."""
        if self._last_applied is None:
            return True
        feed = self._last_applied().of_tables(self.state.active_layouts)
        return predicts_soundly(self.score(feed, ramps).logit)

    def _no_scores(self) -> Scores:
        none = np.zeros(0, np.float32)
        slices = [np.zeros(0, np.int32) for _ in self.state.families]
        return Scores(none, slices, labels=[none for _ in self.state.architecture.labels])

    def _functions_of(self, feed: Feed) -> list[Callable[..., Any]]:
        """Returns the functions that learn and score feeds with this feed's number of tables and ``preconditions``."""
        key = len(feed.plans), feed.preconditions
        if key not in self._functions:
            scalar, plans = tf.TensorSpec([], tf.float32), self.state.tables.signature(len(feed.plans))
            ramps = dict.fromkeys(self._config.ramps_at(0), scalar)
            rates = dict.fromkeys(self._config.rates_at(0), scalar)
            learn = partial(self._step.learn, feed.preconditions)
            signatures = {
                learn: [self._learned_targets, plans, ramps, rates],
                self._step.score: [self._scored_targets, plans, ramps],
            }
            # XLA compiles each of the few padded sizes by itself, from one trace.
            self._functions[key] = [
                tf.function(function, signature, jit_compile=self._jit or None, autograph=False)
                for function, signature in signatures.items()
            ]
        return self._functions[key]

    def _with_rows(self, name: str, feed: Feed) -> Feed:
        """Assigns rows to a feed's ids; waits for the group as long as the following step does."""
        is_first = all(key[0] != name for key in self._compiled)
        with self.state.group.timeout(is_patient=is_first):
            return feed.with_rows(self.state.tables, learning=name == "learn")

    @contextmanager
    def _calling(self, name: str, feed: Feed | FusedFeed) -> Iterator[None]:
        """Announces a compilation if the call in the block causes one; limits the time to wait for the group."""
        key: tuple[object, ...] = (name, feed.preconditions) if name == "learn" else (name,)
        if feed.shape is not None:
            key += (feed.shape,)
        elif isinstance(feed, Feed) and self._jit:
            arrays = [array for plan in feed.plans for array in (plan.distinct, plan.single, plan.values)]
            key += tuple(array.shape for array in (*arrays, *feed.targets.values()))
        is_compiled = key in self._compiled
        self._compiled.add(key)
        phase = None if is_compiled else self._phase
        begun = time.perf_counter()
        with self.state.group.timeout(is_patient=not is_compiled), announced(phase, "compiling"):
            yield
        if not is_compiled:
            sizes = [len(plan.distinct) for plan in feed.plans]
            if isinstance(feed, FusedFeed):
                sizes = [size.ids for size in feed.shape.tables]
            log.info(
                "the step that %ss: first run for %d rows and %d distinct ids, compilation included, %.1f s",
                name,
                feed.targets["label"].shape[-1],
                sum(sizes),
                time.perf_counter() - begun,
            )


def fresh_state(
    config: TrainConfig, schema: Schema, families: Sequence[Family] = (), group: Workers = ALONE
) -> TrainState:
    """Makes a run's initial state, the same in every call; restricts TensorFlow to deterministic operations."""
    make_deterministic(config.seed)
    layouts, dtype = config.table_layouts(schema), resolve_compute_dtype(config.compute_dtype)
    return TrainState(layouts, config, dtype, families, group)


@contextmanager
def announced(phase: Phase | None, word: str) -> Iterator[None]:
    """Calls ``phase`` with a word before the block, and with an empty one after it."""
    if phase is not None:
        phase(word)
    try:
        yield
    finally:
        if phase is not None:
            phase("")


def _tensors(
    feed: Feed, needed: Mapping[str, tf.TensorSpec]
) -> tuple[dict[str, tf.Tensor], list[dict[str, tf.Tensor]]]:
    targets = feed.target_tensors
    return {name: targets[name] for name in needed}, feed.plan_tensors


def _scalars(numbers: Mapping[str, float]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(number, tf.float32) for name, number in numbers.items()}
