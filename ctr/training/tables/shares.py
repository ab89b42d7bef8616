"""Shares of a table: what a worker needs for its part of a batch, and others of it; made by the reading thread.

A table is held by all workers (mirrored), or divided: row r is held by worker r % W as the row r // W of its part.
Workers that are chips of a process refer to all rows of a batch, those that each of them holds one after the other.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from ctr.models.rows import TableLayout, padded_size
from ctr.training.division import Division, Seat, most_held, positions_by_worker
from ctr.training.shapes import Shape, TableSizes
from ctr.training.tables.plan import TablePlan, row_capacity, value_count

_PLAN = ("distinct", "single", "values", "segments")


def plan_tensors(
    layouts: Sequence[TableLayout],
    plans: Sequence[TablePlan],
    division: tuple[Division, Seat] | None = None,
    shape: Shape | None = None,
) -> list[dict[str, tf.Tensor]]:
    """Makes what the step takes of each plan, all of whose ids have rows.

    Of the chips of this process, those of all of them behind each other, but ``distinct``.
    """
    if division is None:
        return [{name: tf.constant(getattr(plan, name)) for name in _PLAN} for plan in plans]
    tensors = []
    for number, (layout, plan) in enumerate(zip(layouts, plans, strict=True)):
        sizes = None if shape is None else shape.tables[number]
        shares = _shares(layout, plan, *division, division[1].divided[number], sizes)
        is_one = not division[1].has_all
        tensors.append(
            {
                name: tf.constant(
                    first if is_one or name == "distinct" else np.stack([share[name] for share in shares])
                )
                for name, first in shares[0].items()
            }
        )
    return tensors


def _shares(
    layout: TableLayout,
    plan: TablePlan,
    division: Division,
    seat: Seat,
    is_divided: bool,
    sizes: TableSizes | None,
) -> list[dict[str, np.ndarray]]:
    if seat.by_chip:
        held = row_capacity(most_held(plan, seat)) if sizes is None else sizes.held
        plan = arrange_by_chip(plan, seat.size, held)
    values = None
    if sizes is not None:
        values = sizes.values
    elif seat.has_all:
        values = padded_size(division.most_values(layout, plan, seat.size))
    return [
        share_of_table(layout, plan, division, seat._replace(rank=rank), is_divided, values)
        for rank in seat.ranks
    ]


def share_of_table(
    layout: TableLayout,
    plan: TablePlan,
    division: Division,
    seat: Seat,
    is_divided: bool,
    values_capacity: int | None = None,
) -> dict[str, np.ndarray]:
    """Finds what a worker needs of a table for its B rows, and what others need of its part.

    ``plan`` is of the whole batch, all of whose ids have rows; multivalent ids are padded to ``values_capacity``, or
    one of few sizes.

    Returns:
        ``distinct``: int32 [Q], the rows of this worker's part that the batch needs, each once, of a mirrored table
        those of the whole batch; may be padded with rows that it does not need. ``single``, ``values`` and
        ``segments`` as in ``TablePlan``, of this worker's rows: positions in ``distinct``, or of a divided table in
        the W * P rows that it has from all workers. And of a divided table ``asked``: int32 [W, P], for each worker,
        which of ``distinct`` it needs, with padding that it does not refer to.
    """
    workers, rank, count = division.workers, seat.rank, len(layout.multivalent)
    own_rows = np.flatnonzero(division.rows_of(rank))
    padded_single = np.zeros((division.capacity, plan.single.shape[1]), np.int32)
    padded_single[: len(own_rows)] = plan.single[own_rows]
    used = value_count(layout, plan, len(workers))
    values, segments = plan.values[:used], plan.segments[:used]
    row_of_value = segments // max(count, 1)
    own_values = np.flatnonzero(workers[row_of_value] == rank)
    capacity = padded_size(len(own_values)) if values_capacity is None else values_capacity
    capacity = capacity if count else 0
    padded_values = np.zeros(capacity, np.int32)
    padded_values[: len(own_values)] = values[own_values]
    padded_segments = np.full(capacity, division.capacity * count, np.int32)
    new_rows = division.order[row_of_value[own_values]] - rank * division.capacity
    padded_segments[: len(own_values)] = new_rows * count + segments[own_values] % max(count, 1)
    if not is_divided:
        mirrored = plan.distinct, padded_single, padded_values, padded_segments
        return dict(zip(_PLAN, mirrored, strict=True))
    needed = np.zeros((seat.size, plan.distinct_count), np.bool_)
    needed[workers[:, np.newaxis], plan.single[: len(workers)]] = True
    needed[workers[row_of_value], values] = True
    distinct, asked, positions = _requests(plan.distinct[: plan.distinct_count], needed, seat)
    arrays = distinct, positions[padded_single], positions[padded_values], padded_segments, asked
    return dict(zip((*_PLAN, "asked"), arrays, strict=True))


def _requests(
    distinct: np.ndarray, needed: np.ndarray, seat: Seat
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds who needs which rows of whom; ``needed``: bool [W, U], which worker needs which of ``distinct``, int32 [U].

    Returns ``distinct`` and ``asked`` of ``share_of_table``; and for each of the U rows where this worker has it among
    the W * P that it is given, int32; 0 for those that it does not need.
    """
    rank, size = seat.rank, seat.size
    owners = distinct % size
    counts = np.stack([np.bincount(owners[row], minlength=size) for row in needed])
    width = max(1, int(counts.max(initial=0)))
    own = np.flatnonzero(owners == rank)
    asked = np.zeros((size, width), np.int32)
    for worker in range(size):
        which = np.flatnonzero(needed[worker, own])
        asked[worker, : len(which)] = which
    mine = np.flatnonzero(needed[rank])
    positions = np.zeros(max(1, len(distinct)), np.int32)
    positions[mine] = positions_by_worker(owners[mine], size, width)
    # An operation on no row at all would need a case of its own.
    held = distinct[own] // size if len(own) else np.zeros(1, np.int32)
    return held.astype(np.int32), asked, positions


def arrange_by_chip(plan: TablePlan, size: int, held: int) -> TablePlan:
    """Lets a plan of the whole batch refer to rows chip by chip, as ``ctr.optim.row_lines`` takes those of W chips.

    Each chip has Q = ``held`` rows, at least ``most_held``; ``distinct`` has W * Q. A chip that has fewer repeats its
    first row, to which nothing refers.
    """
    rows = plan.distinct[: plan.distinct_count]
    positions = np.zeros(max(1, len(plan.distinct)), np.int32)
    positions[: len(rows)] = positions_by_worker(rows % size, size, held)
    distinct = np.repeat(np.arange(size, dtype=np.int32), held)
    distinct[positions[: len(rows)]] = rows
    return replace(plan, distinct=distinct, single=positions[plan.single], values=positions[plan.values])
