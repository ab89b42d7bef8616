"""What a worker spends on reading and planning its batches, by part, and how many rows per second that allows.

    python benchmarks/bench_workers_reading.py [--batch 4096] [--workers 1 2 4 8 16 32] [--batches 64]

Of the reference model with ids that grow (``--growing no``: with fixed ones): processor time of one thread, of the
first of W workers, each of which takes ``--batch`` rows of a batch. All workers read all rows: they form the same
batches, and refuse the same faulty rows. A batch is planned in two ways: by each worker as a whole, or by all together,
each of which finds the distinct ids of its own rows, and joins those of all.

What no worker needs of the ids of the others' rows is to decode and hash them. To leave that out, row groups would have
to be as small as a worker's share of a batch, a shard be verified in parts, and the rows whose ids lie outside their
features' buckets be known without the ids.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from own import benchmark_config
from reference import ADAGRAD, Size, make_log
from runner import main

from ctr.data.batches import set_rejects_apart, whole_query_batches
from ctr.data.reader import read_rows
from ctr.data.shards import read_shard
from ctr.io.files import file_sha256
from ctr.training.division import Seat
from ctr.training.feed import Feed, make_feed
from ctr.training.inputs import open_inputs

IDS = "ids"
ROUNDS = 5
ALL = "the same, and form batches"


def worked_ms(call: Callable[[], object]) -> float:
    """The processor time of a call, the least of a few."""
    spent = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        call()
        spent.append(1000 * (time.process_time() - begun))
    return min(spent)


def measure(
    batch: int = 4096,
    batches: int = 64,
    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    growing: str = "yes",
) -> dict[str, Any]:
    """Milliseconds for each ``batch`` rows of the log, or of a worker; and rows of the log per second."""
    pa.set_cpu_count(1)
    config = benchmark_config(ADAGRAD, batch)
    with tempfile.TemporaryDirectory() as folder:
        size = Size(batch=batch, growing=growing == "yes")
        log = make_log(Path(folder) / "log", batches * batch, size)
        inputs = open_inputs(log, config)
        layouts = config.table_layouts(inputs.schema)
        entries = [entry for manifest in inputs.log.manifests for entry in manifest.shards]
        files = [log / "shards" / entry.file for entry in entries]
        others = [name for name in pq.ParquetFile(files[0]).schema_arrow.names if name != IDS]
        per_batch = batch / inputs.log.rows

        def decode(columns: list[str] | None) -> None:
            for path in files:
                pq.read_table(path, columns=columns, page_checksum_verification=True)

        def read() -> None:
            blocks = read_rows(log, inputs.schema, inputs.log.manifests)
            for _ in whole_query_batches(blocks, batch, config.batch.max_query_rows):
                pass

        reading = {
            "SHA-256 of the shard": worked_ms(lambda: [file_sha256(path) for path in files]),
            "unpack the columns of all else": worked_ms(lambda: decode(others)),
            "unpack all columns": worked_ms(lambda: decode(None)),
            "read a shard in all, with all checks": worked_ms(
                lambda: [read_shard(log, entry, inputs.schema) for entry in entries]
            ),
            ALL: worked_ms(read),
        }
        reading = {name: per_batch * ms for name, ms in reading.items()}
        rows = next(read_rows(log, inputs.schema, inputs.log.manifests))

        def make(number: int, rank: int, is_part: bool) -> Feed:
            seat = None if number == 1 else Seat(rank, number, (True,) * len(layouts))
            whole = set_rejects_apart(rows.slice(0, min(number * batch, len(rows))))
            options = {"ids": config.ids, "seat": seat, "is_part": is_part and number > 1}
            return make_feed(whole, layouts, number * batch, config.objective, **options)

        planning = {number: plan_ms(number, make) for number in workers}
        table = {
            f"{number} worker(s)": planned | speeds(number * reading[ALL], planned, number * batch)
            for number, planned in planning.items()
        }
        return {
            "bytes on the disk": {name: per_batch * size for name, size in column_bytes(files).items()},
            "ms to read": reading,
            "planning": table,
        }


def plan_ms(number: int, make: Callable[[int, int, bool], Feed]) -> dict[str, float]:
    """Milliseconds that the first of W workers plans a batch, and bytes that it sends to each other one."""

    def whole() -> None:
        make(number, 0, False).prepare()

    found = {"whole, ms": worked_ms(whole)}
    if number == 1:
        return found | {"own rows, ms": found["whole, ms"], "join, ms": 0.0, "sent, bytes": 0.0}
    sent = [make(number, rank, True).own_ids for rank in range(number)]
    own = make(number, 0, True)
    return found | {
        "own rows, ms": worked_ms(lambda: make(number, 0, True).prepare()),
        "join, ms": worked_ms(lambda: own.joined(sent).prepare()),
        "sent, bytes": float(sum(ids.nbytes for ids in sent[0])),
    }


def speeds(reading_ms: float, planned: dict[str, float], rows: int) -> dict[str, float]:
    """Rows of the log per second that a worker reads and plans, in both ways."""
    whole = 1000 * rows / (reading_ms + planned["whole, ms"])
    joint = 1000 * rows / (reading_ms + planned["own rows, ms"] + planned["join, ms"])
    return {"whole, rows/s": whole, "together, rows/s": joint, "ratio": joint / whole}


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
