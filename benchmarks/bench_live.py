"""Measures the seconds from the close of an interval until the trainer has learned from it.

Runs three processes: one writes impressions (26 features of 100,000 buckets, whole numbers) and clicks in real time, a
file of each kind per second; `ctr ingest events --follow` joins and publishes intervals of ten seconds; `ctr train
--follow` trains on them. An interval is closed when its end, the click window and the allowed delay of arrivals have
passed on the wall clock: from then on only computation takes time. The limit is starts of processes, and files.

    python benchmarks/bench_live.py [--seconds 180] [--events-per-second 2000]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from bench_events import feature_columns, mapping_content
from runner import main

from ctr.data.parquet_files import parquet_bytes
from ctr.io.files import write_atomic_bytes

INTERVAL, WINDOW, DELAY = 10, 5, 3
CONFIG = {"batch": {"rows": 4096, "within_partitions": True}, "record_predictions": False}


def write_live(folder: Path, seconds: float, rate: int) -> None:
    """Writes, once per second, the impressions and clicks of the last second, ``rate`` impressions per second."""
    rng = np.random.default_rng(1)
    number, clicks_to_come = 0, np.zeros((0, 2), np.int64)
    begun = moment = time.time_ns() // 1000
    while moment < begun + seconds * 1e6:
        time.sleep(max(0.0, moment / 1e6 + 1 - time.time()))
        now = time.time_ns() // 1000
        shown_at = np.repeat(np.sort(rng.integers(moment, now, rate // 4)), 4)
        ids = np.arange(number, number + len(shown_at))
        table = {
            "impression_id": ids,
            "query_id": ids // 4,
            "event_time": shown_at,
            "arrival_time": np.full(len(shown_at), now),
            **feature_columns(rng, len(shown_at)),
        }
        clicked = rng.random(len(shown_at)) < 0.1
        later = shown_at[clicked] + (rng.random(clicked.sum()) * 1e6 * WINDOW).astype(np.int64)
        clicks_to_come = np.concatenate([clicks_to_come, np.stack([ids[clicked], later], 1)])
        happened = clicks_to_come[:, 1] <= now
        click = clicks_to_come[happened]
        clicks_to_come = clicks_to_come[~happened]
        clicks = {
            "impression_id": click[:, 0],
            "event_time": click[:, 1],
            "arrival_time": np.full(len(click), now),
        }
        for kind, columns in (("impressions", table), ("clicks", clicks)):
            write_atomic_bytes(folder / kind / f"{now}.parquet", parquet_bytes(pa.table(columns)))
        number, moment = number + len(shown_at), now


def run_live(folder: Path, seconds: float, rate: int) -> dict[str, Any]:
    """Runs all programs; returns the delays of the intervals, in seconds, without the first three, which warm up."""
    (folder / "mapping.yaml").write_text(
        yaml.safe_dump(mapping_content(f"{INTERVAL}s", f"{WINDOW}s", f"{DELAY}s"))
    )
    (folder / "train.yaml").write_text(yaml.safe_dump(CONFIG))
    for kind in ("impressions", "clicks"):
        (folder / "events" / kind).mkdir(parents=True)
    log, run = folder / "log", folder / "run"
    ctr = [sys.executable, "-m", "ctr"]
    live = ["--follow", "--poll", "0.2"]
    events = [folder / "events", "--mapping", folder / "mapping.yaml"]
    ingest = [*ctr, "ingest", "events", *events, "--out", log, *live]
    train = [*ctr, "train", log, "--config", folder / "train.yaml", "--out", run, *live]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with (
        (folder / "programs.log").open("wb") as output,
        subprocess.Popen(ingest, env=environment, stdout=output, stderr=output) as joiner,
        subprocess.Popen(train, env=environment, stdout=output, stderr=output) as trainer,
    ):
        try:
            write_live(folder / "events", seconds, rate)
            time.sleep(INTERVAL)
            ended = [process.poll() for process in (joiner, trainer)]
        finally:
            for process in (joiner, trainer):
                process.terminate()
    if ended != [None, None]:
        raise SystemExit(f"a program ended: {(folder / 'programs.log').read_text()[-2000:]}")
    delays, published, rows = [], [], 0
    for line in (run / "follow.jsonl").read_text().splitlines():
        content = json.loads(line)
        rows = content["position"]
        for start, end, waited in content["partitions"]:
            name = f"{start:019d}-{end:019d}.json"
            appeared = (log / "manifests" / name).stat().st_mtime
            published.append(appeared - (end / 1e6 + WINDOW + DELAY))
            delays.append(published[-1] + waited)
    steady, early = delays[3:], published[3:]
    if not steady:
        raise SystemExit(f"nothing was trained on: {(folder / 'programs.log').read_text()[-2000:]}")
    return {
        "intervals": len(steady),
        "rows": rows,
        "published_p50": float(np.median(early)),
        "trained_p50": float(np.median(steady)),
        "trained_p90": float(np.quantile(steady, 0.9)),
        "trained_max": max(steady),
    }


def measure(seconds: float = 180.0, events_per_second: int = 2000) -> dict[str, Any]:
    """Measures the delays in a temporary directory."""
    with tempfile.TemporaryDirectory() as folder:
        return run_live(Path(folder), seconds, events_per_second)


if __name__ == "__main__":
    main(measure, {"seconds": 75.0, "events_per_second": 200})
