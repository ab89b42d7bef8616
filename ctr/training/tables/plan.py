"""Plan of a batch: the distinct table rows that it needs; computed with NumPy, in the thread that reads ahead.

A batch lists each row that it needs once (``distinct``) and refers to it by position. So a row is gathered once,
however often it occurs, and its gradient is already summed over the batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from ctr.data.value_arrays import first_positions, offsets_of
from ctr.models.rows import FeatureRows, TableLayout
from ctr.training.sizes import fit, fit_ids


@dataclass(frozen=True)
class TablePlan:
    """Lookups of a batch of B rows (padded) in one table with S single-valued and M multivalent features."""

    distinct: np.ndarray  # int32 [U], rows, each once; padded with unneeded rows, whose gradient is 0
    single: np.ndarray  # int32 [B, S], positions in ``distinct``
    values: np.ndarray  # int32 [V], positions of the multivalent ids, row by row, feature by feature
    segments: np.ndarray  # int32 [V], non-decreasing, ``row * M + feature``; B * M for padding
    distinct_count: int  # entries of ``distinct`` before the padding
    pending: "PendingIds | None" = None  # until ``assign_rows``
    capacity: int | None = None  # U, the size that ``distinct`` is padded to; None: as ``fit_ids`` says


@dataclass(frozen=True)
class PendingIds:
    """The G distinct growing ids of a batch."""

    at: np.ndarray  # int64 [G], their positions in ``TablePlan.distinct``
    features: np.ndarray  # int16 [G], indices in ``TableLayout.growing``
    fingerprints: np.ndarray  # int64 [G], none of them 0
    counts: np.ndarray  # int64 [G], how often each occurs
    admitted: np.ndarray | None  # bool [G], whether an occurrence was drawn, so that the id gets a slot


def plan_table(
    layout: TableLayout,
    ids: np.ndarray,
    multivalent: Mapping[str, tuple[np.ndarray, np.ndarray]],
    drawn: np.ndarray | None = None,
) -> TablePlan:
    """Plans the look-ups of a batch of N rows in one table, by distinct rows, without padding (``pad_plan``).

    Args:
        ids: [N, F], the ids of all single-valued features.
        multivalent: for each multivalent feature, its ids [v], row after row, and their number per row, int32 [N].
        drawn: bool [N], rows whose growing ids get a slot at once.
    """
    single, values, segments = distinct_keys(layout, ids, multivalent)
    everything = np.concatenate([single.ravel(), values]) if len(values) else single.ravel()
    if layout.growing:
        # Loaded here: commands that need no tables start sooner.
        import pandas as pd

        positions, distinct = pd.factorize(everything)
    else:
        distinct, positions = _find_distinct(everything)
    of_single, of_values = np.split(positions, [single.size])
    pending = pending_ids(layout, distinct, positions, segments, single.shape[1], drawn)
    return TablePlan(distinct, of_single.reshape(single.shape), of_values, segments, len(distinct), pending)


def distinct_keys(
    layout: TableLayout, ids: np.ndarray, multivalent: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the keys of all ids of N rows in a table: of single-valued features [N, S], and of multivalent ones [V].

    The third result is the segment, ``row * M + feature``, of each multivalent id, int32 [V], non-decreasing.
    """
    keys = _keys(layout)
    single_columns = [f.single for f in layout.single if f.single is not None]
    single = keys.of_matrix(_columns(ids, single_columns))
    return single, *_merge_multivalent(layout, keys, multivalent, len(ids))


