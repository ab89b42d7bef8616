"""Placement of the rows of embedding tables: all in this process, or the rows of large tables dealt to a group.

Tables are referred to by index.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.models.embeddings import sum_by_position
from ctr.models.rows import TableLayout
from ctr.workers.collectives import ALONE, Workers, gather_dealt
from ctr.workers.parts import Deal
from ctr.workers.row_variables import read_rows

Plan = dict[str, tf.Tensor]
Curvature = tuple[tf.Tensor, ...]

_PIECE = 65536


class Local:
    """Rows of all tables in a single process.

    Attributes:
        groups: for each table, the workers to which its rows are dealt; ``ALONE`` for a table that is not divided.
        dealt: for each table, whether its rows are dealt to several workers.
    """

    def __init__(self, groups: Sequence[Workers]) -> None:
        self.groups = tuple(groups)
        self.dealt = tuple(group.size > 1 for group in groups)

    def deal(self, table: int) -> Deal:
        return self.groups[table].deal

    def signature(self, table: int) -> dict[str, tf.TensorSpec]:
        """Returns the specs of arrays that a plan for a table has in addition to the arrays of a ``TablePlan``."""
        return {"asked": tf.TensorSpec([None, None], tf.int32)} if self.dealt[table] else {}

    def fetch(self, plans: Sequence[Plan], held: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[Plan]]:
        """Returns the rows for this worker's share of a batch, float32 [., C], and plans that refer to these rows.

        ``held``: for each table with a plan, the distinct rows that this worker holds, float32 [Q, C].
        """
        return list(held), list(plans)

    def add_up(
        self, plans: Sequence[Plan], gradients: Sequence[tf.Tensor], curvatures: Sequence[Curvature]
    ) -> tuple[list[tf.Tensor], list[Curvature]]:
        """Sums gradients and curvatures of ``fetch``'s rows over the batch; returns the sums for this worker's rows.

        Curvatures are the last fields of ``ctr.optim.protocol.RowGradient``, or empty.
        """
        return list(gradients), list(curvatures)

    def whole(self, table: int, variable: tf.Variable, rows: int) -> tf.Variable:
        """Returns the table, on the first worker with all ``rows``. All workers call it; copies divided tables only."""
        return variable


class Divided(Local):
    """Rows of tables on the workers of a group: each holds a part of each large table, and all rows of the others."""

    def __init__(self, groups: Sequence[Workers], group: Workers) -> None:
        super().__init__(groups)
        self._group = group

    def _tables(self, count: int, dealt: bool) -> list[int]:
        return [table for table, is_dealt in enumerate(self.dealt[:count]) if is_dealt == dealt]

    def fetch(self, plans: Sequence[Plan], held: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[Plan]]:
        """Exchanges the rows of divided tables that workers request; each receives float32 [W * P, C] per table."""
        needed, views = list(held), list(plans)
        tables = self._tables(len(plans), dealt=True)
        sent = [tf.gather(held[table], plans[table]["asked"]) for table in tables]
        with tf.name_scope("exchange_rows"):
            received = self._group.exchange(sent)
        for table, rows in zip(tables, received, strict=True):
            needed[table] = tf.reshape(rows, [-1, rows.shape[2]])
            views[table] = {**plans[table], "distinct": tf.reshape(plans[table]["asked"], [-1])}
        return needed, views

    def add_up(
        self, plans: Sequence[Plan], gradients: Sequence[tf.Tensor], curvatures: Sequence[Curvature]
    ) -> tuple[list[tf.Tensor], list[Curvature]]:
        """Sends gradients of divided tables to the workers that hold the rows, which add them in the order of ranks."""
        group = self._group
        packed = [_pack(*both) for both in zip(gradients, curvatures, strict=True)]
        tables, mirrored = (self._tables(len(plans), dealt) for dealt in (True, False))
        of_others = [tf.reshape(packed[table], [group.size, -1, packed[table].shape[1]]) for table in tables]
        with tf.name_scope("exchange_gradients"):
            received = group.exchange(of_others)
        with tf.name_scope("all_reduce"):
            totals = group.all_reduce([packed[table] for table in mirrored])
        for table, total in zip(mirrored, totals, strict=True):
            packed[table] = total
        for table, parts in zip(tables, received, strict=True):
            flat, positions = tf.reshape(parts, [-1, parts.shape[2]]), tf.reshape(plans[table]["asked"], [-1])
            packed[table] = sum_by_position(flat, positions, tf.shape(plans[table]["distinct"])[0])
        unpacked = [
            _unpack(total, gradient.shape[1], bool(curvature))
            for total, gradient, curvature in zip(packed, gradients, curvatures, strict=True)
        ]
        return [gradient for gradient, _ in unpacked], [curvature for _, curvature in unpacked]

    def whole(self, table: int, variable: tf.Variable, rows: int) -> tf.Variable:
        if not self.dealt[table]:
            return variable

        def read(part: slice) -> np.ndarray:
            return read_rows(variable, part.start, part.stop)

        values = gather_dealt(self._group, read, rows, _PIECE // self._group.size)
        shape = [None if variable.shape[0] is None else len(values), variable.shape[1]]
        return tf.Variable(values, name=variable.name.partition(":")[0], shape=shape)


def make_rows(
    layouts: Sequence[TableLayout], group: Workers, most_rows: Sequence[int], from_bytes: float
) -> Local:
    """Divides the tables that may reach ``from_bytes`` among the workers of a group."""
    groups = [
        group if is_divided(layout, group.size, most, from_bytes) else ALONE
        for layout, most in zip(layouts, most_rows, strict=True)
    ]
    return Local(groups) if group.size == 1 else Divided(groups, group)


def is_divided(layout: TableLayout, size: int, most_rows: int, from_bytes: float) -> bool:
    """Returns whether a table is divided: if ``most_rows`` take ``from_bytes`` or more, and each worker gets a row."""
    # Each worker must have at least one of the initial rows.
    return size > 1 and layout.rows >= size and most_rows * layout.columns * 4 >= from_bytes


def _pack(gradient: tf.Tensor, curvature: Curvature) -> tf.Tensor:
    if not curvature:
        return gradient
    values, groups = curvature
    has_group = tf.cast(groups >= 0, tf.float32)
    return tf.concat(
        [gradient, tf.stack([values, has_group * tf.cast(groups, tf.float32), has_group], axis=1)], axis=1
    )


def _unpack(packed: tf.Tensor, columns: int, has_curvature: bool) -> tuple[tf.Tensor, Curvature]:
    """Unpacks a sum of packed gradients and curvatures; workers that know the group of a row agree on it."""
    if not has_curvature:
        return packed, ()
    gradient = tf.ensure_shape(packed[:, :columns], [None, columns])
    values, groups, counts = tf.unstack(packed[:, columns:], num=3, axis=1)
    groups = tf.where(counts > 0, tf.round(tf.math.divide_no_nan(groups, counts)), -1.0)
    return gradient, (values, tf.cast(groups, tf.int32))
