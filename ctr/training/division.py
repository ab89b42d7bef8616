"""Division of a batch over workers. NumPy, in the reading thread.

All workers have the rows of the whole batch, and each takes whole queries of it: a stretch of its rows, as long as that
of any other. What each of them needs of a table they tell each other (``ctr.training.tables.joint_plan``), or find out
of the whole batch, as chips do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ctr.data.reader import Rows
from ctr.models.rows import TableLayout, padded_size
from ctr.objective.config import ObjectiveConfig
from ctr.objective.pairs import Pairs
from ctr.objective.targets import Targets, rank_pairs
from ctr.training.tables.plan import TablePlan, row_capacity, value_count
from ctr.workers.collectives import Workers

PLAN = ("distinct", "single", "values", "segments")
"""What a step takes of the plan of a table."""

TOGETHER_FROM = 3
"""From so many workers on they make plans together; two find ids faster than they join them."""


class Seat(NamedTuple):
    """Place among the workers that divide a batch.

    Chips refer to the rows of all, which stand chip by chip (``arrange_by_chip``), those of a table that all have whole
    as well, so that sums have the same order.
    """

    rank: int
    size: int  # W, the number of workers
    divided: tuple[bool, ...]  # for each table whether the workers have a part of it each
    # Whether the workers are the chips of this process, which has the parts of all of them.
    has_all: bool = False
    by_chip: bool = False  # whether the workers are chips
    group: Workers | None = (
        None  # those with which plans are made together; None: this process makes whole ones
    )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the workers whose parts are made here."""
        return tuple(range(self.size)) if self.has_all else (self.rank,)


def seat_in(group: Workers, divided: tuple[bool, ...]) -> Seat | None:
    """Returns the seat of a member of a group; None: the process is alone."""
    if group.is_here:
        return Seat(0, group.size, divided, has_all=True, by_chip=True)
    if group.size == 1:
        return None
    makes_parts = group if group.size >= TOGETHER_FROM else None
    return Seat(group.rank, group.size, divided, group=makes_parts)


