"""Plan of a batch that workers make together: each finds the distinct ids of its own rows, and all hear of these.

Distinct ids are far fewer than ids. The plan that comes of them is the one that a process makes of the whole batch,
with the same distinct ids in the same order: the rows that they get do not depend on who has found them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ctr.models.rows import TableLayout
from ctr.training.tables.plan import TablePlan, find_distinct, pending_ids

# Of an id that grows: its count, its feature, higher by one, and whether an occurrence was drawn.
_FEATURE, _DRAWN = 32, 62
_COUNT_MASK, _FEATURE_MASK = 2**32 - 1, 2**16 - 1
# Of where it comes first: whether that is a multivalent feature, the row in the batch, and the place in the part.
_VALUE, _ROW = 62, 31
# Of a table with fewer rows for each id a note of each row is made, which takes a fifth of the time of sorting.
_ROWS_PER_ID = 16


def own_ids(layout: TableLayout, plan: TablePlan, rows: np.ndarray) -> np.ndarray:
    """Packs what the others have to know of the plan of a worker's rows; these are ``rows``, int64, of the batch.

    Returns int64 [U], for each distinct id the row and its count; of a table in which ids grow [3 U]: keys, where they
    come first in the batch, and counts with features.
    """
    if not layout.growing:
        return (plan.distinct.astype(np.int64) << 32) | plan.counts
    assert plan.pending is not None
    about = plan.counts.astype(np.int64)
    about[plan.pending.at] |= (plan.pending.features.astype(np.int64) + 1) << _FEATURE
    if plan.pending.admitted is not None:
        about[plan.pending.at] |= plan.pending.admitted.astype(np.int64) << _DRAWN
    return np.concatenate([plan.distinct, _first_places(layout, plan, rows), about])


def _first_places(layout: TableLayout, plan: TablePlan, rows: np.ndarray) -> np.ndarray:
    """Numbers the distinct ids, int64 [U], as they first come in the batch: row by row, multivalent ones at the end."""
    singles, count = plan.single.shape[1], plan.single.size
    positions = np.concatenate([plan.single.ravel(), plan.values])
    # Distinct ids are numbered as they come.
    first = np.flatnonzero(np.diff(np.maximum.accumulate(positions), prepend=-1))
    places = first.copy()
    at_single, at_value = first[first < count], first[first >= count]
    places[: len(at_single)] |= rows[at_single // max(singles, 1)] << _ROW
    row_of_value = plan.segments[at_value - count] // max(len(layout.multivalent), 1)
    places[len(at_single) :] |= (rows[row_of_value] << _ROW) | (1 << _VALUE)
    return places


def join_plan(layout: TableLayout, plan: TablePlan, found: Sequence[np.ndarray], rank: int) -> TablePlan:
    """Joins the plan of a worker's rows with the ``own_ids`` of all workers: the plan of the batch, not padded yet."""
    if layout.growing:
        return _join_growing(layout, plan, found, rank)
    together = np.concatenate(found)
    rows, uses = together >> 32, together & _COUNT_MASK
    if layout.rows < _ROWS_PER_ID * len(rows):
        is_there, place = np.zeros(layout.rows, np.bool_), np.empty(layout.rows, np.int32)
        is_there[rows] = True
        found_rows = np.flatnonzero(is_there)
        place[found_rows] = np.arange(len(found_rows), dtype=np.int32)
        distinct, positions = found_rows.astype(np.int32), place[rows]
    else:
        distinct, positions, _ = find_distinct(rows.astype(np.int32))
    # Sums of float64 are exact up to 2^53.
    counts = np.bincount(positions, uses, len(distinct)).astype(np.int64)
    return _joined(plan, distinct, counts, _split(positions, list(map(len, found))), rank)


def _join_growing(layout: TableLayout, plan: TablePlan, found: Sequence[np.ndarray], rank: int) -> TablePlan:
    # Loaded here: commands that need no tables start sooner.
    import pandas as pd

    keys, places, about = (
        np.concatenate(part) for part in zip(*(np.split(own, 3) for own in found), strict=True)
    )
    if (places[1:] >= places[:-1]).all():
        positions, distinct = pd.factorize(keys)
    else:
        order, positions = np.argsort(places, kind="stable"), np.empty(len(keys), np.int64)
        positions[order], distinct = pd.factorize(keys[order])
    counts = np.bincount(positions, about & _COUNT_MASK, len(distinct)).astype(np.int64)
    features = np.empty(len(distinct), np.int16)
    features[positions] = (about >> _FEATURE & _FEATURE_MASK) - 1
    assert plan.pending is not None
    admitted = None
    if plan.pending.admitted is not None:
        admitted = np.zeros(len(distinct), np.bool_)
        admitted[positions[about >> _DRAWN > 0]] = True
    joined = _joined(plan, distinct, counts, _split(positions, [len(own) // 3 for own in found]), rank)
    return replace(joined, pending=pending_ids(layout, distinct, counts, features, admitted))


def _split(positions: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    return np.split(positions, np.cumsum(lengths)[:-1])


def _joined(
    plan: TablePlan, distinct: np.ndarray, counts: np.ndarray, of_workers: Sequence[np.ndarray], rank: int
) -> TablePlan:
    own = of_workers[rank]
    return TablePlan(
        distinct,
        own[plan.single],
        own[plan.values],
        plan.segments,
        len(distinct),
        counts,
        needed=tuple(of_workers),
    )
