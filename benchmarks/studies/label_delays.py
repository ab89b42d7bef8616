"""What a conversion's delay costs: labels that wait, corrected ones, late ones taken for negatives, known at once.

    python benchmarks/study.py label_delays OUT [--days 12] [--queries 3000] [--window 2d]

A simulated log, whose clicks convert by hidden effects of ad and user, with exponential delays of a day on average. In
the second half twice as many do as in the first. Each arm is a run; conversions within the window are the truth that
all are measured by, over the clicks whose window ends within the log, before and after the change.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ctr.cli import main as ctr
from ctr.config import parse_model
from ctr.data.labels import SIDECAR
from ctr.data.log import read_manifests, read_schema
from ctr.data.reader import join_rows, read_rows
from ctr.data.sidecar import write_sidecar_partition
from ctr.data.times import DAY_US, duration_us
from ctr.eval.progressive import ProgressiveMetrics
from ctr.io.hashing import uniform_hash
from ctr.training.config import TrainConfig
from ctr.training.loop import train

MEAN_DELAY = 86_400.0
RATES = (0.15, 0.3)


def draw_delays(ids: np.ndarray, times: np.ndarray, example_id: np.ndarray, change: int) -> np.ndarray:
    """Seconds from each query to its conversion, NaN for none: as if all rows were clicked."""
    base = np.where(times < change, *(np.log(rate / (1 - rate)) for rate in RATES))
    effects = [1.2 * np.sqrt(12) * (uniform_hash(ids[:, place], f"{place}") - 0.5) for place in (0, 1)]
    converts = uniform_hash(example_id, "converts") < 1 / (1 + np.exp(-(base + sum(effects))))
    delay = -MEAN_DELAY * np.log1p(-uniform_hash(example_id, "delay"))
    return np.where(converts, delay, np.nan)


def make_log(folder: Path, days: int, queries: int, window: float) -> tuple[Path, int]:
    """Simulates a log, with ``sale`` and, known at once, ``oracle``; returns it and the time of the change."""
    log = folder / "log"
    if not log.exists():
        ctr(["-q", "simulate", "--days", str(days), "--set", f"queries_per_day={queries}", "--out", str(log)])
    schema, manifests = read_schema(log), read_manifests(log)
    change = (manifests[0].start // DAY_US + days // 2) * DAY_US
    for number, manifest in enumerate(manifests):
        first = sum(one.rows for one in manifests[:number])
        rows = join_rows(list(read_rows(log, schema, manifests[: number + 1], first)))
        delay = draw_delays(rows.ids, rows.query_time, rows.example_id, change)
        always, now = np.full(len(rows), np.inf), np.where(delay <= window, 0.0, np.nan)
        columns = {"example_id": rows.example_id, "known:sale": always, "known:oracle": always}
        columns |= {
            f"after:{name}": pa.array(one, from_pandas=True)
            for name, one in (("sale", delay), ("oracle", now))
        }
        write_sidecar_partition(log, SIDECAR, manifest, pa.table(columns))
    return log, change


def arms(window: float) -> dict[str, tuple[str, dict[str, Any]]]:
    """By arm the label and how it is learned; ``naive`` takes what has not come after an hour for a negative."""
    return {
        "oracle": ("oracle", {"kind": "wait", "window": 0}),
        "correct": ("sale", {"kind": "correct", "window": window, "at": [6 * 3600.0, 86_400.0]}),
        "correct once": ("sale", {"kind": "correct", "window": window}),
        "wait": ("sale", {"kind": "wait", "window": window}),
        "naive": ("sale", {"kind": "wait", "window": 3600}),
    }


def measure(run: Path, label: str, log: Path, change: int, window: float) -> dict[str, float]:
    """Logloss and predicted over actual conversions of clicks, before and after the change."""
    table = pd.concat(pd.read_parquet(part) for part in sorted((run / "predictions").glob("*.parquet")))
    rows = join_rows(list(read_rows(log, read_schema(log), read_manifests(log))))
    table = table.set_index("example_id").loc[rows.example_id]
    truth = draw_delays(rows.ids, rows.query_time, rows.example_id, change) <= window
    begin, end = rows.query_time[0] + window * 1e6, rows.query_time[-1] - window * 1e6
    found: dict[str, float] = {}
    for name, inside in {
        "before": (rows.query_time >= begin) & (rows.query_time < change),
        "two days after": (rows.query_time >= change) & (rows.query_time < min(end, change + 2 * DAY_US)),
        "later": (rows.query_time >= change + 2 * DAY_US) & (rows.query_time < end),
    }.items():
        chosen = inside & (rows.label == 1)
        metrics, logit = ProgressiveMetrics(), table[f"logit_{label}"].to_numpy()[chosen]
        metrics.update(truth[chosen], logit, np.ones(len(logit)), rows.query_id[chosen])
        line = metrics.headline()
        keys = "examples", "logloss", "auc", "calibration_ratio"
        found |= {f"{name}: {key}": float(np.nan if line[key] is None else line[key]) for key in keys}
    return found


def main() -> None:
    """Trains all arms and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--days", type=int, default=12)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--window", default="2d")
    given = parser.parse_args()
    window = duration_us(given.window) / 1e6
    log, change = make_log(given.out, given.days, given.queries, window)
    results = {}
    for arm, (label, delay) in arms(window).items():
        content = {"objective": {"labels": {label: {"delay": delay}}}, "metrics": {"importance_rows": 0}}
        config = parse_model(TrainConfig, content, arm)
        train(log, config, given.out / arm.replace(" ", "-"))
        results[arm] = measure(given.out / arm.replace(" ", "-"), label, log, change, window)
        print(arm, {name: round(value, 4) for name, value in results[arm].items()}, flush=True)
    print(pd.DataFrame(results).round(4).to_string())


if __name__ == "__main__":
    main()
