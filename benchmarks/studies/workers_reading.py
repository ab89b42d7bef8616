"""Measures a worker's time for reading and planning batches, by part, and the rows per second that this allows.

    python benchmarks/study.py workers_reading [--batch 4096] [--workers 1 2 4 8 16 32] [--batches 64]

For the reference model with growing ids (``--growing no``: with fixed ones), measures the processor time of one thread
of the first of W workers, each of which trains on ``--batch`` rows of a batch. All workers read all rows: they form
the same batches, refuse the same faulty rows, and each plans whole batches.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ctr_model import benchmark_config
from reference import ADAGRAD, Size, make_log
from runner import main, processor_ms

from ctr.data.batches import Batch, set_rejects_apart, whole_query_batches
from ctr.data.reader import read_rows
from ctr.data.shards import read_shard
from ctr.io.files import file_sha256
from ctr.training.division import Placement
from ctr.training.feed import make_feed
from ctr.training.inputs import open_inputs
from ctr.workers.parts import Deal

IDS = "ids"
ROUNDS = 5
ALL = "the same, and form batches"


def worked_ms(call: Callable[[], object]) -> float:
    """Returns the processor time of a call in milliseconds, the minimum of ``ROUNDS``."""
    return min(processor_ms(call) for _ in range(ROUNDS))


def measure(
    batch: int = 4096,
    batches: int = 64,
    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    growing: str = "yes",
) -> dict[str, Any]:
    """Measures milliseconds of reading, per ``batch`` log rows, and of planning, and rows of the log per second."""
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

        table = {}
        for number in workers:
            placement = Placement(Deal(0, number), (number > 1,) * len(layouts))
            whole = set_rejects_apart(rows.slice(0, min(number * batch, len(rows))))
            options = {"ids": config.ids, "placement": placement}

            def plan(whole: Batch = whole, number: int = number, options: Any = options) -> None:
                make_feed(whole, layouts, number * batch, config.objective, **options).prepare()

            ms = worked_ms(plan)
            speed = 1000 * number * batch / (number * reading[ALL] + ms)
            table[f"{number} worker(s)"] = {"ms": ms, "rows/s, with reading": speed}
        return {
            "bytes on the disk": {name: per_batch * size for name, size in column_bytes(files).items()},
            "ms to read": reading,
            "planning": table,
        }


def column_bytes(files: list[Path]) -> dict[str, int]:
    """Returns the compressed bytes on disk of ids and of all other columns."""
    sizes = {IDS: 0, "others": 0}
    for path in files:
        metadata = pq.ParquetFile(path).metadata
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                is_id = column.path_in_schema.partition(".")[0] == IDS
                sizes[IDS if is_id else "others"] += column.total_compressed_size
    return sizes


if __name__ == "__main__":
    main(measure, {"batch": 64, "batches": 2, "workers": (1, 2)})
