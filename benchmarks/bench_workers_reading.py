"""What the reading thread of each worker spends on a batch, by part, and what of it a worker could leave to others.

    python benchmarks/bench_workers_reading.py [--batch 4096] [--workers 1 2 4 8] [--batches 40] [--json]

Of the reference model with ids that grow: processor time of one thread, of the first worker of each number of workers.
All workers need the keys, labels and weights of all rows, for batches and metrics, and the ids of all rows, because
each knows from them which rows of tables the others need. To have less to decode, a worker would decode the ids of its
own rows alone; then all of them would have to send each other the distinct ids of their rows.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from reference import ADAGRAD, Size, make_log, reference_config, table

from ctr.config import parse_model
from ctr.data.batches import Batch, set_rejects_apart
from ctr.data.reader import read_rows
from ctr.data.shards import read_shard
from ctr.io.files import file_sha256
from ctr.training.config import TrainConfig
from ctr.training.division import Seat
from ctr.training.feed import make_feed
from ctr.training.inputs import open_inputs

IDS = "ids"


def seconds(call: Callable[[], object], rounds: int = 5) -> float:
    """The processor time of a call, the least of a few."""
    spent = []
    for _ in range(rounds):
        begun = time.process_time()
        call()
        spent.append(time.process_time() - begun)
    return min(spent)


def measure(batch_rows: int, batches: int, workers: Sequence[int]) -> dict[str, Any]:
    """Milliseconds and bytes for each batch."""
    pa.set_cpu_count(1)
    size = Size(batch=batch_rows, growing=True)
    config = parse_model(TrainConfig, reference_config(ADAGRAD, batch_rows), "benchmark")
    with tempfile.TemporaryDirectory() as folder:
        log = make_log(Path(folder) / "log", batches * batch_rows, size)
        inputs = open_inputs(log, config)
        layouts = config.table_layouts(inputs.schema)
        entries = [entry for manifest in inputs.log.manifests for entry in manifest.shards]
        files = [log / "shards" / entry.file for entry in entries]
        # Only their rows are timed here: batches are cut from what is in memory already.
        rows = [
            found.slice(begin, begin + batch_rows)
            for found in read_rows(log, inputs.schema, inputs.log.manifests)
            for begin in range(0, len(found) - batch_rows + 1, batch_rows)
        ]
        ready: list[Batch] = [set_rejects_apart(one) for one in rows]
        small = [name for name in pq.ParquetFile(files[0]).schema_arrow.names if name != IDS]

        def decode(columns: list[str] | None) -> float:
            return seconds(
                lambda: [
                    pq.read_table(path, columns=columns, page_checksum_verification=True) for path in files
                ]
            )

        per_batch = 1000 * batch_rows / sum(entry.rows for entry in entries)
        whole = seconds(lambda: [read_shard(log, entry, inputs.schema) for entry in entries])
        hashed = seconds(lambda: [file_sha256(path) for path in files])
        found: dict[str, Any] = {
            "bytes": column_bytes(files, batch_rows),
            "read_ms": per_batch * whole,
            "hash_ms": per_batch * hashed,
            "decode_ms": {
                "ids": per_batch * (decode(None) - decode(small)),
                "others": per_batch * decode(small),
            },
            "distinct_ids": int(np.mean([distinct(one, layouts) for one in ready[:8]])),
            "feed_ms": {},
        }
        for number in workers:
            divided = tuple(True for _ in layouts)
            seat = None if number == 1 else Seat(0, number, divided)

            def feeds(seat: Seat | None = seat) -> None:
                for one in ready:
                    make_feed(one, layouts, batch_rows, config.objective, ids=config.ids, seat=seat)

            found["feed_ms"][str(number)] = 1000 * seconds(feeds, 3) / len(ready)
    return found


def distinct(batch: Batch, layouts: Any) -> int:
    """The distinct ids of a batch."""
    return sum(plan.distinct_count for plan in make_feed(batch, layouts, len(batch.rows)).plans)


def column_bytes(files: Sequence[Path], batch_rows: int) -> dict[str, float]:
    """The bytes of a batch on the disk, of ids and of all other columns."""
    found, rows = {"ids": 0, "others": 0}, 0
    for path in files:
        metadata = pq.ParquetFile(path).metadata
        rows += metadata.num_rows
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                name = column.path_in_schema.partition(".")[0]
                found["ids" if name == IDS else "others"] += column.total_compressed_size
    return {name: count * batch_rows / rows for name, count in found.items()}


def report(found: Mapping[str, Any]) -> str:
    """The tables."""
    decoded, nbytes = found["decode_ms"], found["bytes"]
    parts = [
        [
            "bytes on the disk: ids, all else",
            f"{nbytes['ids'] / 1e3:,.0f} kB, {nbytes['others'] / 1e3:,.0f} kB",
        ],
        ["SHA-256 of the shard", f"{found['hash_ms']:.2f} ms"],
        ["unpack the columns of all else", f"{decoded['others']:.2f} ms"],
        ["unpack ids", f"{decoded['ids']:.2f} ms"],
        ["read a shard in all, with all checks", f"{found['read_ms']:.2f} ms"],
        [
            f"find {found['distinct_ids']:,} distinct ids, targets; workers: " + ", ".join(found["feed_ms"]),
            ", ".join(f"{one:.2f}" for one in found["feed_ms"].values()) + " ms",
        ],
    ]
    return table(["of a batch", "each worker"], parts)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=4096, help="rows")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--json", action="store_true", help="print all numbers")
    arguments = parser.parse_args(argv)
    found = measure(arguments.batch, arguments.batches, arguments.workers)
    print(json.dumps(found, indent=1) if arguments.json else report(found))


if __name__ == "__main__":
    main()
