"""Side tables: small tables beside the input files, looked up by a key, and by the time where their rows have one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.ids.arrow import spell_array, text_array
from ctr.data.mapping import Join, Time
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import parse_times


@dataclass(frozen=True)
class SideTable:
    """Side table: distinct keys [U] as text (as categories spell it), and K rows under their prefixed names.

    Without ``times`` K is U, and rows are in the order of the keys. With them a row holds from a time on until the next
    one of its key: ``times`` are the distinct ones, int64 [T], rising; the rows of one key follow one another by time,
    and ``order``, int64 [K], is for each row the index of its key times (T + 1), and 1 + the index of its time.
    """

    key: str
    keys: pa.Array
    columns: pa.Table
    times: np.ndarray | None = None
    order: np.ndarray | None = None

    @property
    def has_times(self) -> bool:
        return self.times is not None

    def attach(self, table: pa.Table, times: np.ndarray | None = None) -> pa.Table:
        """Appends the side columns of each row's key, a left join; null where the key is not there.

        Where the side table has times they are those that hold at the row's time, of ``times``, [N] int64 microseconds;
        null where none does yet.
        """
        indices = pc.index_in(_key_texts(table.column(self.key)), self.keys)
        if times is not None:
            rows = self._rows_at(pc.fill_null(indices, -1).to_numpy().astype(np.int64), times)
            indices = pa.array(rows, mask=rows < 0)
        for name in self.columns.column_names:
            table = table.append_column(name, self.columns.column(name).take(indices))
        return table

    def _rows_at(self, keys: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Finds the latest row of each key [N] (an index; -1: none) at or before a time [N]; -1 without one."""
        assert self.times is not None and self.order is not None
        step = len(self.times) + 1
        wanted = keys * step + np.searchsorted(self.times, times, side="right")
        rows = np.searchsorted(self.order, wanted, side="right") - 1
        # Before the first row of a key lies one of another key.
        same_key = self.order[rows] // step == keys if len(self.order) else np.zeros(len(keys), bool)
        return np.where((rows >= 0) & same_key, rows, -1)


def _key_texts(column: pa.ChunkedArray) -> pa.Array:
    """Keys as categories spell them, so that 12.0 in one file finds 12 in the other."""
    return spell_array(text_array(column.combine_chunks()).cast(pa.string()))


def find_side_file(join: Join, folder: Path) -> Path:
    """Finds the file of a join for the input files of ``folder``; InputError for none or several."""
    found = sorted(path for path in folder.glob(join.file) if path.is_file())
    if len(found) != 1:
        several = f"matches {', '.join(path.name for path in found)}" if found else "no such file"
        raise InputError(f"join {join.file} in {folder}: {several}; exactly one file is required")
    return found[0]


def make_side_table(join: Join, path: Path, table: pa.Table, rows: Sequence[int]) -> SideTable:
    """Makes a side table of columns of ``path`` and row numbers; InputError for a missing or repeated key or time."""
    keys = _key_texts(table.column(join.key))
    if keys.null_count:
        row = rows[keys.is_null().index(True).as_py()]
        what = f"the key {join.key} is missing; every row of a side table requires one"
        raise InputError(f"{path} row {row}: {what}")
    encoded = keys.dictionary_encode()
    order = encoded.indices.to_numpy().astype(np.int64)
    times = np.zeros(len(keys), np.int64)
    if join.valid_from is not None:
        times = _starts(path, join.valid_from, table, rows)
        distinct, ranks = np.unique(times, return_inverse=True)
        order = order * (len(distinct) + 1) + 1 + ranks
    _, firsts, counts = np.unique(order, return_index=True, return_counts=True)
    if (counts > 1).any():
        place = int(firsts[counts > 1].min())
        what = f"{path}: the key {join.key} {keys[place].as_py()!r} appears more than once"
        if join.valid_from is not None:
            what += f" with {join.valid_from.column} {format_time(int(times[place]))}"
        raise InputError(f"{what} (first in row {rows[place]})")
    columns = table.drop_columns(list(join.own_columns))
    columns = columns.rename_columns([join.prefix + name for name in columns.column_names])
    if join.valid_from is None:
        return SideTable(join.key, keys, columns)
    sorting = np.argsort(order)
    return SideTable(join.key, encoded.dictionary, columns.take(pa.array(sorting)), distinct, order[sorting])


def _starts(path: Path, valid_from: Time, table: pa.Table, rows: Sequence[int]) -> np.ndarray:
    """The times from which rows hold, [K] int64 microseconds; InputError for one that is missing or unreadable."""
    name = str(valid_from.column)
    column = table.column(name).combine_chunks()
    try:
        times, bad = parse_times(column, valid_from)
    except InputError as error:
        raise InputError(f"{path}: the column {name} is {error}") from None
    if bad.any():
        place = int(bad.argmax())
        value = column[place].as_py()
        what = "missing" if value in (None, "") else f"unreadable or out of range ({value!r})"
        allowed = f"{valid_from.form}, {valid_from.range_text}"
        raise InputError(f"{path} row {rows[place]}: valid_from {name}: {what}; allowed: {allowed}")
    return times
