"""Chunks of source files: raw columns with their row numbers, and the rows that were rejected already."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ctr.pipelines.rows.rejects import Reject


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one source file."""

    file: int  # its number
    table: (
        pa.Table
    )  # the raw columns of N rows, text as ``binary`` (not yet checked to be UTF-8) or ``string``
    rows: np.ndarray  # [N] int64, the 1-based line or record number of each
    rejects: list[Reject]  # rows of this chunk that could not be read at all

    @property
    def count(self) -> int:
        """Rows of the input that this chunk accounts for."""
        return self.table.num_rows + len(self.rejects)


def with_constants(chunk: Chunk, values: Mapping[str, str | None]) -> Chunk:
    """Appends columns that have one value in all rows; None: it is missing."""
    table = chunk.table
    for name, value in values.items():
        rows = len(chunk.rows)
        table = table.append_column(name, pa.nulls(rows) if value is None else pa.repeat(value, rows))
    return replace(chunk, table=table)
