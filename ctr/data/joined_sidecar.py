"""A sidecar's columns for the rows of a log, joined by example_id; the sidecar may belong to another log.

So a student on a short or sampled log reads the predictions of a teacher of a longer one (FF 4.1.2). A row is looked up
in the partition of its query_time, since example_ids need be unique only within a partition.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.log import Manifest, published_partitions, read_manifests
from ctr.data.reader import Rows
from ctr.data.sidecar import list_sidecars, read_sidecar_manifest, read_sidecar_partition, sidecar_folder
from ctr.io.errors import InputError

FOUND = "found"
_EXAMPLE_ID = "example_id"
_PLACES_NAMED = 5


class _Partition:
    def __init__(self, where: str, example_id: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        self.where = where
        self.example_id = example_id
        self.columns = columns
        self._next = 0
        self._are_distinct = False

    def find(self, example_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        end = self._next + len(example_id)
        if np.array_equal(self.example_id[self._next : end], example_id):
            begin, self._next = self._next, end
            return np.arange(begin, end), np.ones(len(example_id), bool)
        if not self._are_distinct:
            distinct, counts = np.unique(self.example_id, return_counts=True)
            if (counts > 1).any():
                raise InputError(f"{self.where}: example_id {distinct[counts > 1][0]} appears twice")
            self._are_distinct = True
        places = pc.index_in(pa.array(example_id), pa.array(self.example_id))
        rows: np.ndarray = places.fill_null(0).to_numpy()
        # After a resume in the middle of a partition its rows may continue in their order.
        self._next = int(rows[-1]) + 1
        return rows, places.is_valid().to_numpy(zero_copy_only=False)


class JoinedSidecar:
    """Numeric or boolean columns of one sidecar of ``log``, read for rows in the order of time.

    Partitions that end by ``begin`` (microseconds) are never needed. Raises InputError if the sidecar lacks a column.
    """

    def __init__(
        self,
        log: Path,
        name: str,
        columns: Sequence[str],
        manifests: Sequence[Manifest] | None = None,
        begin: int = 0,
    ) -> None:
        if FOUND in columns or _EXAMPLE_ID in columns:
            raise ValueError(f"{FOUND} and {_EXAMPLE_ID} are reserved and cannot be requested as columns")
        self._log, self._name, self._columns = log, name, tuple(columns)
        self._manifests = read_manifests(log) if manifests is None else manifests
        self._starts = np.array([manifest.start for manifest in self._manifests], np.int64)
        self._cache: dict[int, _Partition | None] = {}
        self._types: dict[str, np.dtype] = {}
        needed = bisect_right(self._manifests, begin, key=lambda manifest: manifest.end)
        published = [number for number in range(needed, len(self._manifests)) if self._is_published(number)]
        # Earlier partitions also show the types.
        published = published or [*islice(filter(self._is_published, reversed(range(needed))), 1)]
        if not published:
            beside = ", ".join(list_sidecars(log)) or "none"
            raise InputError(f"{log} has no sidecar {name}; the sidecars beside it: {beside}")
        # Only a log's partitions are published in order: a sidecar's may be written side by side.
        folder = sidecar_folder(log, name)
        published_partitions(folder, folder, {manifest.name for manifest in self._manifests})
        for number in published:
            partition = self._manifests[number]
            there = read_sidecar_manifest(log, name, partition).columns
            for column in self._columns:
                if column not in there:
                    names = ", ".join(other for other in there if other != _EXAMPLE_ID)
                    path = self._path(partition)
                    raise InputError(f"{path}: the sidecar {name} has no column {column}; it has {names}")
        # The first partition sets the columns' types, also for rows that are not found.
        self._cache[published[0]] = self._read(self._manifests[published[0]])

    def __str__(self) -> str:
        return f"sidecar {self._name} of {self._log}"

    def _path(self, partition: Manifest) -> Path:
        return sidecar_folder(self._log, self._name) / f"{partition.name}.json"

    def _is_published(self, number: int) -> bool:
        return self._path(self._manifests[number]).is_file()

    def _read(self, partition: Manifest) -> _Partition:
        table = read_sidecar_partition(self._log, self._name, partition)
        columns = {name: self._array(table.column(name), name, partition) for name in self._columns}
        return _Partition(str(self._path(partition)), table.column(_EXAMPLE_ID).to_numpy(), columns)

    def _array(self, column: pa.ChunkedArray, name: str, partition: Manifest) -> np.ndarray:
        where = f"{self._path(partition)}: the column {name}"
        kind, types = column.type, pa.types
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
            raise InputError(f"{where} is of type {kind}; numbers or booleans are required")
        if column.null_count and not types.is_floating(kind):
            raise InputError(f"{where} has {column.null_count} nulls, which {kind} cannot represent")
        array: np.ndarray = column.to_numpy()
        expected = self._types.setdefault(name, array.dtype)
        if array.dtype != expected:
            raise InputError(f"{where} is of type {kind}, in other partitions {expected}")
        return array

    def _partition(self, index: int) -> _Partition | None:
        """Returns the partition's rows; None while the sidecar lacks them."""
        if self._cache.get(index) is None:
            self._cache[index] = self._read(self._manifests[index]) if self._is_published(index) else None
        return self._cache[index]

    def at(self, query_time: np.ndarray, example_id: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the columns [N] for rows in their order, and ``found``, bool [N]; NaN, 0 or False if not found.

        Fast if the sidecar's rows are in the same order. Partitions before the first of these rows are dropped from
        memory, and read again if earlier rows follow. Raises InputError if a partition is damaged or of another log.
        """
        rows = len(example_id)
        present = np.zeros(rows, bool)
        result = {
            name: np.full(rows, np.nan if np.issubdtype(kind, np.floating) else 0, kind)
            for name, kind in self._types.items()
        }
        if not rows:
            return {**result, FOUND: present}
        for index in [index for index in self._cache if self._manifests[index].end <= query_time[0]]:
            del self._cache[index]
        first = max(int(np.searchsorted(self._starts, query_time[0], side="right")) - 1, 0)
        last = int(np.searchsorted(self._starts, query_time[-1], side="right"))
        for index in range(first, last):
            manifest = self._manifests[index]
            begin, end = np.searchsorted(query_time, [manifest.start, manifest.end])
            partition = self._partition(index) if begin < end else None
            if partition is None:
                continue
            places, there = partition.find(example_id[begin:end])
            present[begin:end] = there
            for name, column in partition.columns.items():
                result[name][begin:end][there] = column[places[there]]
        return {**result, FOUND: present}


class MissingValues:
    """Counts the rows of a log that lack a finite value in a sidecar's column."""

    def __init__(self) -> None:
        self.rows = self.missing = 0
        self.first: list[tuple[int, int]] = []  # example_id, and row of the log

    def add(self, rows: Rows, wanted: np.ndarray, values: np.ndarray) -> None:
        lacking = np.flatnonzero(wanted & ~np.isfinite(values))
        self.rows += int(np.count_nonzero(wanted))
        self.missing += len(lacking)
        for row in lacking[: _PLACES_NAMED - len(self.first)]:
            self.first.append((int(rows.example_id[row]), int(rows.position[row])))

    def describe(self) -> str:
        places = ", ".join(f"example_id {example} (row {row} of the log)" for example, row in self.first)
        return f"no value for {self.missing} of {self.rows} rows, first: {places}"
