"""Fused steps: many small batches in one compiled call, each scored before it is learned.

A step with a small batch costs its launch, not its arithmetic: one call of XLA loops over many batches of one shape.
It works on scratch tables, which hold the rows that these batches need and have one size whatever the real tables
have, so that nothing is compiled anew when those grow::

    find rows     of the ids of each batch, on the host: maps learn in the order of the log
    load          copies the rows of all batches, and what the optimizer keeps of them, into the scratch tables
    loop          takes the rows of a batch, scores it, learns from it and puts them back, batch after batch
    store         copies the rows back

What a batch gives does not depend on which others are in its call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr.models.row_curvature import WHOLE
from ctr.models.rows import TableLayout
from ctr.objective.losses import loss_terms
from ctr.objective.targets import target_signature
from ctr.optim.protocol import RowGradient
from ctr.training.compiled_step import timed
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed
from ctr.training.shapes import Shape
from ctr.training.state import TrainState
from ctr.training.step import Step
from ctr.training.tables.plan import TablePlan, assign_rows
from ctr.training.tables.tables import EmbeddingTables, Gathered, NewRows
from ctr.workers.row_variables import set_rows

_SCRATCH_ROWS, _SCRATCH_BYTES = 2**15, 2**23
"""Rows of a scratch table, or more where so many bytes hold them; a call ends before batches that need more."""

_Tensors = dict[str, tf.Tensor]
_Arguments = Any
"""Of ``Step.learn``, after the first one: tensors, or arrays."""
Numbers = Mapping[str, float]


class FusedResult(NamedTuple):
    """Result of the step with one batch, as arrays; see ``StepResult``."""

    logit: np.ndarray
    applied: bool
    slices: list[np.ndarray]
    terms: np.ndarray


class FusedSteps:
    """Compiled loop over small batches, for a model that is whole in one process."""

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        layouts: Sequence[TableLayout],
        shapes: Sequence[Shape],
    ) -> None:
        """Prepares to learn with the first tables of a state, whose layouts are given."""
        self.limit = config.batch.steps_per_execution
        self._terms, self._families = len(loss_terms(config.objective)), len(state.families)
        signature = target_signature(config.objective, state.families, state.layouts)
        self._targets = list(signature)
        self._tables = state.tables
        scratch = self._scratch = ScratchTables(state.tables, len(layouts), shapes)
        own: Any = copy(state)
        own.tables = scratch
        if config.compute_dtype == "auto":
            # On a CPU, XLA computes with bfloat16 as with float32 and rounds.
            own.experts = state.experts.in_float32()
        self._step = Step(own, config, (WHOLE,), by_products=False, exchanges=True)
        self._loops: dict[Shape, Callable[..., list[tf.Tensor]]] = {}
        used = [[tf.TensorSpec([None], tf.int32) for _ in layouts]]
        self._load, self._store = (
            tf.function(copies, used, autograph=False) for copies in (scratch.load, scratch.store)
        )

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
            # To the batches before this one, such a row is another id's.
            is_reused = any(len(one.rows) and one.rows.min() < used[one.table] for one in new)
            if is_reused or not self._scratch.have_room([*(one.plans for one in waiting), plans]):
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
        self, feeds: Sequence[Feed], ramps: Sequence[Numbers], rates: Sequence[Numbers]
    ) -> list[FusedResult]:
        shape = feeds[0].shape
        assert shape is not None
        used, distinct = [], []
        for number, size in enumerate(shape.tables):
            own = [feed.plans[number] for feed in feeds]
            ids = [plan.distinct[: plan.distinct_count] for plan in own]
            rows, places = _join(ids, size.ids, self._scratch.rows[number])
            used.append(rows)
            distinct.append(places)
        batches = []
        for at, feed in enumerate(feeds):
            plans = [
                {
                    "distinct": places[at],
                    "single": plan.single,
                    "values": plan.values,
                    "segments": plan.segments,
                }
                for places, plan in zip(distinct, feed.plans, strict=True)
            ]
            targets = {name: feed.targets[name] for name in self._targets}
            numbers = [
                {name: np.float32(one) for name, one in each.items()} for each in (ramps[at], rates[at])
            ]
            batches.append((targets, plans, *numbers))
        if shape not in self._loops:
            learn_all = partial(self._learn_all, batches[0])
            loop = tf.function(learn_all, jit_compile=True, autograph=False)
            sizes = shape.rows, sum(size.ids for size in shape.tables)
            self._loops[shape] = timed("learns", loop, jit=True, sizes=sizes)
        self._load(used)
        found = self._loops[shape](_packed(batches, self.limit), tf.constant(len(feeds)))
        self._store(used)
        logit, applied, terms, *slices = (part.numpy()[: len(feeds)] for part in found)
        return [
            FusedResult(logit[at], bool(applied[at]), [part[at] for part in slices], terms[at])
            for at in range(len(feeds))
        ]

    def _learn_all(
        self, alike: _Arguments, packed: dict[str, tf.Tensor], count: tf.Tensor
    ) -> list[tf.Tensor]:
        """Learns from ``count`` batches that are ``packed``, each of the arrays that the one ``alike`` has."""
        batches = tf.TensorShape([self.limit, len(alike[0]["label"])])
        results = [tf.zeros(batches), tf.zeros(batches[:1], tf.bool), tf.zeros([batches[0], self._terms])]
        results += [tf.zeros(batches, tf.int32)] * self._families

        def step(at: tf.Tensor, *results: tf.Tensor) -> list[tf.Tensor]:
            arguments = _unpacked({kind: part[at] for kind, part in packed.items()}, alike)
            self._scratch.take(arguments[1])
            found = self._step.learn(False, *arguments)
            self._scratch.put_back(arguments[1])
            own = [found.logit, found.applied, found.terms, *found.slices]
            written = [
                tf.tensor_scatter_nd_update(whole, [[at]], part[tf.newaxis])
                for whole, part in zip(results, own, strict=True)
            ]
            return [at + 1, *written]

        _, *results = tf.while_loop(lambda at, *_: at < count, step, [tf.constant(0), *results])
        return results


class ScratchTables:
    """Rows of all tables that some batches need, as a step sees tables.

    A row of the tables and what the optimizer keeps of it are one row here: XLA gathers and scatters row by row. A step
    has the rows of its batch alone in its hands: what it may leave as it is, XLA copies.
    """

    divided: tuple[bool, ...] = ()

    def __init__(self, tables: EmbeddingTables, count: int, shapes: Sequence[Shape]) -> None:
        """Makes scratch tables for the first ``count`` ones."""
        self._tables, self.optimizer = tables, tables.optimizer
        self.rows: list[int] = []  # of each table
        self._widths: list[list[int]] = []
        self._values: list[tf.Variable] = []
        # By table, and by the distinct ids of a shape.
        self._hands: list[dict[int, tf.Variable]] = []
        for number, table in enumerate(tables.weights[:count]):
            state = self.optimizer.first_state(number)
            widths = [table.shape[1], *map(len, state)]
            first = np.concatenate([np.zeros(widths[0], np.float32), *state])
            sizes = [shape.tables[number].ids for shape in shapes]
            self.rows.append(max(_SCRATCH_ROWS, _SCRATCH_BYTES // first.nbytes))
            # Behind the rows that are loaded, those that pad the distinct ones of a batch.
            rows = np.tile(first, (self.rows[-1] + max(sizes), 1))
            self._widths.append(widths)
            self._values.append(tf.Variable(rows, trainable=False))
            self._hands.append({size: tf.Variable(rows[:size], trainable=False) for size in sizes})

    def have_room(self, batches: Sequence[Sequence[TablePlan]]) -> bool:
        """Tells whether the rows of all batches fit."""
        of_tables = zip(self.rows, zip(*batches, strict=True), strict=True)
        return all(sum(plan.distinct_count for plan in own) <= rows for rows, own in of_tables)

    def take(self, plans: Sequence[_Tensors]) -> None:
        for rows, hand, plan in zip(self._values, self._held(plans), plans, strict=True):
            hand.assign(tf.gather(rows, plan["distinct"]))

    def put_back(self, plans: Sequence[_Tensors]) -> None:
        for rows, hand, plan in zip(self._values, self._held(plans), plans, strict=True):
            set_rows(rows, plan["distinct"], hand.read_value())

    def _held(self, plans: Sequence[_Tensors]) -> list[tf.Variable]:
        sizes = [plan["distinct"].shape[0] for plan in plans]
        return [hands[size] for hands, size in zip(self._hands, sizes, strict=True)]

    def gather(self, plans: Sequence[_Tensors], learning: bool = False) -> Gathered:
        held, state = [], []
        for hand, widths in zip(self._held(plans), self._widths, strict=True):
            own, *kept = tf.split(hand.read_value(), widths, axis=1)
            held.append(own)
            state.append(kept)
        return Gathered(plans, held, state if learning else [], held, list(plans))

    def update(
        self,
        gathered: Gathered,
        gradients: Sequence[tf.Tensor],
        curvatures: Sequence[tuple[tf.Tensor, ...]],
        rate: tf.Tensor,
        compiled: bool,
    ) -> None:
        del compiled
        hands, plans = self._held(gathered.plans), gathered.plans
        parts = zip(hands, plans, gathered.held, gathered.state, gradients, curvatures, strict=True)
        for number, (hand, plan, held, kept, gradient, curvature) in enumerate(parts):
            given = RowGradient(plan["distinct"], held, kept, gradient, *curvature)
            values, state = self.optimizer.step(number, given, rate * self.optimizer.rates[number])
            hand.assign(tf.concat([values, *state], axis=1))

    def load(self, used: Sequence[tf.Tensor]) -> None:
        """Copies rows of the tables, int32 [N] of each, to the beginning."""
        for number, rows in enumerate(used):
            own = [tf.gather(variable, rows) for variable in self._variables(number)]
            set_rows(self._values[number], tf.range(tf.size(rows)), tf.concat(own, axis=1))

    def store(self, used: Sequence[tf.Tensor]) -> None:
        """Copies them back."""
        for number, rows in enumerate(used):
            own = tf.split(self._values[number][: tf.size(rows)], self._widths[number], axis=1)
            for variable, values in zip(self._variables(number), own, strict=True):
                set_rows(variable, rows, values)

    def _variables(self, number: int) -> list[tf.Variable]:
        name = list(self.optimizer.tables)[number]
        return [self._tables.weights[number], *self.optimizer.kept[name]]


def _join(distinct: Sequence[np.ndarray], capacity: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the rows that any of K batches needs: int32 [N]; and each one's places among them: int32 [K, capacity].

    Places are padded with those from ``end`` on.
    """
    rows, places = np.unique(np.concatenate(distinct), return_inverse=True)
    padded = np.tile(np.arange(end, end + capacity, dtype=np.int32), (len(distinct), 1))
    lengths = np.array([len(one) for one in distinct])
    padded[np.arange(capacity) < lengths[:, np.newaxis]] = places
    return rows.astype(np.int32), padded


