"""Exchange of table rows and gradients among the members of a group in a step.

Each for all tables together; a process alone exchanges nothing::

    rows        from those that hold them to those whose rows of the batch need them           deliver
    gradients   of divided tables back to those that hold them, which add them in the order    add_up
                of ranks; of mirrored ones, the same for all, added up
"""

from collections.abc import Sequence

import tensorflow as tf

from ctr.models.embeddings import sum_by_position
from ctr.models.rows import TableLayout
from ctr.workers.collectives import Workers

Plan = dict[str, tf.Tensor]
Curvature = tuple[tf.Tensor, ...]


def deliver(
    group: Workers, divided: Sequence[bool], held: Sequence[tf.Tensor], plans: Sequence[Plan]
) -> tuple[list[tf.Tensor], list[Plan]]:
    """Delivers the rows of each table that this member's part of the batch needs, and the plans as they refer to them.

    Of a divided table the rows are float32 [W * P, C], of another one ``held``: float32 [Q, C], the rows here that the
    batch needs.
    """
    tables = [number for number, is_divided in enumerate(divided) if is_divided]
    needed, views = list(held), list(plans)
    if not tables:
        return needed, views
    sent = [tf.gather(held[number], plans[number]["asked"]) for number in tables]
    with tf.name_scope("exchange_rows"):
        received = group.exchange(sent)
    for number, rows in zip(tables, received, strict=True):
        needed[number] = tf.reshape(rows, [-1, rows.shape[2]])
        views[number] = {**plans[number], "distinct": tf.reshape(plans[number]["asked"], [-1])}
    return needed, views


def add_up(
    group: Workers,
    divided: Sequence[bool],
    layouts: Sequence[TableLayout],
    plans: Sequence[Plan],
    gradients: Sequence[tf.Tensor],
    curvatures: Sequence[Curvature],
) -> tuple[list[tf.Tensor], list[Curvature]]:
    """Sums over the group what its members found of the rows that each of them holds.

    ``gradients``: of the rows that ``deliver`` returned, float32 [., C]; ``curvatures``: of these rows, curvature and
    groups of ``ctr.optim.protocol.RowGradient``, or nothing.
    """
    packed = [_pack(*both) for both in zip(gradients, curvatures, strict=True)]
    tables = [number for number, is_divided in enumerate(divided) if is_divided]
    mirrored = [number for number, is_divided in enumerate(divided) if not is_divided]
    of_others = [tf.reshape(packed[number], [group.size, -1, packed[number].shape[1]]) for number in tables]
    with tf.name_scope("exchange_gradients"):
        received = group.exchange(of_others)
    with tf.name_scope("all_reduce"):
        totals = group.all_reduce([packed[number] for number in mirrored])
    for number, total in zip(mirrored, totals, strict=True):
        packed[number] = total
    for number, parts in zip(tables, received, strict=True):
        flat, positions = tf.reshape(parts, [-1, parts.shape[2]]), tf.reshape(plans[number]["asked"], [-1])
        packed[number] = sum_by_position(flat, positions, tf.shape(plans[number]["distinct"])[0])
    unpacked = [
        _unpack(total, layout.columns, bool(curvature))
        for total, layout, curvature in zip(packed, layouts, curvatures, strict=True)
    ]
    return [gradient for gradient, _ in unpacked], [curvature for _, curvature in unpacked]


def _pack(gradient: tf.Tensor, curvature: Curvature) -> tf.Tensor:
    """Puts gradients, [N, C], and curvatures into columns that can be added up."""
    if not curvature:
        return gradient
    values, groups = curvature
    known = tf.cast(groups >= 0, tf.float32)
    return tf.concat(
        [gradient, tf.stack([values, known * tf.cast(groups, tf.float32), known], axis=1)], axis=1
    )


def _unpack(packed: tf.Tensor, columns: int, has_curvature: bool) -> tuple[tf.Tensor, Curvature]:
    """Takes apart what was packed and added up: all members that know the group of a row know the same one."""
    if not has_curvature:
        return packed, ()
    gradient = tf.ensure_shape(packed[:, :columns], [None, columns])
    values, groups, known = tf.unstack(packed[:, columns:], num=3, axis=1)
    groups = tf.where(known > 0, tf.round(tf.math.divide_no_nan(groups, known)), -1.0)
    return gradient, (values, tf.cast(groups, tf.int32))