def pending_ids(
    layout: TableLayout,
    distinct: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray,
    singles: int,
    drawn: np.ndarray | None,
) -> PendingIds | None:
    """Selects the growing ids among distinct keys; None if no ids grow. ``positions``: index of each occurrence's key.

    ``drawn``: bool [N], rows whose ids get a slot at once.
    """
    if not layout.growing:
        return None
    keys = _keys(layout)
    features = keys.features(positions, segments, singles, len(distinct))
    counts = np.bincount(positions, minlength=len(distinct))
    # As an unsigned number a negative key exceeds any number of rows.
    at = np.flatnonzero(distinct.view(np.uint64) >= layout.rows)
    fingerprints = distinct[at] ^ keys.salts[features[at]]
    admitted = None
    if drawn is not None:
        admitted = np.zeros(len(distinct), np.bool_)
        of_values = drawn[segments // max(len(layout.multivalent), 1)]
        admitted[positions[np.concatenate([np.repeat(drawn, singles), of_values])]] = True
        admitted = admitted[at]
    return PendingIds(at, features[at], fingerprints, counts[at], admitted)


def value_count(layout: TableLayout, plan: TablePlan, rows: int) -> int:
    """Counts the multivalent ids of a plan's first ``rows`` rows, which excludes padding."""
    return int(np.searchsorted(plan.segments, rows * len(layout.multivalent)))


def pad_plan(
    layout: TableLayout, plan: TablePlan, rows: int, values: int | None = None, ids: int | None = None
) -> TablePlan:
    """Pads a plan to B ``rows`` (of weight 0), V ``values`` and U ``ids``; None: to a rounded size."""
    # Ids without rows are padded once they have rows.
    distinct = _pad_rows(plan.distinct, layout.rows, ids) if plan.pending is None else plan.distinct
    return pad_references(layout, replace(plan, distinct=distinct, capacity=ids), rows, values)


def pad_references(layout: TableLayout, plan: TablePlan, rows: int, values: int | None = None) -> TablePlan:
    """Pads the positions in ``distinct`` to B ``rows`` and V ``values``; None: to a rounded size."""
    count, used = len(layout.multivalent), len(plan.values)
    if values is None:
        values = fit(used) if count else 0
    single = np.zeros((rows, plan.single.shape[1]), np.int32)
    single[: len(plan.single)] = plan.single
    padded_values = np.zeros(values, np.int32)
    padded_values[:used] = plan.values
    segments = np.full(values, rows * count, np.int32)
    segments[:used] = plan.segments
    return replace(plan, single=single, values=padded_values, segments=segments)


def assign_rows(plan: TablePlan, rows: np.ndarray, table_rows: int) -> TablePlan:
    """Assigns ``rows``, int32 [G], of a table with ``table_rows`` rows to a plan's growing ids; ids may share a row."""
    # Loaded here: commands that need no tables start sooner.
    import pandas as pd

    assert plan.pending is not None
    distinct = plan.distinct.astype(np.int32)
    distinct[plan.pending.at] = rows
    # In the order of the batch, so that nothing depends on which slot an id has.
    positions, unique = pd.factorize(distinct)
    if len(unique) < len(distinct):
        positions = positions.astype(np.int32)
        plan = replace(plan, single=positions[plan.single], values=positions[plan.values])
    distinct = _pad_rows(unique, table_rows, plan.capacity)
    return replace(plan, distinct=distinct, distinct_count=len(unique), pending=None)


def _pad_rows(distinct: np.ndarray, table_rows: int, capacity: int | None = None) -> np.ndarray:
    """Pads ``distinct`` with the lowest row numbers that it does not contain."""
    capacity = min(fit_ids(len(distinct)) if capacity is None else capacity, table_rows)
    numbers = np.arange(capacity - len(distinct))
    missing_before = np.sort(distinct) - np.arange(len(distinct))
    unused = numbers + np.searchsorted(missing_before, numbers, side="right")
    return np.concatenate([distinct, unused.astype(np.int32)])


class _Keys:
    """Computes the keys of ids in a table: the row if it is fixed, otherwise the fingerprint XORed with the salt."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._offsets = layout.offsets()
        numbers = {feature.name: number for number, feature in enumerate(layout.growing)}
        self._numbers = np.array([numbers.get(feature.name, -1) for feature in layout.features], np.int16)
        self.salts = np.array([feature.salt for feature in layout.growing], np.int64)
        single = layout.single
        self._single_offsets = np.array([self._offsets[feature.name] for feature in single], np.int64)
        self._grows = np.array([feature.growing for feature in single], np.bool_)
        self._single_salts = np.array(
            [feature.salt if feature.growing else 0 for feature in single], np.int64
        )

    def of_matrix(self, ids: np.ndarray) -> np.ndarray:
        offsets, grows = self._single_offsets, self._grows
        if not self._layout.growing:
            # Ids are int64 if any feature of the log grows.
            return (ids + offsets.astype(np.int32)).astype(np.int32, copy=False)
        keys = ids ^ self._single_salts
        if not grows.all():
            keys[:, ~grows] += offsets[~grows]
        missing = ids == 0
        if missing.any():
            rows, columns = np.nonzero(missing & grows)
            keys[rows, columns] = offsets[columns]
        return keys

    def of_feature(self, feature: FeatureRows, ids: np.ndarray) -> np.ndarray:
        offset = self._offsets[feature.name]
        if not feature.growing:
            return ids + ids.dtype.type(offset)
        return np.where(ids == 0, np.int64(offset), ids ^ feature.salt)

    def features(
        self, positions: np.ndarray, segments: np.ndarray, singles: int, distinct: int
    ) -> np.ndarray:
        """Returns the index in ``TableLayout.growing`` of each distinct key's feature, or -1: int16 [distinct]."""
        numbers = np.full(distinct, -1, np.int16)
        count = len(positions) - len(segments)
        if singles:
            numbers[positions[:count].reshape(-1, singles)] = self._numbers[:singles]
        if len(segments):
            of_values = self._numbers[singles:]
            numbers[positions[count:]] = of_values[segments % len(of_values)]
        return numbers


@cache
def _keys(layout: TableLayout) -> _Keys:
    return _Keys(layout)


def _columns(ids: np.ndarray, columns: Sequence[int]) -> np.ndarray:
    """Selects columns, without a copy if they are adjacent, as for a log with one table."""
    first = columns[0] if columns else 0
    if list(columns) == list(range(first, first + len(columns))):
        return ids[:, first : first + len(columns)]
    return ids.take(columns, axis=1)


def _find_distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sorted distinct values of ``rows``, int32 [N], not negative, and each row's index in them."""
    # Row and position in one number: NumPy sorts numbers several times as fast as it finds their order.
    keys = (rows.astype(np.int64) << 32) | np.arange(len(rows))
    keys.sort()
    ordered = (keys >> 32).astype(np.int32)
    is_new = np.ones(len(rows), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    positions = np.empty(len(rows), np.int32)
    positions[keys & 0xFFFFFFFF] = np.cumsum(is_new, dtype=np.int32) - 1
    return ordered[is_new], positions


def _merge_multivalent(
    layout: TableLayout, keys: _Keys, multivalent: Mapping[str, tuple[np.ndarray, np.ndarray]], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    count = len(layout.multivalent)
    if not count:
        return np.zeros(0, np.int64 if layout.growing else np.int32), np.zeros(0, np.int32)
    values = []
    segments = []
    for index, feature in enumerate(layout.multivalent):
        ids, lengths = multivalent[feature.source]
        values.append(keys.of_feature(feature, ids))
        segments.append(np.repeat(np.arange(rows, dtype=np.int32) * count + index, lengths))
    if count == 1:
        return values[0], segments[0]
    all_segments = np.concatenate(segments)
    order = np.argsort(all_segments, kind="stable")
    return np.concatenate(values)[order], all_segments[order]


# Plans of many small batches in one pass.


class BatchRows(NamedTuple):
    """Positions of the rows of K consecutive batches."""

    counts: np.ndarray  # int64 [K], rows of each batch
    batch: np.ndarray  # int64 [N], the batch of each row
    within: np.ndarray  # int64 [N], the index of each row in its batch

    @classmethod
    def of(cls, counts: Sequence[int]) -> "BatchRows":
        sizes = np.array(counts, np.int64)
        batch = np.repeat(np.arange(len(sizes)), sizes)
        return cls(sizes, batch, np.arange(len(batch)) - offsets_of(sizes)[batch])


@dataclass(frozen=True)
class BatchPlans:
    """Lookups of K batches of B rows (padded) in one table with S single-valued and M multivalent features."""

    distinct: np.ndarray  # [D], the distinct rows of each batch in turn, or keys of ids without rows yet
    counts: np.ndarray  # int64 [K], number of distinct rows of each batch
    single: np.ndarray  # int32 [K, B, S], positions among the batch's entries of ``distinct``
    values: np.ndarray  # int32 [K, V], the same for the multivalent ids
    segments: np.ndarray  # int32 [K, V], see ``TablePlan``
    codes: np.ndarray  # int64 [D], from 0, equal if and only if entries of ``distinct`` are equal
    pending: PendingIds | None = None  # growing ids of all batches, until ``with_rows``

    def part(self, begin: int, end: int) -> "BatchPlans":
        """Returns the plans of the batches ``begin`` to ``end`` (exclusive)."""
        if (begin, end) == (0, len(self.counts)):
            return self
        first, last = offsets_of(self.counts)[[begin, end]]
        pending = self.pending
        if pending is not None:
            span = slice(*np.searchsorted(pending.at, [first, last]))
            admitted = None if pending.admitted is None else pending.admitted[span]
            of_ids = pending.features[span], pending.fingerprints[span], pending.counts[span]
            pending = PendingIds(pending.at[span] - first, *of_ids, admitted)
        batches = slice(begin, end)
        arrays = self.single[batches], self.values[batches], self.segments[batches]
        codes = self.codes[first:last]
        return BatchPlans(self.distinct[first:last], self.counts[batches], *arrays, codes, pending)

    @cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sorted distinct rows of all batches, int32 [N], and the indices of ``distinct`` in them, [D]."""
        first = first_positions(self.codes)
        rows, positions = np.unique(self.distinct[first], return_inverse=True)
        by_code = np.empty(self.codes.max(initial=-1) + 1, np.int64)
        by_code[self.codes[first]] = positions
        return rows.astype(np.int32), by_code[self.codes]

    def with_rows(self, rows: np.ndarray) -> "BatchPlans":
        """Assigns rows, int32 [G], to the growing ids; several ids may share a row."""
        # Loaded here: commands that need no tables start sooner.
        import pandas as pd

        assert self.pending is not None
        distinct = self.distinct.astype(np.int32)
        distinct[self.pending.at] = rows
        plans = replace(self, distinct=distinct, pending=None)
        if len(plans.rows[0]) == np.count_nonzero(np.bincount(self.codes)):
            return plans
        batch = np.repeat(np.arange(len(self.counts)), self.counts)
        positions, first = pd.factorize((batch << 32) | distinct)
        counts = np.bincount(first >> 32, minlength=len(self.counts))
        # One more entry, in case the last batch has no distinct rows.
        within = np.append(positions - offsets_of(counts)[batch], 0).astype(np.int32)
        begins = offsets_of(self.counts)[:-1]
        unique = (first & 0xFFFFFFFF).astype(np.int32)
        return BatchPlans(
            unique,
            counts,
            within[begins[:, np.newaxis, np.newaxis] + self.single],
            within[begins[:, np.newaxis] + self.values],
            self.segments,
            pd.factorize(unique)[0],
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
    """Plans the look-ups of K batches in a table; arguments as for ``plan_table``, for the N rows of all batches."""
    keys, values, segments = distinct_keys(layout, ids, multivalent)
    features = max(len(layout.multivalent), 1)
    row_of = np.concatenate([np.repeat(np.arange(len(ids)), keys.shape[1]), segments // features])
    everything = np.concatenate([keys.ravel(), values])
    positions, distinct, batch, codes = _distinct_of_batches(
        everything, rows.batch[row_of], bool(layout.growing)
    )
    counts = np.bincount(batch, minlength=len(rows.counts))
    within = (positions - offsets_of(counts)[rows.batch[row_of]]).astype(np.int32)
    single = np.zeros((len(rows.counts), padded_rows, keys.shape[1]), np.int32)
    single[rows.batch, rows.within] = within[: keys.size].reshape(keys.shape)
    of_values = np.zeros((len(rows.counts), padded_values), np.int32)
    own_segments = np.full(of_values.shape, padded_rows * len(layout.multivalent), np.int32)
    if len(values):
        value_batch = rows.batch[segments // features]
        at = np.arange(len(values)) - offsets_of(np.bincount(value_batch, minlength=len(counts)))[value_batch]
        of_values[value_batch, at] = within[keys.size :]
        own_segments[value_batch, at] = rows.within[segments // features] * features + segments % features
    pending = pending_ids(layout, distinct, positions, segments, keys.shape[1], drawn)
    return BatchPlans(distinct, counts, single, of_values, own_segments, codes, pending)


def _distinct_of_batches(
    keys: np.ndarray, batch: np.ndarray, in_order: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns each key's position [N] among the distinct keys of all batches; and their values, batches, codes [D].

    Distinct keys are listed batch after batch, in order of occurrence (``in_order``) or sorted; codes are from 0, equal
    for equal keys.
    """
    import pandas as pd

    codes, uniques = pd.factorize(keys, sort=not in_order)
    pairs, first = pd.factorize(batch * len(uniques) + codes)
    batches, chosen = np.divmod(first, max(len(uniques), 1))
    order = np.argsort(batches if in_order else first, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    chosen = chosen[order]
    return ranks[pairs], uniques[chosen], batches[order], chosen
