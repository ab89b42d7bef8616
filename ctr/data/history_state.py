"""The histories of a log: their rows at the end of a partition, and the history columns of the next one.

::

    LOG/histories/END-DIGEST.parquet    the histories at END, from the partitions whose manifests have this digest

Histories depend on the published partitions alone. The file, with the columns ``feature``, ``key`` and ``value`` (ids)
and ``time``, saves reading the partitions: without it, or if a partition is added late, the shards are read again, with
the same result.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.history import (
    NOTHING,
    History,
    HistoryRows,
    add_rows,
    forget,
    look_up_history,
    merge_rows,
    split_by_keys,
)
from ctr.data.kept_values import read_values, value_of_id
from ctr.data.log import Manifest, list_partitions, manifest_bytes, read_manifests, read_schema
from ctr.data.parquet_files import parquet_bytes
from ctr.data.schema import MISSING_ID, Schema
from ctr.data.shards import id_matrix, list_column, read_shard
from ctr.data.state_files import read_state_file, write_state_file
from ctr.io.errors import InputError
from ctr.io.files import check_output_file, names_in, write_atomic_bytes

FOLDER = "histories"
_COLUMNS = ("feature", "key", "time", "value")
_REMEDY = "delete it: what it held is then found by reading the log's shards"
_SAVES = 30  # at most, within the time that the histories span
_TABLE_COLUMNS = ("key", "values", "times")


class Histories:
    """The histories of a growing log: ``fill`` the rows of a partition, ``add`` them when they are staged."""

    def __init__(self, log: Path, schema: Schema, checked: bool = True) -> None:
        """Reads nothing yet; ``checked``: whether an unpublished partition before published ones is an error."""
        self._log, self._schema = log, schema
        self._among = None if checked else frozenset[str]()
        self._histories = schema.histories
        self._longest = max((history.within_us for history in self._histories.values()), default=0)
        self._rows = dict.fromkeys(self._histories, NOTHING)
        # The end of the partitions that the rows come from, and the time of the last ``_forget``.
        self._at = self._forgot = -1
        self._manifests: dict[tuple[int, int], Manifest] = {}

    def fill(self, start: int, rows: pa.Table) -> pa.Table:
        """Fills the history columns of a partition's rows, which are in the order of the log.

        Returns the rows unchanged if the log has no histories.
        """
        if not self._histories:
            return rows
        self._move_to(start)
        ids, times = self._ids(rows), rows.column("query_time").to_numpy()
        for name, history in self._histories.items():
            before, _ = split_by_keys(self._rows[name], np.unique(ids[history.by]))
            # Later queries of the partition see its earlier rows.
            all_rows = add_rows(before, _counting(history, rows, ids))
            values, lengths = look_up_history(history, all_rows, ids[history.by], times)
            index = rows.schema.get_field_index(name)
            field = rows.schema.field(index)
            column = list_column(name, values.astype(self._schema.id_type), lengths, field.type)
            rows = rows.set_column(index, field, column)
        return rows

    def add(self, end: int, rows: pa.Table) -> None:
        """Adds the rows of a partition that ends at ``end``, after ``fill``."""
        self._at = end
        if not self._histories:
            return
        ids = self._ids(rows)
        for name, history in self._histories.items():
            later = _counting(history, rows, ids)
            earlier, others = split_by_keys(self._rows[name], np.unique(later.keys))
            self._rows[name] = merge_rows(others, forget(history, add_rows(earlier, later), end))

    def at_end(self) -> dict[str, HistoryRows]:
        """Returns the rows of each feature's history at the end of the log."""
        ends = [end for _, end in list_partitions(self._log)] if self._histories else []
        if ends:
            self._move_to(ends[-1])
        return dict(self._rows)

    def save(self) -> None:
        """Stores the histories at the end of the log, at most about 30 times within the time that they span."""
        if not self._histories:
            return
        self.at_end()
        stored = names_in(self._log / FOLDER, ".parquet")
        latest = max((int(name.partition("-")[0]) for name in stored), default=-1)
        if self._at < 0 or latest > self._at - self._longest // _SAVES:
            return
        self._forget()
        path = self._path(self._read_manifests())
        tables = [
            pa.table([np.full(len(rows.keys), number, np.int32), *rows], names=_COLUMNS)
            for number, rows in enumerate(self._rows.values())
        ]
        write_state_file(path, parquet_bytes(pa.concat_tables(tables)))
        for name in stored:
            (self._log / FOLDER / name).unlink(missing_ok=True)

    def _move_to(self, start: int) -> None:
        """Reads the next published partitions, up to the last one that ends by ``start``."""
        if start == self._at:
            return
        manifests = [manifest for manifest in self._read_manifests() if manifest.end <= start]
        if self._at < 0 or start < self._at:
            self._load(manifests, start)
        for manifest in manifests:
            if manifest.start >= self._at:
                for entry in manifest.shards:
                    self.add(manifest.end, read_shard(self._log, entry, self._schema))
        self._at = start
        if start - self._forgot > self._longest // _SAVES:
            self._forget()

    def _forget(self) -> None:
        for name, history in self._histories.items():
            self._rows[name] = forget(history, self._rows[name], self._at)
        self._forgot = self._at

    def _load(self, manifests: Sequence[Manifest], start: int) -> None:
        """Loads the latest stored histories; without any, starts at the first partition within their time span."""
        self._rows = dict.fromkeys(self._histories, NOTHING)
        self._at = min((part.start for part in manifests if part.end > start - self._longest), default=start)
        stored = {name.partition("-")[0] for name in names_in(self._log / FOLDER, ".parquet")}
        for count in range(len(manifests), 0, -1):
            if f"{manifests[count - 1].end:019d}" not in stored:
                continue
            path = self._path(manifests[:count])
            if path.is_file():
                table = pq.read_table(pa.BufferReader(read_state_file(path, _REMEDY)))
                features, *columns = (table.column(name).to_numpy() for name in _COLUMNS)
                for number, name in enumerate(self._histories):
                    self._rows[name] = HistoryRows(*columns).at(features == number)
                self._at = manifests[count - 1].end
                return

    def _read_manifests(self) -> list[Manifest]:
        manifests = read_manifests(self._log, self._manifests, self._among)
        self._manifests = {(manifest.start, manifest.end): manifest for manifest in manifests}
        return manifests

    def _path(self, manifests: Sequence[Manifest]) -> Path:
        end, digest = manifests[-1].end, hashlib.sha256()
        for manifest in manifests:
            if manifest.end > end - self._longest:
                digest.update(manifest_bytes(manifest))
        return self._log / FOLDER / f"{end:019d}-{digest.hexdigest()[:16]}.parquet"

    def _ids(self, rows: pa.Table) -> dict[str, np.ndarray]:
        """Returns the ids of the features that histories name, int64 [N] each."""
        matrix, single = id_matrix(rows, self._schema), self._schema.single_valued
        names = {name for history in self._histories.values() for name in history.names}
        return {name: matrix[:, single.index(name)].astype(np.int64) for name in names}


