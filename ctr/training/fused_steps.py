"""Fused steps: many small batches in one compiled call, each scored before it is learned.

A step with a small batch costs its launch, not its arithmetic: one call of XLA loops over many batches of one shape.
It works on scratch tables, which hold the rows that these batches need and have one size whatever the real tables
have, so that nothing is compiled anew when those grow::

    find rows     of the ids of each batch, on the host: maps learn in the order of the log
    load          copies the rows of all batches, and what the optimizer keeps of them, into the scratch tables
    loop          gathers, scores, learns and scatters, batch after batch
    store         copies the rows back

What a batch gives does not depend on which others are in its call.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.models.part import WHOLE
from ctr.objective.losses import loss_terms
from ctr.objective.targets import target_signature
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed
from ctr.training.shapes import Shape
from ctr.training.state import TrainState
from ctr.training.step import Step
from ctr.training.tables.plan import TablePlan, assign_rows
from ctr.training.tables.tables import EmbeddingTables, NewRows
from ctr.workers.row_variables import gather_rows, set_rows

_SCRATCH_ROWS = 8192
"""Rows of a scratch table; a call ends before batches that need more."""

_Tensors = dict[str, tf.Tensor]
Numbers = Mapping[str, float]


class FusedResult(NamedTuple):
    """What ``StepResult`` has, of one batch."""

    logit: np.ndarray
    applied: bool
    slices: list[np.ndarray]
    terms: np.ndarray


class FusedSteps:
    """Compiled loop over small batches, for a model that is whole in one process."""

    def __init__(self, state: TrainState, config: TrainConfig, largest: Shape) -> None:
        self.limit = config.batch.steps_per_execution
        self._terms, self._families = len(loss_terms(config.objective)), len(state.families)
        self._targets = list(target_signature(config.objective, state.families))
        self._tables = state.tables
        scratch = _scratch_tables(state.tables, largest)
        own = copy(state)
        own.tables = scratch
        self._step = Step(own, config, (WHOLE,), by_products=False, exchanges=True)
        self._loop = tf.function(self._learn_all, jit_compile=True, autograph=False)
        rows = [[tf.TensorSpec([None], tf.int32) for _ in state.layouts]] * 2
        self._load = tf.function(partial(_copy_rows, state.tables, scratch), rows, autograph=False)
        self._store = tf.function(partial(_copy_rows, scratch, state.tables), rows, autograph=False)

    def learn(
        self, feeds: Sequence[Feed], ramps: Sequence[Numbers], rates: Sequence[Numbers]
    ) -> list[FusedResult]:
        """Scores and learns from batches of one shape, ``limit`` at most, in their order."""
        results: list[FusedResult] = []
        waiting: list[Feed] = []
        times = [feed.batch.times[1] for feed in feeds]
        assigned, begun = self._tables.assign_batches([feed.plans for feed in feeds], times)

        def call() -> None:
            self._tables.begin_rows(begun)
            if waiting:
                own = slice(len(results), len(results) + len(waiting))
                results.extend(self._call(waiting, ramps[own], rates[own]))
            waiting.clear()
            begun.clear()

        for feed, some, time in zip(feeds, assigned, times, strict=True):
            used = {number: id_map.rows for number, id_map in self._tables.id_maps.items()}
            plans, new = self._assign(some, time)
            # Of a row that another id had until now, the batches before this one know as that one's.
            is_reused = any(len(one.rows) and one.rows.min() < used[one.table] for one in new)
            if is_reused or not _have_room([*(one.plans for one in waiting), plans]):
                call()
            waiting.append(replace(feed, plans=plans))
            begun.extend(new)
        call()
        return results

    def _assign(
        self, plans: Sequence[TablePlan], time_us: int
    ) -> tuple[tuple[TablePlan, ...], list[NewRows]]:
        """Gives the ids of a batch their rows, of which those that are used anew have not begun yet."""
        rows, new = self._tables.find_rows(plans, time_us, learning=True)
        found = [
            assign_rows(plan, rows[number], self._tables.count(number)) if number in rows else plan
            for number, plan in enumerate(plans)
        ]
        return tuple(found), new

    def _call(
        self,
        feeds: Sequence[Feed],
        ramps: Sequence[Numbers],
        rates: Sequence[Numbers],
    ) -> list[FusedResult]:
        shape = feeds[0].shape
        assert shape is not None
        used, plans = [], []
        for number, size in enumerate(shape.tables):
            own = [feed.plans[number] for feed in feeds]
            rows, distinct = _join([plan.distinct[: plan.distinct_count] for plan in own], size.ids)
            used.append(rows)
            arrays = {
                name: [getattr(plan, name) for plan in own] for name in ("single", "values", "segments")
            }
            plans.append(self._stacked({"distinct": distinct, **arrays}))
        targets = self._stacked({name: [feed.targets[name] for feed in feeds] for name in self._targets})
        numbers = [
            self._stacked({name: np.array([one[name] for one in each], np.float32) for name in each[0]})
            for each in (ramps, rates)
        ]
        places = [np.arange(len(rows), dtype=np.int32) for rows in used]
        self._load(used, places)
        found = self._loop(tf.constant(len(feeds)), targets, plans, *numbers)
        self._store(places, used)
        logit, applied, terms, *slices = (part.numpy()[: len(feeds)] for part in found)
        return [
            FusedResult(logit[at], bool(applied[at]), [part[at] for part in slices], terms[at])
            for at in range(len(feeds))
        ]

    def _stacked(self, arrays: Mapping[str, Sequence[np.ndarray] | np.ndarray]) -> _Tensors:
        """Stacks arrays of one shape, and more behind them that are not looked at: ``limit`` of each name."""
        stacked = {}
        for name, parts in arrays.items():
            whole = np.zeros((self.limit, *np.shape(parts[0])), parts[0].dtype)
            whole[: len(parts)] = parts
            stacked[name] = tf.constant(whole)
        return stacked

    def _learn_all(
        self, count: tf.Tensor, targets: _Tensors, plans: list[_Tensors], ramps: _Tensors, rates: _Tensors
    ) -> list[tf.Tensor]:
        batches = targets["label"].shape
        results = [tf.zeros(batches), tf.zeros(batches[:1], tf.bool), tf.zeros([batches[0], self._terms])]
        results += [tf.zeros(batches, tf.int32)] * self._families

        def step(at: tf.Tensor, *results: tf.Tensor) -> list[tf.Tensor]:
            arguments = tf.nest.map_structure(lambda part: part[at], (targets, plans, ramps, rates))
            found = self._step.learn(*arguments)
            own = [found.logit, found.applied, found.terms, *found.slices]
            written = [
                tf.tensor_scatter_nd_update(whole, [[at]], part[tf.newaxis])
                for whole, part in zip(results, own, strict=True)
            ]
            return [at + 1, *written]

        _, *results = tf.while_loop(lambda at, *_: at < count, step, [tf.constant(0), *results])
        return results


def _scratch_tables(tables: EmbeddingTables, largest: Shape) -> EmbeddingTables:
    """Makes tables that are as the real ones to a step, of other rows, and with the same shared state."""
    scratch, optimizer = copy(tables), copy(tables.optimizer)
    scratch.weights, scratch.optimizer, optimizer.kept = [], optimizer, {}
    for number, (name, table) in enumerate(tables.optimizer.tables.items()):
        # Behind the rows that are loaded, those that pad the distinct ones of a batch.
        rows = _SCRATCH_ROWS + largest.tables[number].ids
        scratch.weights.append(tf.Variable(tf.zeros([rows, table.shape[1]]), trainable=False))
        optimizer.kept[name] = tuple(
            tf.Variable(np.tile(state, (rows, 1)), trainable=False) for state in optimizer.first_state(number)
        )
    optimizer.tables = dict(zip(tables.optimizer.tables, scratch.weights, strict=True))
    return scratch


def _have_room(plans: Sequence[Sequence[TablePlan]]) -> bool:
    return all(sum(plan.distinct_count for plan in own) <= _SCRATCH_ROWS for own in zip(*plans, strict=True))


def _join(distinct: Sequence[np.ndarray], capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the rows that any of K batches needs: int32 [N]; and each one's places among them: int32 [K, capacity]."""
    rows, places = np.unique(np.concatenate(distinct), return_inverse=True)
    padded = np.tile(np.arange(_SCRATCH_ROWS, _SCRATCH_ROWS + capacity, dtype=np.int32), (len(distinct), 1))
    lengths = np.array([len(one) for one in distinct])
    padded[np.arange(capacity) < lengths[:, np.newaxis]] = places
    return rows.astype(np.int32), padded


def _copy_rows(
    source: EmbeddingTables, target: EmbeddingTables, rows: Sequence[tf.Tensor], places: Sequence[tf.Tensor]
) -> None:
    """Copies rows, int32 [N] of each table, with what the optimizer keeps of them, to other places, int32 [N]."""
    kept = zip(source.optimizer.kept.values(), target.optimizer.kept.values(), strict=True)
    tables = zip(source.weights, target.weights, kept, rows, places, strict=True)
    for old, new, states, own, place in tables:
        for before, after in [(old, new), *zip(*states, strict=True)]:
            set_rows(after, place, gather_rows(before, own))
