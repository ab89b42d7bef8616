"""Plans of many small batches in one pass of NumPy; of each batch they say what ``TablePlan`` says of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ctr.models.rows import TableLayout
from ctr.training.tables.plan import PendingIds, distinct_keys, pending_ids


class BatchRows(NamedTuple):
    """Where the rows of K batches, which follow each other, are."""

    counts: np.ndarray  # int64 [K], rows of each batch
    batch: np.ndarray  # int64 [N], the batch of each row
    within: np.ndarray  # int64 [N], and its place in that batch

    @classmethod
    def of(cls, counts: Sequence[int]) -> "BatchRows":
        sizes = np.array(counts, np.int64)
        batch = np.repeat(np.arange(len(sizes)), sizes)
        return cls(sizes, batch, np.arange(len(batch)) - begins_of(sizes)[batch])


@dataclass(frozen=True)
class BatchPlans:
    """What each of K batches of B rows (padded) needs of one table with S single- and M multivalent features."""

    distinct: (
        np.ndarray
    )  # [D], rows, each once for a batch, batch after batch; keys of ids that have no rows yet
    counts: np.ndarray  # int64 [K], how many of them each batch has
    single: np.ndarray  # int32 [K, B, S], positions in ``distinct``, from the batch's first one on
    values: np.ndarray  # int32 [K, V], such positions of the multivalent ids
    segments: np.ndarray  # int32 [K, V], see ``TablePlan``
    pending: PendingIds | None = None  # of all batches, until ``with_rows``

    def part(self, begin: int, end: int) -> "BatchPlans":
        """Returns the plans of the batches ``begin`` to ``end`` (exclusive)."""
        first, last = begins_of(self.counts)[[begin, end]]
        pending = self.pending
        if pending is not None:
            own = slice(*np.searchsorted(pending.at, [first, last]))
            admitted = None if pending.admitted is None else pending.admitted[own]
            of_ids = pending.features[own], pending.fingerprints[own], pending.counts[own]
            pending = PendingIds(pending.at[own] - first, *of_ids, admitted)
        batches = slice(begin, end)
        arrays = self.single[batches], self.values[batches], self.segments[batches]
        return BatchPlans(self.distinct[first:last], self.counts[batches], *arrays, pending)

    @property
    def pending_counts(self) -> np.ndarray:
        """Ids that grow and have no rows yet, of each batch: int64 [K]."""
        assert self.pending is not None
        return np.diff(np.searchsorted(self.pending.at, begins_of(self.counts)))

    def with_rows(self, rows: np.ndarray) -> "BatchPlans":
        """Gives the ids that grow their rows, int32 [G], which some of them may share."""
        # Loaded here: commands that need no tables start sooner.
        import pandas as pd

        assert self.pending is not None
        distinct = self.distinct.astype(np.int32)
        distinct[self.pending.at] = rows
        batch = np.repeat(np.arange(len(self.counts)), self.counts)
        positions, first = pd.factorize((batch << 32) | distinct)
        if len(first) == len(distinct):
            return replace(self, distinct=distinct, pending=None)
        counts = np.bincount(first >> 32, minlength=len(self.counts))
        # Behind the last one what pads a last batch without any.
        within = np.append(positions - begins_of(counts)[batch], 0).astype(np.int32)
        begins = begins_of(self.counts)[:-1]
        return BatchPlans(
            (first & 0xFFFFFFFF).astype(np.int32),
            counts,
            within[begins[:, np.newaxis, np.newaxis] + self.single],
            within[begins[:, np.newaxis] + self.values],
            self.segments,
        )


def plan_batches(
    layout: TableLayout,
    rows: BatchRows,
    ids: np.ndarray,
    multivalent: Mapping[str, tuple[np.ndarray, np.ndarray]],
    padded_rows: int,
    padded_values: int,
    drawn: np.ndarray | None = None,
) -> BatchPlans:
    """Finds the distinct rows that each of K batches needs of a table; see ``plan_table`` for N rows of all of them."""
    keys, values, segments = distinct_keys(layout, ids, multivalent)
    features = max(len(layout.multivalent), 1)
    row_of = np.concatenate([np.repeat(np.arange(len(ids)), keys.shape[1]), segments // features])
    everything = np.concatenate([keys.ravel(), values])
    positions, distinct, batch = _distinct_of_batches(everything, rows.batch[row_of], bool(layout.growing))
    counts = np.bincount(batch, minlength=len(rows.counts))
    within = (positions - begins_of(counts)[rows.batch[row_of]]).astype(np.int32)
    single = np.zeros((len(rows.counts), padded_rows, keys.shape[1]), np.int32)
    single[rows.batch, rows.within] = within[: keys.size].reshape(keys.shape)
    of_values = np.zeros((len(rows.counts), padded_values), np.int32)
    own_segments = np.full(of_values.shape, padded_rows * len(layout.multivalent), np.int32)
    if len(values):
        value_batch = rows.batch[segments // features]
        at = np.arange(len(values)) - begins_of(np.bincount(value_batch, minlength=len(counts)))[value_batch]
        of_values[value_batch, at] = within[keys.size :]
        own_segments[value_batch, at] = rows.within[segments // features] * features + segments % features
    pending = None
    if layout.growing:
        drawn_keys = None if drawn is None else drawn[row_of]
        pending = pending_ids(layout, distinct, positions, segments, keys.shape[1], drawn_keys)
    return BatchPlans(distinct, counts, single, of_values, own_segments, pending)


def begins_of(counts: np.ndarray) -> np.ndarray:
    """Returns where each of several parts begins, and behind them where the last one ends: int64 [K + 1]."""
    return np.concatenate([[0], np.cumsum(counts)])


def _distinct_of_batches(
    keys: np.ndarray, batch: np.ndarray, in_order: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the distinct ones of N keys of each batch: positions of all [N], and of those found [D] keys and batch.

    Batch after batch, each ``in_order`` of occurrence, or sorted.
    """
    import pandas as pd

    codes, uniques = pd.factorize(keys, sort=not in_order)
    pairs, first = pd.factorize(batch * len(uniques) + codes)
    batches, chosen = np.divmod(first, max(len(uniques), 1))
    order = np.argsort(batches if in_order else first, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[pairs], uniques[chosen[order]], batches[order]