def _packed(batches: Sequence[_Arguments], limit: int) -> dict[str, tf.Tensor]:
    """Puts all arrays of each batch side by side, by their types: [limit, N]; what no batch has is not looked at."""
    leaves = [tf.nest.flatten(batch) for batch in batches]
    packed = {}
    for kind in dict.fromkeys(leaf.dtype for leaf in leaves[0]):
        rows = [np.concatenate([leaf.ravel() for leaf in own if leaf.dtype == kind]) for own in leaves]
        whole = np.zeros((limit, len(rows[0])), kind)
        whole[: len(rows)] = rows
        packed[kind.name] = tf.constant(whole)
    return packed


def _unpacked(row: Mapping[str, tf.Tensor], alike: _Arguments) -> _Arguments:
    """Takes the arrays of a batch apart again: XLA slices each kind of them once."""
    leaves, found = tf.nest.flatten(alike), dict[str, Iterator[tf.Tensor]]()
    for kind, numbers in row.items():
        own = [leaf for leaf in leaves if leaf.dtype == kind]
        parts = tf.split(numbers, [leaf.size for leaf in own])
        found[kind] = iter([tf.reshape(part, leaf.shape) for part, leaf in zip(parts, own, strict=True)])
    return tf.nest.pack_sequence_as(alike, [next(found[leaf.dtype.name]) for leaf in leaves])
