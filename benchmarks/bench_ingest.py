"""Measures rows per second of ``ctr ingest criteo``, from a text file to a published log. The limit is parsing alone.

Generates a file in the Criteo format with the shares of missing values and the numbers of distinct values of the
Kaggle set (45.8 million rows; a column of ten million values keeps its head and its long tail), ingests it,
and also measures how long the same machine takes to parse the file alone.

    python benchmarks/bench_ingest.py [--rows 2000000]
"""

import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from runner import main

from ctr.data.mapping import Mapping, load_format
from ctr.pipelines.tables.ingest import BLOCK_BYTES, ingest

DISTINCT = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
MISSING_CATEGORIES = {
    **dict.fromkeys((3, 4, 12, 16, 21), 0.034),
    **{6: 0.12, 19: 0.44, 20: 0.44, 22: 0.76},
}
MISSING_NUMBERS = (0.45, 0.0, 0.21, 0.22, 0.03, 0.22, 0.04, 0.0, 0.04, 0.45, 0.04, 0.76, 0.22)
NUMBER_SCALES = (3.5, 106.0, 27.0, 7.3, 18_500.0, 116.0, 16.0, 12.5, 106.0, 0.6, 2.7, 1.0, 8.2)
ZIPF = 1.1
CHUNK_ROWS = 250_000

_HEX = np.array([f"{value:04x}".encode() for value in range(1 << 16)]).view(np.uint32)


def hashed_strings(column: int, ranks: np.ndarray, missing: np.ndarray) -> pa.Array:
    """Converts ranks [N] to strings [N] of 8 hexadecimal digits, other ones in each column; null if ``missing``."""
    state = ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(column)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (state >> np.uint64(32)).astype(np.uint32)
    digits = np.stack([_HEX[values >> 16], _HEX[values & 0xFFFF]], axis=1)
    offsets = pa.py_buffer(np.arange(0, 8 * len(ranks) + 1, 8, dtype=np.int32))
    text = pa.StringArray.from_buffers(len(ranks), offsets, pa.py_buffer(digits.tobytes()))
    return pc.if_else(pa.array(missing), None, text)


def zipf_ranks(generator: np.random.Generator, distinct: int, rows: int) -> np.ndarray:
    """Draws ranks in [0, distinct), int64 [rows], whose probability falls like a power of the rank."""
    uniform = generator.random(rows)
    power = 1.0 - ZIPF
    ranks = ((float(distinct) ** power - 1.0) * uniform + 1.0) ** (1.0 / power)
    return np.minimum(ranks.astype(np.int64), distinct) - 1


def write_criteo(path: Path, rows: int, seed: int) -> None:
    """Writes a file of ``rows`` random rows in the Criteo format."""
    generator = np.random.default_rng(seed)
    options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        for first in range(0, rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, rows - first)
            columns = [pa.array((generator.random(count) < 0.25).astype(np.int8))]
            for missing, scale in zip(MISSING_NUMBERS, NUMBER_SCALES, strict=True):
                values = np.floor(scale * generator.lognormal(-1.0, 1.4, count)).astype(np.int64)
                columns.append(pa.array(values, mask=generator.random(count) < missing))
            for column, distinct in enumerate(DISTINCT, 1):
                absent = generator.random(count) < MISSING_CATEGORIES.get(column, 0.0)
                columns.append(hashed_strings(column, zipf_ranks(generator, distinct, count), absent))
            table = pa.table(columns, names=[f"c{number}" for number in range(len(columns))])
            pa_csv.write_csv(table, file, options)


def parse_alone(path: Path, mapping: Mapping) -> float:
    """Returns the seconds to parse the file with all columns as bytes and nothing else."""
    names = list(mapping.input.columns)
    started = time.perf_counter()
    reader = pa_csv.open_csv(
        path,
        pa_csv.ReadOptions(block_size=BLOCK_BYTES, column_names=names),
        pa_csv.ParseOptions(delimiter="\t", quote_char=False),
        pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary())),
    )
    for _ in reader:
        pass
    return time.perf_counter() - started


def peak_memory_mb() -> int:
    """Returns the peak resident memory of this process so far, in MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure(rows: int = 2_000_000, seed: int = 0, folder: Path | None = None) -> dict[str, Any]:
    """Measures ingestion from the text file to the log; files are in a temporary directory, below ``folder`` if set."""
    mapping = load_format("criteo")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        small, large, log = (Path(name) / file for file in ("warm.tsv", "train.tsv", "log"))
        # In a separate process, so that the peak memory of this one is the ingestion's.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(write_criteo, small, 1000, seed).result()
            process.submit(write_criteo, large, rows, seed).result()
        # The first use of TensorFlow's kernels takes a second or two, whatever the size of the input.
        ingest(mapping, [small], Path(name) / "warm")
        memory_before = peak_memory_mb()
        worked = time.process_time()
        result = ingest(mapping, [large], log)
        worked = time.process_time() - worked
        total, memory = result.seconds["total"], peak_memory_mb()
        return {
            "rows": result.rows,
            "input_mb": large.stat().st_size / 1e6,
            "log_mb": sum(path.stat().st_size for path in (log / "shards").iterdir()) / 1e6,
            "seconds_in_all": total,
            "cpu_us_per_row": 1e6 * worked / result.rows,
            "rows_per_second": result.rows / total,
            "mb_per_second": large.stat().st_size / 1e6 / total,
            "parse_alone_rows_per_second": result.rows / parse_alone(large, mapping),
            "peak_rss_mb": memory,
            "rss_before_mb": memory_before,
        }


if __name__ == "__main__":
    main(measure, {"rows": 3000})
