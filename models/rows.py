"""The layout of embedding rows in tables, and the distinct rows that a batch needs.

The rows of all features that share a tower and an embedding width lie in one table. A row holds the
embedding and, as its last column, the feature's linear weight::

    table (quality, 16):  [ embedding 0..15 | linear ]   row = offset of the feature + id

Where the components of an ensemble have embeddings of their own, a row holds those of all components.

A batch lists each row that it needs once (``distinct``) and refers to it by position. So a row is gathered once,
however often it occurs, and its gradient is already summed over the batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FeatureRows:
    """A feature as the tables see it. ``single`` is its column in the id matrix, None if multivalent."""

    name: str
    buckets: int
    width: int
    tower: str
    single: int | None


@dataclass(frozen=True)
class TableLayout:
    """One table: its features in order, single-valued before multivalent, and each one's first row.

    ``copies`` is the number of components with embeddings of their own, 1 if they share them.
    """

    tower: str
    width: int
    features: tuple[FeatureRows, ...]
    copies: int = 1

    @property
    def name(self) -> str:
        """Tower and width, for instance ``quality-16``."""
        return f"{self.tower}-{self.width}"

    @property
    def single(self) -> tuple[FeatureRows, ...]:
        """The features with exactly one id a row."""
        return tuple(f for f in self.features if f.single is not None)

    @property
    def multivalent(self) -> tuple[FeatureRows, ...]:
        """The features with any number of ids a row."""
        return tuple(f for f in self.features if f.single is None)

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return sum(f.buckets for f in self.features)

    @property
    def columns(self) -> int:
        """Number of columns of the table."""
        return self.copies * (self.width + 1)

    def by_column(self, embedding: float, linear: float) -> np.ndarray:
        """Returns float32 [columns]: one number for the columns of embeddings, another for those of linear weights."""
        values = np.full((self.copies, self.width + 1), embedding, np.float32)
        values[:, self.width] = linear
        return values.ravel()

    def offsets(self) -> dict[str, int]:
        """First row of each feature."""
        starts = np.cumsum([0, *(f.buckets for f in self.features)])
        return {feature.name: int(start) for feature, start in zip(self.features, starts, strict=False)}


def lay_out_tables(features: Sequence[FeatureRows], copies: int = 1) -> tuple[TableLayout, ...]:
    """Groups features by tower and width, in a fixed order.

    Raises:
        ValueError: a table would have more rows than int32 can number.
    """
    groups: dict[tuple[str, int], list[FeatureRows]] = {}
    for feature in features:
        groups.setdefault((feature.tower, feature.width), []).append(feature)
    layouts = []
    for (tower, width), members in sorted(groups.items()):
        layout = TableLayout(tower, width, tuple(sorted(members, key=lambda f: f.single is None)), copies)
        if layout.rows > np.iinfo(np.int32).max:
            raise ValueError(f"table {layout.name}: {layout.rows} rows are too many (at most 2^31 - 1)")
        layouts.append(layout)
    return tuple(layouts)


def padded_size(size: int, smallest: int = 64) -> int:
    """Returns a capacity for ``size`` entries: one of few, at most a quarter of it empty beyond ``smallest``."""
    if size <= smallest:
        return smallest
    step = 1 << max(0, int(size - 1).bit_length() - 3)
    return -(-size // step) * step


@dataclass(frozen=True)
class TablePlan:
    """What a batch of B rows (padded) needs of one table with S single- and M multivalent features.

    Attributes:
        distinct: int32 [U], rows of the table, each once; padded with rows that the batch does not need, whose gradient
            is zero.
        single: int32 [B, S], positions in ``distinct``.
        values: int32 [V], positions in ``distinct`` of the multivalent ids, row by row and in a row
            feature by feature.
        segments: int32 [V], non-decreasing, ``row * M + feature``; B * M for padding.
        distinct_count: number of entries of ``distinct`` before the padding.
        counts: int64 [distinct_count], how often the batch refers to each of these.
    """

    distinct: np.ndarray
    single: np.ndarray
    values: np.ndarray
    segments: np.ndarray
    distinct_count: int
    counts: np.ndarray


def plan_table(
    layout: TableLayout,
    ids: np.ndarray,
    multivalent: Mapping[str, tuple[np.ndarray, np.ndarray]],
    padded_rows: int,
) -> TablePlan:
    """Finds the distinct rows of a batch in one table.

    Args:
        ids: int32 [N, F], the ids of all single-valued features.
        multivalent: for each multivalent feature its ids int32 [v] row after row and lengths int32 [N].
        padded_rows: B >= N; rows from N on refer to some row, and the model gives them weight 0.
    """
    offsets = layout.offsets()
    rows = len(ids)
    single_columns = [f.single for f in layout.single if f.single is not None]
    single = ids[:, single_columns] + np.array([offsets[f.name] for f in layout.single], np.int32)
    values, segments = _merge_multivalent(layout, offsets, multivalent, rows)
    everything = np.concatenate([single.ravel(), values])
    distinct, positions, counts = _find_distinct(everything)
    padded_single = np.zeros((padded_rows, len(single_columns)), np.int32)
    padded_single[:rows] = positions[: single.size].reshape(single.shape)
    value_capacity = padded_size(len(values)) if layout.multivalent else 0
    padded_values = np.zeros(value_capacity, np.int32)
    padded_values[: len(values)] = positions[single.size :]
    padded_segments = np.full(value_capacity, padded_rows * len(layout.multivalent), np.int32)
    padded_segments[: len(values)] = segments
    capacity = min(_row_capacity(len(distinct)), layout.rows)
    padded_distinct = np.concatenate([distinct, _unused_rows(distinct, capacity - len(distinct))])
    return TablePlan(padded_distinct, padded_single, padded_values, padded_segments, len(distinct), counts)


def _row_capacity(count: int) -> int:
    """Returns a capacity for ``count`` distinct rows: at most 255 or 1/32 of them too many.

    These capacities are closer together than those of batches, since every row costs time, padding too; and further
    apart than the numbers of rows in batches of one size, since XLA compiles for each capacity.
    """
    step = max(256, 1 << (count.bit_length() - 6) if count >= 64 else 0)
    return max(step, -(-count // step) * step)


def _find_distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the distinct values of ``rows``, int32 [N], not negative.

    Returns:
        The values, sorted; the position of each row among them, int32 [N]; and how often each occurs, int64.
    """
    # Row and position in one number: NumPy sorts numbers several times as fast as it finds their order.
    keys = (rows.astype(np.int64) << 32) | np.arange(len(rows))
    keys.sort()
    ordered = (keys >> 32).astype(np.int32)
    is_new = np.ones(len(rows), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    positions = np.empty(len(rows), np.int32)
    positions[keys & 0xFFFFFFFF] = np.cumsum(is_new, dtype=np.int32) - 1
    counts = np.diff(np.flatnonzero(is_new), append=len(rows))
    return ordered[is_new], positions, counts


def _unused_rows(distinct: np.ndarray, count: int) -> np.ndarray:
    """Returns the first ``count`` row numbers, int32, that are not in ``distinct``, which is sorted."""
    numbers = np.arange(count)
    missing_before = distinct - np.arange(len(distinct))
    return (numbers + np.searchsorted(missing_before, numbers, side="right")).astype(np.int32)


def _merge_multivalent(
    layout: TableLayout,
    offsets: Mapping[str, int],
    multivalent: Mapping[str, tuple[np.ndarray, np.ndarray]],
    rows: int,
) -> tuple[np.ndarray, np.ndarray]:
    count = len(layout.multivalent)
    if not count:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    values = []
    segments = []
    for index, feature in enumerate(layout.multivalent):
        ids, lengths = multivalent[feature.name]
        values.append(ids + np.int32(offsets[feature.name]))
        segments.append(np.repeat(np.arange(rows, dtype=np.int32) * count + index, lengths))
    if count == 1:
        return values[0], segments[0]
    all_segments = np.concatenate(segments)
    order = np.argsort(all_segments, kind="stable")
    return np.concatenate(values)[order], all_segments[order]