@dataclass(frozen=True)
class Division:
    """Assignment of the N rows of a batch to workers."""

    workers: np.ndarray  # int64 [N], the worker that takes each row
    capacity: int  # B, the rows that each worker's part has, padding included
    order: np.ndarray  # int64 [N], where each row is among the W * B of all workers
    seat: Seat

    def rows_of(self, rank: int) -> np.ndarray:
        return self.workers == rank

    def most_rows(self) -> int:
        return int(np.bincount(self.workers, minlength=self.seat.size).max())

    def most_values(self, layout: TableLayout, plan: TablePlan) -> int:
        """Counts the multivalent ids of one table in the part that has most of them."""
        count = len(layout.multivalent)
        used = value_count(layout, plan, len(self.workers))
        owners = self.workers[plan.segments[:used] // max(count, 1)]
        return int(np.bincount(owners, minlength=self.seat.size).max())

    def most_held(self, plan: TablePlan) -> int:
        """Counts the rows of a plan that the chip holds that holds most of them; 0 where there are no chips."""
        if not self.seat.by_chip:
            return 0
        return int(np.bincount(plan.distinct[: plan.distinct_count] % self.seat.size, minlength=1).max())

    def with_capacity(self, capacity: int) -> "Division":
        return replace(self, capacity=capacity, order=self.order + self.workers * (capacity - self.capacity))


def divide_rows(begins: np.ndarray, source: np.ndarray, seat: Seat, batch_rows: int) -> Division:
    """Divides the rows of a batch: a function of where queries begin, and of the number of workers.

    Args:
        begins: int64, rising: where queries begin, 0 among them if there are rows.
        source: int8 [N], rising: the log of each row. The rows of each log are divided by themselves.
    """
    workers, size = np.zeros(len(source), np.int64), seat.size
    bounds = np.flatnonzero(np.diff(source, prepend=-1, append=-1))
    for begin, end in pairwise(bounds):
        edges = np.append(begins[(begins >= begin) & (begins < end)], end)
        ideal = begin + (end - begin) * np.arange(1, size) / size
        after = np.minimum(np.searchsorted(edges, ideal), len(edges) - 1)
        before = np.maximum(after - 1, 0)
        cuts = np.where(ideal - edges[before] <= edges[after] - ideal, edges[before], edges[after])
        workers[begin:end] = np.searchsorted(cuts, np.arange(begin, end), side="right")
    counts = np.bincount(workers, minlength=size)
    share = -(-batch_rows // size)
    # Queries are whole: a little more than its share is usual.
    capacity = padded_size(int(counts.max()), smallest=share + -(-share // 64))
    return Division(workers, capacity, positions_by_worker(workers, size, capacity), seat)


def positions_by_worker(workers: np.ndarray, size: int, capacity: int) -> np.ndarray:
    """Returns where each of N elements is, int64 [N], if those of each of W workers stand together in order, padded."""
    by_worker = np.argsort(workers, kind="stable")
    counts = np.bincount(workers, minlength=size)
    within = np.arange(len(workers)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.empty(len(workers), np.int64)
    positions[by_worker] = workers[by_worker] * capacity + within
    return positions


def parts_of_batch(
    objective: ObjectiveConfig, rows: Rows, source: np.ndarray, division: Division | None
) -> list[tuple[Rows, np.ndarray, Pairs]]:
    """Returns those parts of a batch that are made here: rows, the log of each, and their pairs."""
    if division is None:
        return [(rows, source, rank_pairs(objective, rows, source))]
    taken = [division.rows_of(rank) for rank in division.seat.ranks]
    parts = [(rows.keep(own), source[own]) for own in taken]
    return [(*part, rank_pairs(objective, *part)) for part in parts]


def join_targets(targets: list[Targets], division: Division, weight: np.ndarray) -> Targets:
    """Joins the targets of the parts that are made here, with the weight of the whole batch."""
    seat, joined = division.seat, targets[0]
    if seat.has_all:
        joined = {name: np.stack([own[name] for own in targets]) for name in joined}
    return joined | {"batch_weight": weight}


# Tables.


def divide_plans(
    layouts: Sequence[TableLayout],
    plans: Sequence[TablePlan],
    division: Division,
    sizes: Sequence[tuple[int, int]] | None = None,
) -> list[dict[str, np.ndarray]]:
    """Finds what a worker takes of each plan: of chips arrays of all of them, [W, ...], but ``distinct``.

    ``sizes``: for each table how many rows a chip has, and how many values a worker; None: as many as needed.
    """
    seat, tables = division.seat, []
    for number, (layout, plan) in enumerate(zip(layouts, plans, strict=True)):
        held, values = (None, None) if sizes is None else sizes[number]
        if seat.by_chip:
            held = row_capacity(division.most_held(plan)) if held is None else held
            plan = arrange_by_chip(plan, seat.size, held)
        if values is None and seat.has_all:
            values = padded_size(division.most_values(layout, plan))
        shares = [
            share_of_table(layout, plan, division, rank, seat.divided[number], values) for rank in seat.ranks
        ]
        first, by_chip = shares[0], seat.has_all
        names = [name for name in first if by_chip and name != "distinct"]
        tables.append(first | {name: np.stack([share[name] for share in shares]) for name in names})
    return tables


def share_of_table(
    layout: TableLayout,
    plan: TablePlan,
    division: Division,
    rank: int,
    is_divided: bool,
    values_capacity: int | None = None,
) -> dict[str, np.ndarray]:
    """Finds what a worker needs of a table for its B rows, and what others need of its part.

    A table is held by all workers (mirrored), or divided: row r is held by worker r % W as the row r // W of its part.
    Workers that are chips of a process refer to all rows of a batch, those that each of them holds one after the other.

    Returns:
        ``distinct``: int32 [Q], the rows of this worker's part that the batch needs, each once, of a mirrored table
        those of the whole batch; may be padded with rows that it does not need. ``single``, ``values`` and
        ``segments`` as in ``TablePlan``, of this worker's rows: positions in ``distinct``, or of a divided table in
        the W * P rows that it has from all workers. And of a divided table ``asked``: int32 [W, P], for each worker,
        which of ``distinct`` it needs, with padding that it does not refer to.
    """
    count = len(layout.multivalent)
    if plan.needed is not None:
        single, values, segments = plan.single, plan.values, plan.segments
    else:
        single, values, segments = _part_of_plan(layout, plan, division, rank)
    padded_single = np.zeros((division.capacity, plan.single.shape[1]), np.int32)
    padded_single[: len(single)] = single
    capacity = padded_size(len(values)) if values_capacity is None else values_capacity
    capacity = capacity if count else 0
    padded_values = np.zeros(capacity, np.int32)
    padded_values[: len(values)] = values
    padded_segments = np.full(capacity, division.capacity * count, np.int32)
    padded_segments[: len(values)] = segments
    if not is_divided:
        mirrored = plan.distinct, padded_single, padded_values, padded_segments
        return dict(zip(PLAN, mirrored, strict=True))
    needed = _needed(layout, plan, division) if plan.needed is None else plan.needed
    distinct, asked, positions = _requests(plan.distinct[: plan.distinct_count], needed, rank)
    arrays = distinct, positions[padded_single], positions[padded_values], padded_segments, asked
    return dict(zip((*PLAN, "asked"), arrays, strict=True))


def _part_of_plan(
    layout: TableLayout, plan: TablePlan, division: Division, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Selects ``single``, ``values`` and ``segments`` of a worker's rows from a plan of the whole batch."""
    workers, count = division.workers, max(len(layout.multivalent), 1)
    used = value_count(layout, plan, len(workers))
    values, segments = plan.values[:used], plan.segments[:used]
    own = np.flatnonzero(workers[segments // count] == rank)
    rows = division.order[segments[own] // count] - rank * division.capacity
    single = plan.single[: len(workers)][division.rows_of(rank)]
    return single, values[own], rows * count + segments[own] % count


def _needed(layout: TableLayout, plan: TablePlan, division: Division) -> tuple[np.ndarray, ...]:
    """Finds which distinct rows each worker needs, as ``TablePlan.needed``, in a plan of the whole batch."""
    workers, used = division.workers, value_count(layout, plan, len(division.workers))
    needed = np.zeros((division.seat.size, plan.distinct_count), np.bool_)
    needed[workers[:, np.newaxis], plan.single[: len(workers)]] = True
    row_of_value = plan.segments[:used] // max(len(layout.multivalent), 1)
    needed[workers[row_of_value], plan.values[:used]] = True
    return tuple(map(np.flatnonzero, needed))


def _requests(
    distinct: np.ndarray, needed: Sequence[np.ndarray], rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds who needs which rows of whom; ``needed``: for each of W workers positions in ``distinct``, int32 [U].

    Returns ``distinct`` and ``asked`` of ``share_of_table``; and for each of the U rows where this worker has it among
    the W * P that it is given, int32; 0 for those that it does not need.
    """
    size = len(needed)
    owners = distinct % size
    is_own, width, of_own = owners == rank, 1, []
    for theirs in needed:
        whose = owners[theirs]
        width = max(width, int(np.bincount(whose, minlength=size).max()))
        of_own.append(np.sort(theirs[whose == rank]))
    own, place = np.flatnonzero(is_own), np.cumsum(is_own) - 1
    asked = np.zeros((size, width), np.int32)
    for worker, theirs in enumerate(of_own):
        asked[worker, : len(theirs)] = place[theirs]
    mine = np.sort(needed[rank])
    positions = np.zeros(max(1, len(distinct)), np.int32)
    positions[mine] = positions_by_worker(owners[mine], size, width)
    # An operation on no row at all would need a case of its own.
    held = distinct[own] // size if len(own) else np.zeros(1, np.int32)
    return held.astype(np.int32), asked, positions


def arrange_by_chip(plan: TablePlan, size: int, held: int) -> TablePlan:
    """Lets a plan of the whole batch refer to rows chip by chip, as ``ctr.workers.row_lines`` takes those of W chips.

    Each chip has Q = ``held`` rows, at least ``Division.most_held``; ``distinct`` has W * Q. A chip that has fewer
    repeats its first row, to which nothing refers.
    """
    rows = plan.distinct[: plan.distinct_count]
    positions = np.zeros(max(1, len(plan.distinct)), np.int32)
    positions[: len(rows)] = positions_by_worker(rows % size, size, held)
    distinct = np.repeat(np.arange(size, dtype=np.int32), held)
    distinct[positions[: len(rows)]] = rows
    return replace(plan, distinct=distinct, single=positions[plan.single], values=positions[plan.values])
