"""Side tables, loaded whole and looked up by key for every row."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.mapping import Join
from ctr.data.text_arrays import spell_array, text_array
from ctr.io.errors import InputError


@dataclass(frozen=True)
class SideTable:
    """Side table: distinct keys [K] as text (as categories spell it), and K rows under their prefixed names."""

    key: str
    keys: pa.Array
    columns: pa.Table

    def attach(self, table: pa.Table) -> pa.Table:
        """Appends the side columns of each row's key, a left join; null where the key is not there."""
        places = pc.index_in(_key_texts(table.column(self.key)), self.keys)
        for name in self.columns.column_names:
            table = table.append_column(name, self.columns.column(name).take(places))
        return table


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
    """Makes a side table of columns that were read from ``path``, all UTF-8; ``rows`` are their numbers, for messages.

    Raises InputError: a missing or repeated key.
    """
    keys = _key_texts(table.column(join.key))
    if keys.null_count:
        row = rows[keys.is_null().index(True).as_py()]
        what = f"the key {join.key} is missing; every row of a side table requires one"
        raise InputError(f"{path} row {row}: {what}")
    counts = keys.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        key = repeated.field("values")[0].as_py()
        row = rows[pc.index(keys, key).as_py()]
        raise InputError(f"{path}: the key {join.key} {key!r} appears more than once (first in row {row})")
    columns = table.drop_columns([join.key])
    columns = columns.rename_columns([join.prefix + name for name in columns.column_names])
    return SideTable(join.key, keys, columns)
