"""Fused steps: many small batches in one compiled call, each scored before it is learned from.

The cost of a step with a small batch is its launch, not its arithmetic: one call of XLA loops over many batches of
equal shape. It works on scratch tables, which hold the rows that these batches need and have one size for any size of
the real tables, so that nothing is compiled again when those grow::

    find rows     of each batch's ids, on the host: the maps of growing ids are updated in the order of the log
    load          copies the rows of all batches, and their optimizer state, into the scratch tables
    loop          reads the rows of a batch, scores it, learns from it and writes the rows back, batch after batch
    store         copies the rows back

A batch's result does not depend on the other batches in its call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.models.row_curvature import WHOLE
from ctr.models.rows import TableLayout
from ctr.objective.losses import loss_terms
from ctr.objective.targets import target_signature
from ctr.training.config import TrainConfig
from ctr.training.fused_feed import FusedFeed
from ctr.training.sizes import Shape
from ctr.training.state import TrainState
from ctr.training.step import Scores, Step
from ctr.training.tables.plan import BatchPlans
from ctr.training.tables.rows import Local
from ctr.training.tables.tables import EmbeddingTables, Gathered
from ctr.workers.row_variables import set_rows

_SCRATCH_ROWS, _SCRATCH_BYTES = 2**15, 2**23
"""Minimum size of a scratch table in rows and in bytes; a call ends before a batch that needs more rows."""

_Tensors = dict[str, tf.Tensor]
_Arguments = Any
"""Arguments of ``Step.learn`` after the first one, as tensors or arrays."""
Numbers = Mapping[str, np.ndarray]


class FusedSteps:
    """Compiled loop over small batches, for a model that is not divided among workers."""

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        layouts: Sequence[TableLayout],
        shapes: Sequence[Shape],
    ) -> None:
        """Prepares to learn with a state's first tables, whose layouts are ``layouts``."""
        self._most_fused = config.batch.most_fused
        self._terms, self._families = len(loss_terms(config.objective)), len(state.families)
        signature = target_signature(config.objective, state.families, state.layouts)
        self._targets = list(signature)
        self._tables = state.tables
        scratch = self._scratch = ScratchTables(state.tables, len(layouts), shapes)
        scratch_state: Any = copy(state)
        scratch_state.tables = scratch
        if config.compute_dtype == "auto":
            # On a CPU, XLA computes with bfloat16 as with float32 and rounds.
            scratch_state.experts = state.experts.in_float32()
        self._step = Step(scratch_state, config.objective, config.optimizer, (WHOLE,), by_products=False)
        self._loops: dict[Shape, Callable[..., list[tf.Tensor]]] = {}
        rows = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([len(layouts)], tf.int32)]
        self._load, self._store = (
            tf.function(copies, rows, autograph=False) for copies in (scratch.load, scratch.store)
        )

    def learn(self, feed: FusedFeed, ramps: Numbers, rates: Numbers) -> Scores:
        """Scores and learns from K batches, in order; each ramp and rate is float32 [K]."""
        results: list[list[np.ndarray]] = []
        times = [batch.times[1] for batch in feed.batches]
        plans, begun = self._tables.assign_batches(feed.plans, times)
        waiting = [number for number, plan in enumerate(plans) if plan.pending is not None]
        rows: dict[int, list[np.ndarray]] = {number: [] for number in waiting}
        needed = np.cumsum([plan.counts for plan in plans], axis=1).T  # rows of each table up to each batch
        begin = 0

        def call(end: int) -> None:
            nonlocal begin
            chunk = [plan.part(begin, end) for plan in plans]
            for number in waiting:
                chunk[number] = chunk[number].with_rows(np.concatenate(rows[number][begin:end]))
            self._tables.begin_rows(begun)
            begun.clear()
            part = slice(begin, end)
            targets = {name: feed.targets[name][part] for name in self._targets}
            numbers = [{name: values[part] for name, values in each.items()} for each in (ramps, rates)]
            results.append(self._call(feed.shape, targets, chunk, numbers))
            begin = end

        if not waiting and self._scratch.have_room(needed[-1]):
            call(len(times))
        for at, time in enumerate(times[begin:]):
            used = {number: self._tables.id_maps[number].rows for number in waiting}
            new = []
            for number in waiting:
                pending = plans[number].part(at, at + 1).pending
                assert pending is not None
                of_ids, fresh = self._tables.learn_batch(number, pending, time)
                rows[number].append(of_ids)
                new.append(fresh)
            # In the batches before this one, the row belongs to another id.
            is_reused = any(len(started.rows) and started.rows.min() < used[started.table] for started in new)
            before = needed[begin - 1] if begin else 0
            if at > begin and (is_reused or not self._scratch.have_room(needed[at] - before)):
                call(at)
            begun.extend(new)
        if begin < len(times):
            call(len(times))
        logit, applied, terms, *slices = (np.concatenate(parts) for parts in zip(*results, strict=True))
        return Scores(feed.in_order(logit), [feed.in_order(index) for index in slices], applied, terms)

    def _call(
        self,
        shape: Shape,
        targets: Mapping[str, np.ndarray],
        plans: Sequence[BatchPlans],
        numbers: Sequence[Numbers],
    ) -> list[np.ndarray]:
        """Learns from K batches; returns logits [K, B], whether steps were applied [K], terms [K, T] and slices."""
        used, tensors = [], []
        for plan, size, end in zip(plans, shape.tables, self._scratch.sizes, strict=True):
            rows, positions = plan.rows
            # Padded with the scratch rows behind those that are loaded.
            places = np.tile(np.arange(end, end + size.ids, dtype=np.int32), (len(plan.counts), 1))
            places[np.arange(size.ids) < plan.counts[:, np.newaxis]] = positions
            used.append(rows)
            tensors.append(
                {"distinct": places, "single": plan.single, "values": plan.values, "segments": plan.segments}
            )
        batches = targets, tensors, *numbers
        count = len(targets["label"])
        if shape not in self._loops:
            alike = tf.nest.map_structure(lambda array: array[0], batches)
            learn = partial(self._learn_all, alike)
            self._loops[shape] = tf.function(learn, jit_compile=True, autograph=False)
        rows_and_counts = np.concatenate(used), np.array([len(rows) for rows in used], np.int32)
        self._load(*rows_and_counts)
        results = self._loops[shape](_packed(batches, self._most_fused(shape.rows)), tf.constant(count))
        self._store(*rows_and_counts)
        return [part.numpy()[:count] for part in results]

    def _learn_all(
        self, alike: _Arguments, packed: dict[str, tf.Tensor], count: tf.Tensor
    ) -> list[tf.Tensor]:
        """Learns from ``count`` ``packed`` batches, each with arrays of the shapes and dtypes of ``alike``."""
        limit = next(iter(packed.values())).shape[0]
        batches = tf.TensorShape([limit, len(alike[0]["label"])])
        results = [tf.zeros(batches), tf.zeros(batches[:1], tf.bool), tf.zeros([batches[0], self._terms])]
        results += [tf.zeros(batches, tf.int32)] * self._families

        def step(at: tf.Tensor, *results: tf.Tensor) -> list[tf.Tensor]:
            arguments = _unpacked({kind: tf.gather(part, at) for kind, part in packed.items()}, alike)
            self._scratch.take(arguments[1])
            scores = self._step.learn(False, *arguments)
            self._scratch.put_back(arguments[1])
            outputs = [scores.logit, scores.applied, scores.terms, *scores.slices]
            written = [
                tf.tensor_scatter_nd_update(whole, [[at]], part[tf.newaxis])
                for whole, part in zip(results, outputs, strict=True)
            ]
            return [at + 1, *written]

        _, *results = tf.while_loop(lambda at, *_: at < count, step, [tf.constant(0), *results])
        return results