def _counting(history: History, rows: pa.Table, ids: dict[str, np.ndarray]) -> HistoryRows:
    """Selects, in order, the rows with a key and a value, only clicked ones if the history requires it."""
    keys, values = ids[history.by], ids[history.of]
    counts = (keys != MISSING_ID) & (values != MISSING_ID)
    if history.where == "clicked":
        counts &= rows.column("label").to_numpy() == 1
    return HistoryRows(keys, rows.column("query_time").to_numpy(), values).at(counts)


def write_history(log: Path, name: str | None, out: Path) -> int:
    """Writes a history at the end of a log as Parquet, for a feature store; returns the number of keys.

    Raises InputError if ``out`` is another kind of file, or for the reasons of ``history_table``.
    """
    check_output_file(out, "what ctr history wrote", _is_history)
    table = history_table(log, name)
    write_atomic_bytes(out, parquet_bytes(table))
    return int(table.num_rows)


def _is_history(path: Path) -> bool:
    try:
        return bool(pq.read_schema(path).names == list(_TABLE_COLUMNS))
    except pa.ArrowException:
        return False


def history_table(log: Path, name: str | None) -> pa.Table:
    """Returns the named feature's history, or the only one, at the end of the log, a row for each key.

    Its columns are ``key`` (string), ``values`` (list of strings, the latest last) and ``times`` (of their queries, in
    microseconds). A server sends values that are at least ``after`` old. Raises InputError if the log has no such
    history, or does not store the raw values of the features that it names.
    """
    schema = read_schema(log)
    names = list(schema.histories)
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        raise InputError(
            f"{log}: --feature {name}: allowed: {', '.join(names) or 'none, the log has no histories of values'}"
        )
    history, rows = schema.histories[name], Histories(log, schema).at_end()[name]
    wanted = {history.by: np.unique(rows.keys).tolist(), history.of: np.unique(rows.values).tolist()}
    raw = read_values(log, wanted)
    texts = {
        feature: {key: value_of_id(schema.by_name[feature], key) or raw[feature].get(key) for key in ids}
        for feature, ids in wanted.items()
    }
    for feature, by_id in texts.items():
        if lacking := sum(text is None for text in by_id.values()):
            raise InputError(
                f"{log}: keeps no raw values of {lacking} values of {feature}; allowed: a log of a mapping with "
                f"keep_values: [{history.by}, {history.of}]"
            )
    keys, begins = np.unique(rows.keys, return_index=True)
    offsets = np.append(begins, len(rows.keys)).astype(np.int32)
    values = pa.array([texts[history.of][key] for key in rows.values.tolist()], pa.string())
    columns = (
        pa.array([texts[history.by][key] for key in keys.tolist()], pa.string()),
        pa.ListArray.from_arrays(offsets, values),
        pa.ListArray.from_arrays(offsets, pa.array(rows.times, pa.timestamp("us", "UTC"))),
    )
    return pa.table(columns, names=_TABLE_COLUMNS)
