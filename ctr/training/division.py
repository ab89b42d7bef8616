"""What of a batch each worker computes, and which rows of tables it needs from others. NumPy, in the reading thread.

All workers have the whole batch, and each takes whole queries of it: a stretch of its rows, as long as that of any
other. So all workers know what each of them needs of a table, without asking each other.

A table is held by all workers (mirrored), or divided: row r is held by worker r % W as the row r // W of its part.
Workers that are chips of a process refer to all rows of a batch, those that each of them holds one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ctr.data.reader import Rows
from ctr.models.rows import TableLayout, TablePlan, padded_size, value_count
from ctr.objective.config import ObjectiveConfig
from ctr.objective.pairs import Pairs
from ctr.objective.targets import Targets, rank_pairs


class Place(NamedTuple):
    """Where a worker stands.

    Attributes:
        rank: its number.
        size: W, the number of workers.
        divided: for each table whether it is divided over the workers, which exchange what they need of it.
        has_all: whether the workers are the chips of this process, which has the parts of all of them.
        numbered: whether targets have each row's number in the whole batch, by which labels are sampled as one process
            samples them.
        by_chip: whether the workers are chips: each refers to the rows of all, which stand chip by chip
            (``arrange_by_chip``), those of a table that all chips have whole as well, so that sums have the same order.
    """

    rank: int
    size: int
    divided: tuple[bool, ...]
    has_all: bool = False
    numbered: bool = False
    by_chip: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the workers whose parts are made here."""
        return tuple(range(self.size)) if self.has_all else (self.rank,)


