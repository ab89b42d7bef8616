"""What the workers of a step exchange: rows of divided tables, sums over the batch, and the scores of all rows.

A step has, in this order, each for all tables together::

    rows        from those that hold them to those whose rows of the batch need them          needed_rows
    gradients   of them, back to those that hold them, which add them in the order of workers  sums
                of all else, the same for all: added up                                        sums
    scores      of the rows of each worker, to all; and whether what it has is finite          of_all

and besides what the terms of the objective and the optimizers add up themselves. A process alone exchanges nothing.
"""

from collections.abc import Sequence

import tensorflow as tf

from ctr.models.embeddings import sum_by_position
from ctr.training.state import TrainState
from ctr.workers.collectives import Workers

_Plan = dict[str, tf.Tensor]
_Curvature = tuple[tf.Tensor, ...]


class StepExchange:
    """The exchanges of the steps on some state.

    Args:
        state: with the workers, and which tables are divided.
    """

    def __init__(self, state: TrainState) -> None:
        self._workers: Workers = state.chips or state.workers
        self._divided, self._layouts = state.divided, state.layouts

    def views(self, plans: Sequence[_Plan]) -> list[_Plan]:
        """The plans as they refer to what ``needed_rows`` returns."""
        return [
            {**plan, "distinct": tf.reshape(plan["asked"], [-1])} if divided else plan
            for plan, divided in zip(plans, self._divided, strict=True)
        ]

    def needed_rows(self, rows: Sequence[tf.Tensor], plans: Sequence[_Plan]) -> list[tf.Tensor]:
        """The rows of each table that this worker's part of the batch needs.

        Args:
            rows: float32 [Q, C], of what this worker holds of each table those that the batch needs.
            plans: of the tables (``ctr.training.division.TableShare``).

        Returns:
            Of a divided table float32 [W * P, C]; of another one ``rows``.
        """
        places = self._places()
        if not places:
            return list(rows)
        sent = [tf.gather(rows[place], plans[place]["asked"]) for place in places]
        with tf.name_scope("exchange_rows"):
            received = self._workers.exchange(sent)
        needed = list(rows)
        for place, one in zip(places, received, strict=True):
            needed[place] = tf.reshape(one, [-1, one.shape[2]])
        return needed

    def sums(
        self,
        plans: Sequence[_Plan],
        same: Sequence[tf.Tensor],
        row_gradients: Sequence[tf.Tensor],
        curvatures: Sequence[_Curvature],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[_Curvature]]:
        """Adds up what the workers found.

        Args:
            same: float32, what all are to have.
            row_gradients: of ``needed_rows``, float32 [., C].
            curvatures: of these rows, curvature and groups of ``ctr.optim.protocol.RowGradient``; or nothing.

        Returns:
            The sums of ``same``; and of ``row_gradients`` and ``curvatures`` those of the rows that this worker holds.
        """
        packed = [_pack(*both) for both in zip(row_gradients, curvatures, strict=True)]
        places = self._places()
        of_others = [
            tf.reshape(packed[place], [self._workers.size, -1, packed[place].shape[1]]) for place in places
        ]
        mirrored = [place for place in range(len(packed)) if place not in places]
        with tf.name_scope("exchange_gradients"):
            received = self._workers.exchange(of_others)
        with tf.name_scope("all_reduce"):
            # Those of static shapes by themselves: there their number of bytes is known, and nothing is padded.
            same = self._workers.all_reduce(same)
            total = self._workers.all_reduce([packed[place] for place in mirrored])
        for place, one in zip(mirrored, total, strict=True):
            packed[place] = one
        for place, one in zip(places, received, strict=True):
            plan = plans[place]
            flat, positions = tf.reshape(one, [-1, one.shape[2]]), tf.reshape(plan["asked"], [-1])
            packed[place] = sum_by_position(flat, positions, tf.shape(plan["distinct"])[0])
        unpacked = [
            _unpack(one, layout.columns, bool(curvature))
            for one, layout, curvature in zip(packed, self._layouts, curvatures, strict=True)
        ]
        return same, [gradient for gradient, _ in unpacked], [curvature for _, curvature in unpacked]

    def of_all(
        self, holds: tf.Tensor, logit: tf.Tensor, slices: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Whether something, a bool scalar, holds in all workers; and the scores of their rows.

        Args:
            logit, slices: of the B rows of each worker, float32 [B], and int32 [B] each.

        Returns:
            A bool scalar; the logits and the slices, [W * B].
        """
        if self._workers.size == 1:
            return holds, logit, list(slices)
        # Slices are far fewer than float32 counts without gaps.
        columns = [logit, *(tf.cast(one, tf.float32) for one in slices)]
        flag = tf.fill([1, len(columns)], tf.cast(holds, tf.float32))
        with tf.name_scope("gather_scores"):
            message = tf.concat([tf.stack(columns, axis=1), flag], axis=0)
            found = tf.reshape(self._workers.all_gather(message), [-1, tf.shape(message)[0], len(columns)])
        holds, rows = tf.reduce_all(found[:, -1] > 0), tf.reshape(found[:, :-1], [-1, len(columns)])
        return holds, rows[:, 0], [tf.cast(rows[:, place], tf.int32) for place in range(1, len(columns))]

    def _places(self) -> list[int]:
        return [place for place, divided in enumerate(self._divided) if divided]


def _pack(gradient: tf.Tensor, curvature: _Curvature) -> tf.Tensor:
    """Gradients, [N, C], and curvatures in columns that can be added up."""
    if not curvature:
        return gradient
    values, groups = curvature
    known = tf.cast(groups >= 0, tf.float32)
    return tf.concat(
        [gradient, tf.stack([values, known * tf.cast(groups, tf.float32), known], axis=1)], axis=1
    )


def _unpack(packed: tf.Tensor, columns: int, has_curvature: bool) -> tuple[tf.Tensor, _Curvature]:
    """What was packed, added up: all workers that know the group of a row know the same one."""
    if not has_curvature:
        return packed, ()
    gradient = tf.ensure_shape(packed[:, :columns], [None, columns])
    values, groups, known = tf.unstack(packed[:, columns:], num=3, axis=1)
    groups = tf.where(known > 0, tf.round(tf.math.divide_no_nan(groups, known)), -1.0)
    return gradient, (values, tf.cast(groups, tf.int32))
