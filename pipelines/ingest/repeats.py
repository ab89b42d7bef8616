"""Rows that were read before: blocks of rows whose content was in another file, or earlier in the same one.

The end of a block depends on the hash of its last row, not on a number of rows: a copy is found wherever it begins, in
a file of any name, compression or format. Hashes are those of the examples, without values made from the file's name.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ctr.data.mapping import Mapping
from ctr.data.shards import id_matrix
from ctr.io.hashing import mix64

_SHORTEST, _LONGEST = 64, 8192
_WARNED_SHARE = 0.01
_ENDS = np.uint64((1 << 10) - 1)
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


_POWERS = np.array([pow(_GOLDEN, place, 1 << 64) for place in range(_LONGEST)], np.uint64)


def hash_rows(mapping: Mapping, table: pa.Table) -> np.ndarray:
    """Hashes rows under ``spill_schema`` to uint64 [N], with the times and ids that the file has itself."""
    names = ["label", "train_weight"]
    names += ["query_time"] if mapping.time.row_order is None else []
    names += [] if mapping.example_id is None else ["example_id"]
    names += [] if mapping.query is None else ["query_id"]
    state = np.zeros(table.num_rows, np.uint64)
    for name in names:
        column = table.column(name).to_numpy()
        is_float = column.dtype == np.float32
        bits = column.view(np.uint32) if is_float else column.astype(np.int64).view(np.uint64)
        state = mix64(state * np.uint64(_GOLDEN) + bits)
    schema = mapping.feature_schema
    if schema.single_valued:
        ids = id_matrix(table, schema)
        # Products of 32 bits that wrap, to avoid a copy of all ids in 64 bits.
        parts = schema.id_type.itemsize // 4 * len(schema.single_valued)
        factors = np.random.default_rng(1).integers(1, np.iinfo(np.uint32).max, parts, np.uint32) | np.uint32(
            1
        )
        state = mix64(state * np.uint64(_GOLDEN) + ids.view(np.uint32) @ factors) if len(ids) else state
    for place, name in enumerate(schema.multivalent):
        array = table.column(name).combine_chunks()
        offsets = array.offsets.to_numpy()
        values = array.values.to_numpy().astype(np.uint64)
        products = np.cumsum(values * (values + np.uint64(2 * place + 1)))
        sums = np.concatenate([np.zeros(1, np.uint64), products])
        state = mix64(state * np.uint64(_GOLDEN) + sums[offsets[1:]] - sums[offsets[:-1]])
    return state


class Repeats:
    """Repeated blocks among the hashes of all rows, in the order of the files.

    Attributes:
        new: hashes of blocks that were never seen before, each with its file's number.
        repeated: rows by the numbers of their file and of the one that had them before.
    """

    def __init__(self, seen: dict[int, int], first: int) -> None:
        self._seen = seen
        self._first = first
        self._file = 0
        self._rest = np.zeros(0, np.uint64)
        self.new: list[tuple[int, int]] = []
        self.repeated: Counter[tuple[int, int]] = Counter()

    def add(self, file: int, hashes: np.ndarray) -> None:
        """Adds the next rows: ``file`` counts from 0, ``hashes`` are those of ``hash_rows``."""
        if file != self._file:
            self.finish()
            self._file = file
        hashes = np.concatenate([self._rest, hashes])
        start = 0
        for end in (np.flatnonzero(hashes & _ENDS == 0) + 1).tolist():
            start = self._cut(hashes, start, end)
            if end - start >= _SHORTEST:
                self._block(hashes[start:end])
                start = end
        start = self._cut(hashes, start, len(hashes))
        self._rest = hashes[start:]

    def _cut(self, hashes: np.ndarray, start: int, end: int) -> int:
        while end - start > _LONGEST:
            self._block(hashes[start : start + _LONGEST])
            start += _LONGEST
        return start

    def _block(self, hashes: np.ndarray) -> None:
        value = (int((hashes * _POWERS[: len(hashes)]).sum()) * _GOLDEN + len(hashes)) & _MASK
        number = self._first + self._file
        before = self._seen.get(value)
        if before is None:
            self._seen[value] = number
            self.new.append((value, number))
        else:
            self.repeated[number, before] += len(hashes)

    def warnings(self, names: Sequence[str], rows: int) -> Iterator[str]:
        """Warns of many repeated rows; ``names`` are of all files, by their numbers, ``rows`` of those added."""
        repeated = sum(self.repeated.values())
        if repeated > _WARNED_SHARE * rows:
            pairs = [
                f"{names[file]} repeats {count} rows of {names[other] if other != file else 'itself'}"
                for (file, other), count in self.repeated.most_common(3)
            ]
            yield (
                f"{repeated} of {rows} rows ({repeated / rows:.0%}) were seen before: {', '.join(pairs)}. "
                "They count again: leave copies out and use a new output directory, unless the repetition is intended"
            )

    def finish(self) -> None:
        """Ends a file: the rest of it is its last block."""
        if len(self._rest):
            self._block(self._rest)
        self._rest = np.zeros(0, np.uint64)
