"""Embedding tables of a run, whole or divided (``rows.py``).

Growing ids are mapped to rows first (``ctr.training.ids``)::

    before a step    find_rows        returns the rows of growing ids
                     begin_rows       initializes the rows of new ids
    in a step        gather           reads the rows that a batch needs, and the optimizer's state for them
                     rows.add_up      sums their gradients over the whole batch
                     update           applies the optimizer's step
    between steps    grow, adopt, whole, variables, id_arrays, restore
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr.data.value_arrays import offsets_of
from ctr.models.embeddings import create_table, new_rows
from ctr.models.rows import TableLayout
from ctr.optim.protocol import RowGradient
from ctr.training.config import TrainConfig
from ctr.training.device import has_few_shapes
from ctr.training.ids.id_map import Learned, Occupants, find_slots, id_arrays, make_id_maps, named_arrays
from ctr.training.optimizers import table_optimizer
from ctr.training.sizes import most_rows
from ctr.training.tables.plan import BatchPlans, PendingIds, TablePlan
from ctr.training.tables.rows import Curvature, Plan, make_rows
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part
from ctr.workers.row_variables import grow_rows, row_count, set_rows

_FIRST_SLOTS = 1024


class Gathered(NamedTuple):
    """Rows that a step has read from all tables."""

    plans: Sequence[Plan]  # the batch's plans, for this worker's part of each table
    held: list[tf.Tensor]  # float32 [Q, C], the distinct rows of each table that this worker holds
    state: list[Any]  # the optimizer's state of these rows
    # Float32 [., C], rows for this worker's share of the batch: ``held``, or rows received from all workers.
    rows: list[tf.Tensor]
    views: list[Plan]  # the plans with positions in ``rows``

    def row_gradients(
        self, gradients: Sequence[tf.Tensor], curvatures: Sequence[Curvature]
    ) -> list[RowGradient]:
        """Joins the gradients and curvatures of ``held`` with the rows and the optimizer state that the step reads."""
        parts = zip(self.plans, self.held, self.state, gradients, curvatures, strict=True)
        return [
            RowGradient(plan["distinct"], held, state, gradient, *curvature)
            for plan, held, state, gradient, curvature in parts
        ]


class NewRows(NamedTuple):
    """Rows of a table that were assigned to new ids and must be initialized."""

    table: int
    rows: np.ndarray  # int32 [N]
    features: np.ndarray  # int16 [N], indices in ``TableLayout.growing``
    fingerprints: np.ndarray  # int64 [N]


_NO_ROWS = np.zeros(0, np.int32), np.zeros(0, np.int16), np.zeros(0, np.int64)


class EmbeddingTables:
    """Tables, divided among a ``group`` or not, their maps of growing ids, and the optimizer of their rows."""

    def __init__(self, layouts: tuple[TableLayout, ...], config: TrainConfig, group: Workers = ALONE) -> None:
        self.layouts = layouts
        self._init_scale = config.model.init_scale
        self._seed = config.seed
        most = [most_rows(config, layout) for layout in layouts]
        self.rows = make_rows(layouts, group, most, config.workers.divided_from_mb * 1e6)
        # Rows [R, C], float32.
        self.weights = [
            create_table(layout, self._init_scale, self._seed, *self.rows.deal(number))
            for number, layout in enumerate(layouts)
        ]
        self._counts = [layout.rows for layout in layouts]  # rows, over all workers
        self.id_maps = make_id_maps(layouts, config.ids, group)
        self.optimizer = table_optimizer(config.optimizer.embeddings, layouts, self.rows.groups)
        names = [layout.name for layout in layouts]
        self.optimizer.build(dict(zip(names, self.weights, strict=True)))
        # One call for all tables and their optimizer state: separate calls would cost as much each.
        self._set_first_values = tf.function(
            self._first_values_of,
            input_signature=[
                [tf.TensorSpec([None], tf.int32) for _ in self.id_maps],
                [tf.TensorSpec([None, layouts[number].columns]) for number in self.id_maps],
            ],
            autograph=False,
        )
        if has_few_shapes(config.batch.shapes):
            for number in self.id_maps:
                self.grow(number, most[number])

    def count(self, number: int) -> int:
        """Returns the current number of rows of a table, over all workers."""
        return self._counts[number]

    @property
    def parameters(self) -> int:
        """Returns the number of parameters, without rows that were never assigned to an id."""
        return sum(
            layout.columns * (self.id_maps[number].rows if layout.growing else layout.rows)
            for number, layout in enumerate(self.layouts)
        )

    # Maps of growing ids.

    def find_rows(
        self, plans: Sequence[TablePlan], time_us: int, learning: bool = False
    ) -> tuple[dict[int, np.ndarray], list[NewRows]]:
        """Returns the rows of a batch's growing ids: by table index, int32 [G], for ``TablePlan.pending``.

        With ``learning``, which a batch needs once, ids are counted, admitted and evicted. Also returns the newly
        assigned rows, for ``begin_rows``, which must be called before the batch is learned from.
        """
        pending = {
            number: plan.pending
            for number, plan in enumerate(plans)
            if number in self.id_maps and plan.pending is not None
        }
        maps = [self.id_maps[number] for number in pending]
        slots = find_slots(maps, [(ids.features, ids.fingerprints) for ids in pending.values()])
        by_table, begun = {}, []
        for (number, ids), id_map, indices in zip(pending.items(), maps, slots, strict=True):
            if learning:
                by_table[number], new = self.learn_batch(number, ids, time_us, indices)
                begun.append(new)
            else:
                by_table[number] = id_map.look_up(ids.features, ids.fingerprints, indices)
        return by_table, begun

    def assign_batches(
        self, plans: Sequence[BatchPlans], times_us: Sequence[int]
    ) -> tuple[list[BatchPlans], list[NewRows]]:
        """Assigns rows to the ids of several batches, with the same result as ``find_rows`` batch by batch.

        Plans of tables whose ids may wait for admission or be evicted stay pending, for ``learn_batch``.
        """
        assigned, begun = list(plans), []
        for number, plan in enumerate(plans):
            if (ids := plan.pending) is None:
                continue
            lengths = np.diff(np.searchsorted(ids.at, offsets_of(plan.counts)))
            learned = self.id_maps[number].learn_batches(
                ids.features, ids.fingerprints, ids.counts, plan.codes[ids.at], lengths, times_us
            )
            if learned is not None:
                assigned[number] = plan.with_rows(learned.rows)
                begun.append(_new_rows(number, ids, learned))
        return assigned, begun

    def learn_batch(
        self, number: int, ids: PendingIds, time_us: int, slots: np.ndarray | None = None
    ) -> tuple[np.ndarray, NewRows]:
        """Returns the rows of a batch's ids in one table, int32 [G], and the newly assigned ones; see ``find_rows``."""
        of_ids = ids.features, ids.fingerprints, ids.counts
        learned = self.id_maps[number].learn(*of_ids, time_us, ids.admitted, slots)
        return learned.rows, _new_rows(number, ids, learned)

    def begin_rows(self, new: Sequence[NewRows]) -> None:
        """Initializes the rows of newly admitted ids; doubles the slots if there are too few."""
        rows, values = [], []
        for number in self.id_maps:
            layout, size = self.layouts[number], self.count(number)
            while size < self.id_maps[number].rows:
                size = layout.rows + max(2 * (size - layout.rows), _FIRST_SLOTS)
            self.grow(number, size)
            parts = [entry[1:] for entry in new if entry.table == number] or [_NO_ROWS]
            all_rows, features, fingerprints = map(np.concatenate, zip(*parts, strict=True))
            which, rows_here = self.rows.deal(number).here(all_rows)
            rows.append(rows_here)
            values.append(
                new_rows(layout, features[which], fingerprints[which], self._init_scale, self._seed)
            )
        if any(map(len, rows)):
            self._set_first_values(rows, values)

    def adopt(self, number: int, feature: int, occupants: Occupants) -> np.ndarray:
        """Assigns initialized rows to the ids of another run; returns them, int32 [N], -1 for ids without room."""
        features = np.full(len(occupants.rows), feature, np.int16)
        rows = self.id_maps[number].adopt(features, occupants)
        fits = rows >= 0
        self.begin_rows([NewRows(number, rows[fits], features[fits], occupants.fingerprints[fits])])
        return rows

    def _first_values_of(self, rows: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> None:
        for number, table_rows, table_values in zip(self.id_maps, rows, values, strict=True):
            set_rows(self.weights[number], table_rows, table_values)
            self.optimizer.reset_rows(number, table_rows)

    def grow(self, number: int, size: int) -> None:
        if size > self._counts[number]:
            rows_here = self.rows.deal(number).count(size)
            grow_rows(self.weights[number], rows_here)
            self.optimizer.grow(number, rows_here)
            self._counts[number] = size

    # In a step.

    def signature(self, count: int) -> list[dict[str, tf.TensorSpec]]:
        """Returns the tensor specs of the plans of the first ``count`` tables."""
        indices = tf.TensorSpec([None], tf.int32)
        return [
            {
                "distinct": indices,
                "single": tf.TensorSpec([None, len(layout.single)], tf.int32),
                "values": indices,
                "segments": indices,
                **self.rows.signature(number),
            }
            for number, layout in enumerate(self.layouts[:count])
        ]

    def gather(self, plans: Sequence[Plan], learning: bool = False) -> Gathered:
        """Reads a batch's distinct rows from all workers, and if ``learning`` the optimizer's state for them.

        If there are plans for the first tables only, no other table is read or changed.
        """
        distinct = [plan["distinct"] for plan in plans]
        with tf.name_scope("gather"):
            held = [tf.gather(table, rows) for table, rows in zip(self.weights, distinct, strict=False)]
            state = self.optimizer.read(distinct) if learning else []
        return Gathered(plans, held, state, *self.rows.fetch(plans, held))

    def update(
        self,
        gathered: Gathered,
        gradients: Sequence[tf.Tensor],
        curvatures: Sequence[Curvature],
        rate: tf.Tensor,
    ) -> None:
        self.optimizer.update(gathered.row_gradients(gradients, curvatures), rate)

    # Between two steps.

    @property
    def variables(self) -> dict[str, tf.Variable]:
        rows = {
            f"rows/{layout.name}": table for layout, table in zip(self.layouts, self.weights, strict=True)
        }
        return rows | self.optimizer.variables

    def id_arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the id maps, by their names in checkpoints."""
        return named_arrays(
            self.layouts, {number: id_map.to_arrays() for number, id_map in self.id_maps.items()}
        )

    def lengths(self) -> dict[str, int]:
        """Returns the total length, over all workers, of each array whose entries may be dealt."""
        rows = {
            f"{kind}/{layout.name}": self.count(number)
            for number, layout in enumerate(self.layouts)
            if self.rows.dealt[number]
            for kind in ("rows", *self.optimizer.row_state)
        }
        maps = {number: id_map.entries() for number, id_map in self.id_maps.items()}
        return rows | named_arrays(self.layouts, maps)

    def restore(self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Part]) -> None:
        """Restores the id maps and the numbers of rows, after ``variables`` were set; see ``TrainState.restore``."""
        for number, id_map in self.id_maps.items():
            part = parts.get(f"rows/{self.layouts[number].name}")
            self._counts[number] = row_count(self.weights[number]) if part is None else part.total
            lengths = {name: part.total for name, part in id_arrays(self.layouts[number], parts).items()}
            id_map.restore(id_arrays(self.layouts[number], arrays), lengths)

    def whole(self) -> list[tf.Variable]:
        """Returns the tables, whole on the first worker. All workers must call it. Copies only divided tables."""
        return [
            self.rows.whole(number, table, self.count(number)) for number, table in enumerate(self.weights)
        ]


def _new_rows(table: int, ids: PendingIds, learned: Learned) -> NewRows:
    fresh = learned.fresh
    return NewRows(table, learned.rows[fresh], ids.features[fresh], ids.fingerprints[fresh])
