"""Division of a batch over workers. NumPy, in the reading thread.

All workers have the whole batch, and each takes whole queries of it: a stretch of its rows, as long as that of any
other. So all workers know what each of them needs of a table, without asking each other (``ctr.training.tables``).
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ctr.data.reader import Rows
from ctr.models.rows import TableLayout, padded_size
from ctr.objective.config import ObjectiveConfig
from ctr.objective.pairs import Pairs
from ctr.objective.targets import Targets, rank_pairs
from ctr.training.tables.plan import TablePlan, value_count
from ctr.workers.collectives import Workers


class Seat(NamedTuple):
    """Place among the workers that divide a batch. Chips refer to the rows of all, which stand chip by chip."""

    rank: int
    size: int  # W, the number of workers
    divided: tuple[bool, ...]  # for each table whether the workers have a part of it each
    # Whether the workers are the chips of this process, which has the parts of all of them.
    has_all: bool = False
    # Whether targets have each row's number in the whole batch, by which labels are sampled.
    numbered: bool = False
    by_chip: bool = False  # whether the workers are chips

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the workers whose parts are made here."""
        return tuple(range(self.size)) if self.has_all else (self.rank,)


def seat_in(group: Workers, divided: tuple[bool, ...], numbered: bool) -> Seat | None:
    """Returns the seat of a member of a group; None: the process is alone."""
    if group.is_here:
        return Seat(0, group.size, divided, has_all=True, by_chip=True)
    return None if group.size == 1 else Seat(group.rank, group.size, divided, numbered=numbered)


@dataclass(frozen=True)
class Division:
    """Which worker takes which of the N rows of a batch."""

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
    if seat.numbered:
        for own, rank in zip(targets, seat.ranks, strict=True):
            numbers = np.flatnonzero(division.rows_of(rank))
            own["number"] = np.zeros_like(own["query"])
            own["number"][: len(numbers)] = numbers
    if seat.has_all:
        joined = {name: np.stack([own[name] for own in targets]) for name in joined}
    return joined | {"batch_weight": weight}
