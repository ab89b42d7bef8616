"""What the reading thread of each worker spends on a batch, by part, and what of it a worker could leave to others.

    python benchmarks/bench_workers_reading.py [--batch 4096] [--workers 1 2 4 8] [--batches 40]

Of the reference model with ids that grow: processor time of one thread, of the first worker of each number of workers.
All workers need the keys, labels and weights of all rows, for batches and metrics, and the ids of all rows, because
each knows from them which rows of tables the others need. To have less to decode, a worker would decode the ids of its
own rows alone; then all of them would have to send each other the distinct ids of their rows. Its limit: bytes.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from own import benchmark_config
from reference import ADAGRAD, Size, make_log
from runner import main

from ctr.data.batches import set_rejects_apart
from ctr.data.reader import read_rows
from ctr.data.shards import read_shard
from ctr.io.files import file_sha256
from ctr.training.division import Seat
from ctr.training.feed import make_feed
from ctr.training.inputs import open_inputs

IDS = "ids"
ROUNDS = 5


def worked_ms(call: Callable[[], object]) -> float:
    """The processor time of a call, the least of a few."""
    spent = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        call()
        spent.append(1000 * (time.process_time() - begun))
    return min(spent)


def measure(batch: int = 4096, batches: int = 40, workers: tuple[int, ...] = (1, 2, 4, 8)) -> dict[str, Any]:
    """Milliseconds and bytes for each batch."""
    pa.set_cpu_count(1)
    config = benchmark_config(ADAGRAD, batch)
    with tempfile.TemporaryDirectory() as folder:
        log = make_log(Path(folder) / "log", batches * batch, Size(batch=batch, growing=True))
        inputs = open_inputs(log, config)
        layouts = config.table_layouts(inputs.schema)
        entries = [entry for manifest in inputs.log.manifests for entry in manifest.shards]
        files = [log / "shards" / entry.file for entry in entries]
        # Only their rows are timed here: batches are cut from what is in memory already.
        ready = [
            set_rejects_apart(found.slice(begin, begin + batch))
            for found in read_rows(log, inputs.schema, inputs.log.manifests)
            for begin in range(0, len(found) - batch + 1, batch)
        ]
        others = [name for name in pq.ParquetFile(files[0]).schema_arrow.names if name != IDS]

        def decode(columns: list[str] | None) -> None:
            for path in files:
                pq.read_table(path, columns=columns, page_checksum_verification=True)

        def feeds(number: int) -> None:
            seat = None if number == 1 else Seat(0, number, tuple(True for _ in layouts))
            for one in ready:
                make_feed(one, layouts, batch, config.objective, ids=config.ids, seat=seat)

        read = {
            "SHA-256 of the shard": worked_ms(lambda: [file_sha256(path) for path in files]),
            "unpack the columns of all else": worked_ms(lambda: decode(others)),
            "unpack all columns": worked_ms(lambda: decode(None)),
            "read a shard in all, with all checks": worked_ms(
                lambda: [read_shard(log, entry, inputs.schema) for entry in entries]
            ),
        }
        planned = {
            f"plan, {number} worker(s)": worked_ms(lambda number=number: feeds(number)) for number in workers
        }
        per_batch = batch / sum(entry.rows for entry in entries)
        distinct = [
            sum(plan.distinct_count for plan in make_feed(one, layouts, batch).plans) for one in ready[:8]
        ]
        return {
            "bytes on the disk": {name: per_batch * size for name, size in column_bytes(files).items()},
            "ms": {name: per_batch * ms for name, ms in read.items()}
            | {name: ms / len(ready) for name, ms in planned.items()},
            "distinct_ids": float(np.mean(distinct)),
        }


def column_bytes(files: list[Path]) -> dict[str, int]:
    """The bytes on the disk, of ids and of all other columns."""
    found = {IDS: 0, "others": 0}
    for path in files:
        metadata = pq.ParquetFile(path).metadata
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                is_id = column.path_in_schema.partition(".")[0] == IDS
                found[IDS if is_id else "others"] += column.total_compressed_size
    return found


if __name__ == "__main__":
    main(measure, {"batch": 64, "batches": 2, "workers": (1, 2)})
