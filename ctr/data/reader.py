"""Reads an example log in order, as blocks of columns, each verified before use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.log import MAX_TIME_US, Manifest
from ctr.data.query_size import query_size_ids
from ctr.data.schema import LABEL_PREFIX, Schema, id_bounds
from ctr.data.shards import Key, check_goes_on, id_matrix, key_at, read_shard, single_array
from ctr.data.value_arrays import offsets_of, places_of

# Gradients grow with the weights, and their squares, summed over a pass, must stay within float32.
LARGEST_WEIGHT = 1e9

KEYS = ("query_time", "timestamp", "query_id", "example_id")

# Reasons why a row cannot be trained on or scored, by their codes in Rows.fault. If several apply, the first counts.
FAULTS = (
    "",
    "label is neither 0 nor 1",
    "train_weight is negative, not finite or above 1e9",
    "metric_weight is negative, not finite or above 1e9",
    "an id lies outside its feature's buckets",
    "its query has more rows than batch.max_query_rows",
)
_LABEL, _TRAIN_WEIGHT, _METRIC_WEIGHT, _ID, QUERY_TOO_LARGE = range(1, len(FAULTS))

# Few enough that their checks stay in the processor's cache.
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Rows:
    """N rows of a log; times in microseconds, UTC."""

    query_time: np.ndarray  # int64 [N], as are the next three
    timestamp: np.ndarray
    query_id: np.ndarray
    example_id: np.ndarray
    label: np.ndarray  # float32 [N], as are the next two
    train_weight: np.ndarray
    metric_weight: np.ndarray
    ids: np.ndarray  # [N, F], the single-valued features, of the schema's ``id_type``: int32, or int64
    fault: np.ndarray  # int8 [N], index into ``FAULTS``; 0 for a good row
    position: np.ndarray  # int64 [N], ascending: the number of rows of the log before each of these
    multivalent: Mapping[str, tuple[np.ndarray, np.ndarray]]  # ids, and offsets (int64 [N + 1]) into them
    # Columns [N] of sidecars, and of further labels (``label_column``): float32, NaN where a label is unknown.
    joined: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.label)

    _COLUMNS = (*KEYS, "label", "train_weight", "metric_weight", "ids", "fault", "position")

    def slice(self, begin: int, end: int) -> "Rows":
        """Returns rows ``begin`` to ``end`` (exclusive), without a copy of the columns."""
        columns = {name: getattr(self, name)[begin:end] for name in self._COLUMNS}
        joined = {name: column[begin:end] for name, column in self.joined.items()}
        multivalent = {}
        for name, (values, offsets) in self.multivalent.items():
            low, high = int(offsets[begin]), int(offsets[end])
            multivalent[name] = (values[low:high], offsets[begin : end + 1] - low)
        return Rows(**columns, multivalent=multivalent, joined=joined)

    def keep(self, mask: np.ndarray) -> "Rows":
        return self.take(np.flatnonzero(mask))

    def take(self, order: np.ndarray) -> "Rows":
        """Returns rows by their numbers, int64 [M], in that order."""
        columns = {name: getattr(self, name)[order] for name in self._COLUMNS}
        joined = {name: column[order] for name, column in self.joined.items()}
        multivalent = {}
        for name, (values, offsets) in self.multivalent.items():
            lengths = np.diff(offsets)[order]
            multivalent[name] = (values[places_of(offsets[:-1][order], lengths)], offsets_of(lengths))
        return Rows(**columns, multivalent=multivalent, joined=joined)

    def query_begins(self) -> np.ndarray:
        """Returns the row numbers at which a query begins, int64."""
        if not len(self):
            return np.zeros(0, np.int64)
        new = (self.query_time[1:] != self.query_time[:-1]) | (self.query_id[1:] != self.query_id[:-1])
        return np.concatenate([[0], np.flatnonzero(new) + 1])


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenates blocks in their order."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in Rows._COLUMNS}
    multivalent = {}
    for name in parts[0].multivalent:
        values = np.concatenate([part.multivalent[name][0] for part in parts])
        lengths = np.concatenate([np.diff(part.multivalent[name][1]) for part in parts])
        multivalent[name] = (values, offsets_of(lengths))
    joined = {name: np.concatenate([part.joined[name] for part in parts]) for name in parts[0].joined}
    return Rows(**columns, multivalent=multivalent, joined=joined)


def add_query_size(rows: Rows, schema: Schema) -> Rows:
    """Adds the column of query sizes to rows of whole queries, if the schema has it and the rows do not.

    Faulty rows also count, because users saw them.
    """
    if not schema.counts_rows or rows.ids.shape[1] != len(schema.stored.single_valued):
        return rows
    ids = query_size_ids(schema, rows.query_begins(), rows.timestamp)
    return replace(rows, ids=np.column_stack([rows.ids, ids]))


def rows_beyond(ids: np.ndarray, bounds: Sequence[int | None]) -> np.ndarray:
    """Returns [N] bool: whether an id of a row ([N, F]) is negative or not below its bound; None allows any id."""
    outside = np.zeros(len(ids), bool)
    unsigned = np.dtype(f"u{ids.itemsize}")
    buckets = np.array([np.iinfo(unsigned).max if bound is None else bound for bound in bounds], unsigned)
    bounded = np.array([bound is not None for bound in bounds], bool)
    if not bounded.any():
        return outside
    for begin in range(0, len(ids), _ROWS_AT_ONCE):
        part = slice(begin, begin + _ROWS_AT_ONCE)
        # As an unsigned number a negative id exceeds any number of buckets.
        beyond = ids[part].view(unsigned) >= buckets
        # Reducing cells by rows costs five times as much as the comparison, and is seldom needed.
        if beyond.any():
            outside[part] = (beyond & bounded).any(axis=1)
    return outside


def rows_of_table(table: pa.Table, schema: Schema, first: int, labeled: bool = True) -> Rows:
    """Converts a shard's table (``ctr.data.shards.read_shard``) to arrays, and marks its faulty rows.

    Adds features that are counted (``Schema.counts_rows``). ``labeled`` is False for rows without labels.
    """
    whole, schema = schema, schema.stored
    count = table.num_rows
    columns: dict[str, np.ndarray] = {name: table.column(name).to_numpy() for name in KEYS}
    for name in ("label", "train_weight", "metric_weight"):
        columns[name] = table.column(name).to_numpy().astype(np.float32, copy=False)
    names = schema.single_valued
    ids, multivalent = id_matrix(table, schema), {}
    outside = rows_beyond(ids, id_bounds(schema, names))
    for name in schema.multivalent:
        array = single_array(table.column(name))
        offsets = array.offsets.to_numpy().astype(np.int64)
        values = array.flatten().to_numpy()
        offsets = offsets - offsets[0]
        wrong = np.flatnonzero(rows_beyond(values[:, np.newaxis], id_bounds(schema, [name])))
        outside[np.searchsorted(offsets, wrong, side="right") - 1] = True
        multivalent[name] = (values, offsets)
    fault = np.zeros(count, np.int8)
    fault[outside] = _ID
    for code, name in ((_METRIC_WEIGHT, "metric_weight"), (_TRAIN_WEIGHT, "train_weight")):
        fault[~((columns[name] >= 0) & (columns[name] <= LARGEST_WEIGHT))] = code
    if labeled:
        fault[(columns["label"] != 0) & (columns["label"] != 1)] = _LABEL
    columns |= {"ids": ids, "fault": fault, "position": np.arange(first, first + count)}
    labels = {
        name: table.column(name).cast(pa.float32()).to_numpy()
        for name in table.column_names
        if name.startswith(LABEL_PREFIX)
    }
    return add_query_size(Rows(**columns, multivalent=multivalent, joined=labels), whole)


def read_rows(
    folder: Path,
    schema: Schema,
    manifests: Sequence[Manifest],
    start: int = 0,
    times: tuple[int, int] = (0, MAX_TIME_US),
) -> Iterator[Rows]:
    """Reads rows from position ``start`` on with query times in [begin, end). Raises InputError for a damaged shard."""
    begin, end = times
    position = 0
    before: tuple[int, Key] | None = None
    for manifest in manifests:
        if position + manifest.rows <= start:
            position += manifest.rows
            continue
        for entry in manifest.shards:
            first, position = position, position + entry.rows
            if position <= start or entry.last_query_time < begin or entry.first_query_time >= end:
                continue
            table = read_shard(folder, entry, schema)
            if before is not None and before[0] == first:
                check_goes_on(before[1], key_at(table, 0), str(folder / "shards" / entry.file))
            before = position, key_at(table, -1)
            rows = rows_of_table(table, schema, first, manifest.labeled)
            inside = np.searchsorted(rows.query_time, times)
            yield rows.slice(max(start - first, int(inside[0])), max(start - first, int(inside[1])))
