"""Shares of values of hashed features that share an id, estimated from the ids that an ingest has met."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from ctr.data.id_counts import BoundedCounts
from ctr.data.inspection import shared_buckets
from ctr.data.inspection_text import SHARED, collision_text
from ctr.data.kept_values import has_raw_values
from ctr.data.parquet_files import IDS_COLUMN
from ctr.data.schema import MISSING_ID, Schema
from ctr.data.shards import unpack_ids

# Up to so many buckets each one is marked, a byte each; of more the number of ids is estimated.
_MARKED = 2**24

# So many rows that the columns of a block are read from the cache.
_BLOCK_ROWS = 8192


def hashed_buckets(schema: Schema) -> dict[str, int]:
    """Returns the features whose values are hashed to ``buckets``, with their number."""
    return {one.name: one.buckets for one in schema.features if has_raw_values(one) and one.buckets}


class Collisions:
    """Ids of the features with ``buckets`` among the rows of an ingest, in bounded memory."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        buckets = hashed_buckets(schema)
        self._marks = {name: np.zeros(size, np.bool_) for name, size in buckets.items() if size <= _MARKED}
        self._counts = {name: BoundedCounts(1) for name, size in buckets.items() if size > _MARKED}
        self._buckets = buckets

    def watched(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields tables with the columns of a shard, and notes their ids."""
        for table in tables:
            self.add(table)
            yield table

    def add(self, table: pa.Table) -> None:
        """Notes the ids of a table with the columns of a shard."""
        columns = enumerate(self._schema.single_valued)
        single = [(column, name) for column, name in columns if name in self._buckets]
        for chunk in table.column(IDS_COLUMN).chunks if single else ():
            matrix = unpack_ids(chunk, self._schema)
            for begin in range(0, len(matrix), _BLOCK_ROWS):
                block = matrix[begin : begin + _BLOCK_ROWS]
                for column, name in single:
                    self._note(name, block[:, column])
        for name in self._schema.multivalent:
            for chunk in table.column(name).chunks if name in self._buckets else ():
                self._note(name, chunk.flatten().to_numpy())

    def _note(self, name: str, ids: np.ndarray) -> None:
        if name in self._marks:
            self._marks[name][ids] = True
        else:
            there = ids[ids != MISSING_ID]
            self._counts[name].add(there, np.zeros(len(there), np.bool_))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns what ``merge`` takes: of marked ids a bit each."""
        found = {f"marks/{name}": np.packbits(own) for name, own in self._marks.items()}
        for name, counts in self._counts.items():
            found |= {f"counts/{name}/{part}": values for part, values in counts.to_arrays().items()}
        return found

    def merge(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Adds what another one has noted (``to_arrays``), of rows with the same features."""
        for name, marks in self._marks.items():
            marks |= np.unpackbits(arrays[f"marks/{name}"], count=len(marks)).view(np.bool_)
        for name, counts in self._counts.items():
            begin = f"counts/{name}/"
            parts = {key.removeprefix(begin): own for key, own in arrays.items() if key.startswith(begin)}
            counts.merge(BoundedCounts.from_arrays(parts, 1))

    def shares(self) -> dict[str, float]:
        """Estimates the share of the values of each feature with ``buckets`` that share their id."""
        return {name: share for name, (_, share) in self._estimates().items()}

    def warnings(self) -> Iterator[str]:
        """Yields a line that names the features with the largest shares, and the remedy."""
        found = [
            (share, name, values) for name, (values, share) in self._estimates().items() if share > SHARED
        ]
        if found:
            yield collision_text(found)

    def _estimates(self) -> dict[str, tuple[int, float]]:
        estimates = {}
        for name, buckets in self._buckets.items():
            if name in self._marks:
                ids = int(np.count_nonzero(self._marks[name][MISSING_ID + 1 :]))
            else:
                ids = self._counts[name].distinct()
            estimates[name] = shared_buckets(ids, buckets - 1)
        return estimates
