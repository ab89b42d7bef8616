"""Rows stored on disk until their partition is complete, in temporary or permanent files inside the log's folder."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from ctr.data.state_files import read_state_file, write_state_file
from ctr.io.errors import InputError
from ctr.io.files import hold, make_folder, naming

_PREFIX = ".spill-"
_BUFFER_BYTES = 128 << 20


@contextmanager
def spill_folder(log: Path) -> Iterator[Path]:
    """Yields a new temporary folder inside ``log``, which is always removed at the end.

    A process that is killed leaves its folder behind, and the next one removes it. The folder of a living process is
    protected by a lock.
    """
    make_folder(log)
    # The lock of the log is held only while folders are listed and created, so that no other process sees a folder
    # before it is locked.
    with ExitStack() as locks:
        with hold(log):
            for left in log.glob(f"{_PREFIX}*"):
                # Except folders that a living process holds, or has just removed.
                with suppress(InputError, FileNotFoundError), hold(left, "in use"):
                    shutil.rmtree(left, ignore_errors=True)
            temporary = TemporaryDirectory(prefix=_PREFIX, dir=log, ignore_cleanup_errors=True)
            folder = Path(locks.enter_context(temporary))
            locks.enter_context(hold(folder))
        with naming(folder):
            yield folder


def write_state_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Creates or replaces a file with Arrow tables of a schema, and its hash; returns the number of rows."""
    rows = 0

    def write(stream: object) -> None:
        nonlocal rows
        with pa.ipc.new_file(stream, schema) as writer:
            for table in tables:
                rows += table.num_rows
                writer.write_table(table)

    write_state_file(path, write)
    return rows


def read_state_tables(path: Path, remedy: str) -> Iterator[pa.Table]:
    """Yields the tables of a file, mapped into memory, after verifying its hash (``read_state_file``)."""
    reader = pa.ipc.open_file(read_state_file(path, remedy))
    for number in range(reader.num_record_batches):
        yield pa.Table.from_batches([reader.get_batch(number)])


def split_by_partition(table: pa.Table, starts: np.ndarray) -> dict[int, pa.Table]:
    """Splits the rows of a table by their partition (``starts``, int64 [N]), in their order."""
    if not len(starts):
        return {}
    if not (starts[1:] >= starts[:-1]).all():
        order = np.argsort(starts, kind="stable")
        table, starts = table.take(pa.array(order)), starts[order]
    begins = np.flatnonzero(np.append(True, starts[1:] != starts[:-1]))
    ends = np.append(begins[1:], len(starts))
    pairs = zip(begins, ends, strict=True)
    return {int(starts[begin]): table.slice(begin, end - begin) for begin, end in pairs}


@dataclass
class PartitionSpill:
    """Rows by partition of query time, each partition in the order of arrival.

    Partitions begin at multiples of their length. Up to ``buffer_bytes`` of rows are buffered in memory.
    """

    folder: Path
    partition_us: int
    buffer_bytes: int = _BUFFER_BYTES
    _buffers: dict[int, list[pa.Table]] = field(default_factory=dict)
    _buffered_bytes: int = 0
    _on_disk: set[int] = field(default_factory=set)

    def append(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        times = table.column("query_time").to_numpy()
        for start, part in split_by_partition(table, times - times % self.partition_us).items():
            self._buffers.setdefault(start, []).append(part)
        self._buffered_bytes += table.nbytes
        if self._buffered_bytes > self.buffer_bytes:
            self._flush()

    def _flush(self) -> None:
        # All buffers, not the largest: their tables are slices, and one slice keeps the whole table in memory.
        for start, tables in self._buffers.items():
            self._on_disk.add(start)
            # A file is a run of Arrow streams, one for each flush: no partition holds a file open.
            with self._path(start).open("ab") as file, pa.ipc.new_stream(file, tables[0].schema) as writer:
                for table in tables:
                    writer.write_table(table)
        self._buffers.clear()
        self._buffered_bytes = 0

    def _path(self, start: int) -> Path:
        return self.folder / f"{start:019d}"

    def starts(self) -> list[int]:
        """Lists the starts of the partitions that have rows, in order of time."""
        return sorted({*self._on_disk, *self._buffers})

    def pop(self, start: int) -> pa.Table:
        """Returns all rows of a partition in the order of arrival, and frees their space."""
        tables = []
        if start in self._on_disk:
            path = self._path(start)
            with pa.memory_map(str(path)) as file:
                while file.tell() < file.size():
                    with pa.ipc.open_stream(file) as reader:
                        tables.append(reader.read_all())
            path.unlink()
            self._on_disk.remove(start)
        return pa.concat_tables([*tables, *self._buffers.pop(start, [])])