class ScratchTables:
    """Copies of the table rows that some batches need, with the interface of a step's tables.

    A table row and its optimizer state are one row here, because XLA gathers and scatters row by row. A step holds only
    the rows of its batch: XLA would copy all others, though they do not change.
    """

    def __init__(self, tables: EmbeddingTables, count: int, shapes: Sequence[Shape]) -> None:
        """Makes scratch tables for the first ``count`` tables."""
        self._tables, self.optimizer = tables, tables.optimizer
        self.rows = Local(())
        self.sizes: list[int] = []  # rows of each table
        self._widths: list[list[int]] = []
        self._values: list[tf.Variable] = []
        # For each table, the rows of the current batch, by the number of distinct ids of its shape.
        self._hands: list[dict[int, tf.Variable]] = []
        for number, table in enumerate(tables.weights[:count]):
            state = self.optimizer.first_state(number)
            widths = [table.shape[1], *map(len, state)]
            first = np.concatenate([np.zeros(widths[0], np.float32), *state])
            sizes = [shape.tables[number].ids for shape in shapes]
            self.sizes.append(max(_SCRATCH_ROWS, _SCRATCH_BYTES // first.nbytes, *sizes))
            # The loaded rows are followed by rows that pad a batch's distinct ones.
            rows = np.tile(first, (self.sizes[-1] + max(sizes), 1))
            self._widths.append(widths)
            self._values.append(tf.Variable(rows, trainable=False))
            self._hands.append({size: tf.Variable(rows[:size], trainable=False) for size in sizes})

    def have_room(self, counts: np.ndarray) -> bool:
        """Returns whether this number of rows of each table, int64 [tables], fits."""
        return bool((counts <= self.sizes).all())

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
            values, *row_state = tf.split(hand.read_value(), widths, axis=1)
            held.append(values)
            state.append(row_state)
        return Gathered(plans, held, state if learning else [], held, list(plans))

    def update(
        self,
        gathered: Gathered,
        gradients: Sequence[tf.Tensor],
        curvatures: Sequence[tuple[tf.Tensor, ...]],
        rate: tf.Tensor,
    ) -> None:
        row_gradients = gathered.row_gradients(gradients, curvatures)
        rates = [rate * factors for factors in self.optimizer.rates[: len(row_gradients)]]
        hands = self._held(gathered.plans)
        for hand, (values, state) in zip(hands, self.optimizer.steps(row_gradients, rates), strict=True):
            hand.assign(tf.concat([values, *state], axis=1))

    def load(self, used: tf.Tensor, counts: tf.Tensor) -> None:
        """Copies the rows ``used``, int32 [N], ``counts`` of each table in turn, to the first scratch rows."""
        for number, rows in enumerate(tf.split(used, counts, num=counts.shape[0])):
            values = [tf.gather(variable, rows) for variable in self._variables(number)]
            set_rows(self._values[number], tf.range(tf.size(rows)), tf.concat(values, axis=1))

    def store(self, used: tf.Tensor, counts: tf.Tensor) -> None:
        """Copies the ``used`` rows back into the variables of the tables."""
        for number, rows in enumerate(tf.split(used, counts, num=counts.shape[0])):
            parts = tf.split(self._values[number][: tf.size(rows)], self._widths[number], axis=1)
            for variable, values in zip(self._variables(number), parts, strict=True):
                set_rows(variable, rows, values)

    def _variables(self, number: int) -> list[tf.Variable]:
        name = list(self.optimizer.tables)[number]
        return [self._tables.weights[number], *self.optimizer.state[name]]


def _packed(batches: _Arguments, limit: int) -> dict[str, tf.Tensor]:
    """Concatenates the arrays of each of K batches by dtype: [limit, N]; rows from K on are unused."""
    leaves = tf.nest.flatten(batches)
    packed = {}
    for kind in dict.fromkeys(leaf.dtype for leaf in leaves):
        rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves if leaf.dtype == kind], axis=1)
        whole = np.zeros((limit, rows.shape[1]), kind)
        whole[: len(rows)] = rows
        packed[kind.name] = tf.constant(whole)
    return packed


def _unpacked(row: Mapping[str, tf.Tensor], alike: _Arguments) -> _Arguments:
    """Splits a packed batch into its arrays; XLA slices each dtype once."""
    leaves, arrays = tf.nest.flatten(alike), dict[str, Iterator[tf.Tensor]]()
    for kind, numbers in row.items():
        same = [leaf for leaf in leaves if leaf.dtype == kind]
        parts = tf.split(numbers, [leaf.size for leaf in same])
        shaped = zip(parts, same, strict=True)
        arrays[kind] = iter(
            [part if leaf.ndim == 1 else tf.reshape(part, leaf.shape) for part, leaf in shaped]
        )
    return tf.nest.pack_sequence_as(alike, [next(arrays[leaf.dtype.name]) for leaf in leaves])