@dataclass(frozen=True)
class Division:
    """Which worker takes which of the N rows of a batch.

    Attributes:
        workers: int64 [N], the worker that takes each row.
        capacity: B, the rows that each worker's part has, padding included.
        order: int64 [N], where each row is among the W * B of all workers.
    """

    workers: np.ndarray
    capacity: int
    order: np.ndarray

    def rows_of(self, rank: int) -> np.ndarray:
        """bool [N]: the rows that a worker takes."""
        return self.workers == rank

    def most_rows(self, size: int) -> int:
        """The rows of the largest of so many workers' parts, without padding."""
        return int(np.bincount(self.workers, minlength=size).max())

    def most_values(self, layout: TableLayout, plan: TablePlan, size: int) -> int:
        """The multivalent ids of one table in the part of so many that has most of them."""
        count = len(layout.multivalent)
        used = value_count(layout, plan, len(self.workers))
        of_parts = np.bincount(self.workers[plan.segments[:used] // max(count, 1)], minlength=size)
        return int(of_parts.max())

    def with_capacity(self, capacity: int) -> "Division":
        """The same with other padding, B being at least ``most_rows``."""
        return replace(self, capacity=capacity, order=self.order + self.workers * (capacity - self.capacity))


def divide_rows(begins: np.ndarray, source: np.ndarray, size: int, batch_rows: int) -> Division:
    """Divides the rows of a batch: a function of where queries begin, and of the number of workers.

    Args:
        begins: int64, rising: where queries begin, 0 among them if there are rows.
        source: int8 [N], rising: the log of each row. The rows of each log are divided by themselves.
        size: W.
        batch_rows: the rows that batches usually have.
    """
    workers = np.zeros(len(source), np.int64)
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
    return Division(workers, capacity, _places_by_worker(workers, size, capacity))


def _places_by_worker(workers: np.ndarray, size: int, capacity: int) -> np.ndarray:
    """Where each of N elements is, int64 [N], if those of each of W workers stand together in order, padded."""
    by_worker = np.argsort(workers, kind="stable")
    counts = np.bincount(workers, minlength=size)
    within = np.arange(len(workers)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.empty(len(workers), np.int64)
    places[by_worker] = workers[by_worker] * capacity + within
    return places


@dataclass(frozen=True)
class TableShare:
    """What a worker needs of one table for its B rows, and, of a divided table, what others need of its part.

    Attributes:
        distinct: int32 [Q], the rows of this worker's part that the batch needs, each once; of a mirrored table those
            of the whole batch. May be padded with rows that it does not need.
        single, values, segments: as in ``ctr.models.rows.TablePlan``, of this worker's rows: positions in ``distinct``,
            or of a divided table in the W * P rows that it has from all workers.
        asked: int32 [W, P], of a divided table, for each worker, which of ``distinct`` it needs, with padding that it
            does not refer to; None of a mirrored one.
    """

    distinct: np.ndarray
    single: np.ndarray
    values: np.ndarray
    segments: np.ndarray
    asked: np.ndarray | None = None


def share_of_table(
    layout: TableLayout,
    plan: TablePlan,
    division: Division,
    place: Place,
    is_divided: bool,
    values_capacity: int | None = None,
) -> TableShare:
    """Finds what a worker needs of a table.

    Args:
        plan: of the whole batch, all of whose ids have rows.
        place: the worker.
        values_capacity: what its multivalent ids are padded to; None: one of few sizes.
    """
    workers, rank, count = division.workers, place.rank, len(layout.multivalent)
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
        return TableShare(plan.distinct, padded_single, padded_values, padded_segments)
    needed = np.zeros((place.size, plan.distinct_count), np.bool_)
    needed[workers[:, np.newaxis], plan.single[: len(workers)]] = True
    needed[workers[row_of_value], values] = True
    distinct, asked, positions = _ask(plan.distinct[: plan.distinct_count], needed, place)
    return TableShare(distinct, positions[padded_single], positions[padded_values], padded_segments, asked)


def _ask(distinct: np.ndarray, needed: np.ndarray, place: Place) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who needs which rows of whom.

    Args:
        distinct: int32 [U], rows of the table.
        needed: bool [W, U], which worker needs which of them.

    Returns:
        ``distinct`` and ``asked`` of a ``TableShare``; and for each of the U rows where this worker has it among the
        W * P that it is given, int32; 0 for those that it does not need.
    """
    rank, size = place.rank, place.size
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
    positions[mine] = _places_by_worker(owners[mine], size, width)
    # An operation on no row at all would need a case of its own.
    held = distinct[own] // size if len(own) else np.zeros(1, np.int32)
    return held.astype(np.int32), asked, positions


def most_held(plan: TablePlan, place: Place) -> int:
    """How many rows of a plan the chip holds that holds most of them; 0 where there are no chips."""
    if not place.by_chip:
        return 0
    return int(np.bincount(plan.distinct[: plan.distinct_count] % place.size, minlength=1).max())


def arrange_by_chip(plan: TablePlan, size: int, held: int) -> TablePlan:
    """Lets a plan refer to rows chip by chip, as ``ctr.optim.row_lines`` takes those of W chips.

    Args:
        plan: of the whole batch, all of whose ids have rows.
        held: Q, the rows of each chip, at least ``most_held``; ``distinct`` has W * Q. There a chip that has fewer
            repeats its first row, to which nothing refers.
    """
    rows = plan.distinct[: plan.distinct_count]
    positions = np.zeros(max(1, len(plan.distinct)), np.int32)
    positions[: len(rows)] = _places_by_worker(rows % size, size, held)
    distinct = np.repeat(np.arange(size, dtype=np.int32), held)
    distinct[positions[: len(rows)]] = rows
    return replace(plan, distinct=distinct, single=positions[plan.single], values=positions[plan.values])


def held_rows(rows: np.ndarray, place: Place) -> tuple[np.ndarray, np.ndarray]:
    """Of some rows of a divided table those that a worker holds: their positions, and the rows of its part."""
    which = np.flatnonzero(rows % place.size == place.rank)
    return which, rows[which] // place.size


def is_divided(layout: TableLayout, size: int, most_rows: int, from_bytes: float) -> bool:
    """Whether a table is divided over W workers.

    Args:
        most_rows: the rows that it may get.
        from_bytes: from which size on.
    """
    # Each worker has at least one of the rows that are there from the beginning.
    return size > 1 and layout.rows >= size and most_rows * layout.columns * 4 >= from_bytes


DividedBatch = tuple[Division, Place]
"""Who takes which rows of a batch, and where this worker stands."""


class BatchPart(NamedTuple):
    """Rows of a batch that one step takes: all of them, or those of a worker, by their ``numbers`` in the batch."""

    rows: Rows
    source: np.ndarray
    pairs: Pairs
    numbers: np.ndarray | None = None


def parts_of_batch(
    objective: ObjectiveConfig, rows: Rows, source: np.ndarray, division: DividedBatch | None
) -> list[BatchPart]:
    """Those parts of a batch that are made here."""
    if division is None:
        return [BatchPart(rows, source, rank_pairs(objective, rows, source))]
    found = []
    for rank in division[1].ranks:
        own = division[0].rows_of(rank)
        part = rows.keep(own), source[own]
        found.append(BatchPart(*part, rank_pairs(objective, *part), np.flatnonzero(own)))
    return found


def join_targets(
    targets: list[Targets], parts: Sequence[BatchPart], place: Place, weight: np.ndarray
) -> Targets:
    """The targets of the parts that are made here, with the weight of the whole batch."""
    for own, part in zip(targets, parts, strict=True):
        if place.numbered and part.numbers is not None:
            own["number"] = np.zeros_like(own["query"])
            own["number"][: len(part.numbers)] = part.numbers
    joined = targets[0]
    if place.has_all:
        joined = {name: np.stack([own[name] for own in targets]) for name in joined}
    return joined | {"batch_weight": weight}
