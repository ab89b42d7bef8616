"""Rows a second of ``ctr evaluate`` in one process, against the same metrics fed file by file without Beam.

Makes predictions of whole queries in files of a million rows, as a training run writes them, and measures both
ways over them, reading included.

    python benchmarks/bench_evaluate.py [--rows 4000000]
"""

import logging
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from runner import main

from ctr.eval.progressive import ProgressiveMetrics

FILE_ROWS = 1_000_000
QUERY_ROWS = 8
CLICK_RATE = 0.1


def make_predictions(folder: Path, rows: int) -> list[Path]:
    """Files of whole queries of 1 to 15 rows, in the order of the log."""
    rng = np.random.default_rng(1)
    paths: list[Path] = []
    for begin in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - begin)
        query = np.repeat(np.arange(count), rng.integers(1, 2 * QUERY_ROWS, count))[:count] + begin
        table = pa.table(
            {
                "example_id": np.arange(begin, begin + count),
                "query_id": query * 7919,
                "query_time": query,
                "label": (rng.random(count) < CLICK_RATE).astype(np.int8),
                "train_weight": np.ones(count, np.float32),
                "metric_weight": np.ones(count, np.float32),
                "logit": rng.normal(-2, 1, count).astype(np.float32),
            }
        )
        paths.append(folder / f"{begin:012d}.parquet")
        pq.write_table(table, paths[-1], compression="zstd", write_page_checksum=True)
    return paths


def evaluate_locally(paths: list[Path]) -> dict[str, Any]:
    """The summary without Beam: right here, because no query lies in two files."""
    metrics = ProgressiveMetrics()
    for path in paths:
        table = pq.read_table(path, page_checksum_verification=True)
        names = ("label", "logit", "metric_weight", "query_id")
        metrics.update(*(table.column(name).to_numpy() for name in names))
    return metrics.summary()


def measure(rows: int = 4_000_000) -> dict[str, Any]:
    """Both ways, and that they agree."""
    logging.disable(logging.CRITICAL)
    from ctr.pipelines.evaluate.run import evaluate

    with tempfile.TemporaryDirectory() as folder:
        paths = make_predictions(Path(folder), rows)
        evaluate(paths[:1])  # Beam loads much of itself with its first pipeline.
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.perf_counter()
        summary = evaluate(paths)
        with_beam = time.perf_counter() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.perf_counter()
        expected = evaluate_locally(paths)
        locally = time.perf_counter() - begun
    for name in ("examples", "queries", "queries_scored"):
        assert summary[name] == expected[name], name
    for name in ("auc", "per_query_auc", "logloss", "normalized_entropy", "calibration_bias"):
        assert abs(summary[name] - expected[name]) < 1e-9, name
    return {
        "rows": rows,
        "rows_per_second": rows / with_beam,
        "rows_per_second_local": rows / locally,
        "ratio": with_beam / locally,
        "peak_mb": peak / 1024,
        "peak_mb_before": before / 1024,
    }


if __name__ == "__main__":
    main(measure, {"rows": 10_000})
