"""Division of a batch among the workers of a group; computed with NumPy, in the thread that reads ahead.

All workers have the whole batch and its plan. Each learns from whole queries, a contiguous range of each log's rows;
the shares are padded to equal length. A process alone learns from the whole batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ctr.data.reader import Rows
from ctr.models.rows import TableLayout
from ctr.objective.targets import query_begins
from ctr.training.sizes import TableSizes, fit
from ctr.training.tables.plan import TablePlan, pad_references, value_count
from ctr.workers.parts import Deal

PLAN = ("distinct", "single", "values", "segments")
"""Names of the arrays of a table's plan that a step takes."""


class Placement(NamedTuple):
    """Share of each batch and of each table that this worker holds."""

    deal: Deal = Deal()  # the group that divides each batch
    dealt: tuple[bool, ...] = ()  # for each table, whether its rows are also dealt to the workers

    def share(self, rows: Rows, source: np.ndarray, batch_rows: int) -> "Share":
        """Returns the share of a batch that this worker learns from; see ``divide_rows``."""
        if self.deal.size == 1:
            return Share(slice(len(rows)), fit(len(rows), batch_rows), slice(len(rows)))
        division = divide_rows(query_begins(rows, source), source, self, batch_rows)
        return Share(division.rows_of(self.deal.rank), division.capacity, division.order, division)


ALL_HERE = Placement()


@dataclass(frozen=True)
class Division:
    """Assignment of the N rows of a batch to workers."""

    workers: np.ndarray  # int64 [N], the worker that learns from each row
    capacity: int  # B, the number of rows of each worker's share, padding included
    order: np.ndarray  # int64 [N], the position of each row among the W * B rows of all workers
    placement: Placement

    def rows_of(self, rank: int) -> np.ndarray:
        return self.workers == rank


class Share(NamedTuple):
    """Rows of a batch that this worker learns from; all of them if there is no other worker."""

    local: slice | np.ndarray  # bool [N], which rows of the batch these are
    capacity: int  # B, the number of rows that the step takes, padding included
    order: slice | np.ndarray  # int64 [N], positions of the batch's good rows among a step's results
    division: Division | None = None

    def sizes(
        self, plan: TablePlan, rows: int, size: TableSizes | None
    ) -> tuple[int, int | None, int | None]:
        """Returns the sizes that the whole batch's plan is padded to, as ``pad_plan`` takes them; B is ``rows``."""
        if self.division is not None:
            # ``arrays`` pads this worker's part of the plan.
            return len(plan.single), len(plan.values), None
        return (rows, None, None) if size is None else (rows, size.values, size.ids)

    def arrays(
        self, layouts: Sequence[TableLayout], plans: Sequence[TablePlan]
    ) -> list[dict[str, np.ndarray]]:
        """Returns, for each table, the arrays that the step takes from its padded plan; all ids must have rows."""
        if self.division is None:
            return [{name: getattr(plan, name) for name in PLAN} for plan in plans]
        each = zip(layouts, plans, self.division.placement.dealt, strict=False)
        return [share_of_table(layout, plan, self.division, is_dealt) for layout, plan, is_dealt in each]


def divide_rows(begins: np.ndarray, source: np.ndarray, placement: Placement, batch_rows: int) -> Division:
    """Divides the rows of a batch; depends only on where queries begin and on the number of workers.

    Args:
        begins: int64, ascending: the starts of queries, including 0 if there are rows.
        source: int8 [N], ascending: the log of each row. The rows of each log are divided separately.
    """
    workers, size = np.zeros(len(source), np.int64), placement.deal.size
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
    # Queries are whole, so parts are usually a little larger than an equal share.
    capacity = fit(int(counts.max()), least=share + -(-share // 64))
    return Division(workers, capacity, positions_by_worker(workers, size, capacity), placement)


def positions_by_worker(workers: np.ndarray, size: int, capacity: int) -> np.ndarray:
    """Returns each element's index, int64 [N], once grouped by worker, in order, each group padded to ``capacity``."""
    by_worker = np.argsort(workers, kind="stable")
    counts = np.bincount(workers, minlength=size)
    within = np.arange(len(workers)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.empty(len(workers), np.int64)
    positions[by_worker] = workers[by_worker] * capacity + within
    return positions


# Tables.


def share_of_table(
    layout: TableLayout, plan: TablePlan, division: Division, is_divided: bool
) -> dict[str, np.ndarray]:
    """Returns the table rows that a worker needs for its B rows, and the rows that it sends to other workers.

    A table is mirrored on all workers, or divided: its rows are dealt to them.

    Returns:
        ``distinct``: int32 [Q], the rows that the batch needs, each once; of a divided table, the indices of those in
        this worker's part. May be padded with rows that the batch does not need. ``single``, ``values`` and
        ``segments`` as in ``TablePlan``, for this worker's B rows: positions in ``distinct``, or for a divided table in
        the W * P rows that it gets from all workers. For a divided table also ``asked``: int32 [W, P], for each worker,
        positions in ``distinct`` of the rows that it needs, with padding to which no position refers.
    """
    part = pad_references(layout, _part_of_plan(layout, plan, division), division.capacity)
    if not is_divided:
        return {name: getattr(part, name) for name in PLAN}
    needed = _needed(layout, plan, division)
    distinct, asked, positions = _requests(
        plan.distinct[: plan.distinct_count], needed, division.placement.deal
    )
    single, values = positions[part.single], positions[part.values]
    return dict(distinct=distinct, single=single, values=values, segments=part.segments, asked=asked)


def _part_of_plan(layout: TableLayout, plan: TablePlan, division: Division) -> TablePlan:
    """Restricts a plan of the whole batch to this worker's rows."""
    workers, rank, count = division.workers, division.placement.deal.rank, max(len(layout.multivalent), 1)
    used = value_count(layout, plan, len(workers))
    values, segments = plan.values[:used], plan.segments[:used]
    local = np.flatnonzero(workers[segments // count] == rank)
    rows = division.order[segments[local] // count] - rank * division.capacity
    return replace(
        plan,
        single=plan.single[: len(workers)][division.rows_of(rank)],
        values=values[local],
        segments=rows * count + segments[local] % count,
    )


def _needed(layout: TableLayout, plan: TablePlan, division: Division) -> tuple[np.ndarray, ...]:
    """Returns, for each worker, the ascending positions in the whole batch's ``distinct`` that it needs."""
    workers, used = division.workers, value_count(layout, plan, len(division.workers))
    needed = np.zeros((division.placement.deal.size, plan.distinct_count), np.bool_)
    needed[workers[:, np.newaxis], plan.single[: len(workers)]] = True
    row_of_value = plan.segments[:used] // max(len(layout.multivalent), 1)
    needed[workers[row_of_value], plan.values[:used]] = True
    return tuple(map(np.flatnonzero, needed))


def _requests(
    distinct: np.ndarray, needed: Sequence[np.ndarray], deal: Deal
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the rows that workers request; ``needed``: for each of the W workers, its positions in ``distinct`` [U].

    Returns ``distinct`` and ``asked`` of ``share_of_table``, and int32 [U], the position of each row among the W * P
    rows that this worker receives; 0 for rows that it does not need.
    """
    size, owners, width, of_own = deal.size, distinct % deal.size, 1, []
    for theirs in needed:
        whose = owners[theirs]
        width = max(width, int(np.bincount(whose, minlength=size).max()))
        of_own.append(theirs[whose == deal.rank])
    local, held = deal.here(distinct)
    index = np.cumsum(owners == deal.rank) - 1
    asked = np.zeros((size, width), np.int32)
    for worker, theirs in enumerate(of_own):
        asked[worker, : len(theirs)] = index[theirs]
    mine = needed[deal.rank]
    positions = np.zeros(max(1, len(distinct)), np.int32)
    positions[mine] = positions_by_worker(owners[mine], size, width)
    # Operations on no row at all would need a special case.
    held = held if len(local) else np.zeros(1, np.int32)
    return held.astype(np.int32), asked, positions
