"""Measures events per second of ``ctr ingest events``: join, sample, publish, from Parquet files to a log.

Generates impressions with 26 features of 100,000 buckets each, whole numbers (Zipf 1.2, four impressions a query), and
clicks on a tenth of them, all arriving up to minutes late; joins them, and samples the non-clicks to a quarter.
Compares with a row-wise Beam join on fewer events (dictionaries, `CoGroupByKey` by impression id), and with reading
the events and writing the same shards without a join, the fastest that any job could be. ``--raw`` adds the
simulator's raw strings, ``--memory`` the peak memory for this log and for one of ten times its length.

    python benchmarks/bench_events.py [--impressions 4000000] [--raw] [--memory]
"""

import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions
from processes import run_python
from runner import main

from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.data.log import read_manifests
from ctr.data.parquet_files import parquet_bytes
from ctr.data.shards import read_shard
from ctr.pipelines.events.follow import ingest_events

FEATURES, BUCKETS, ZIPF = 26, 100_000, 1.2
PER_QUERY, CLICK_RATE, NON_CLICK_RATE = 4, 0.1, 0.25
INTERVAL_ROWS = 166_000
HOUR_US, START_US = 3_600_000_000, 1_767_571_200_000_000
ROWWISE_IMPRESSIONS = 20_000


def mapping_content(partition: str, click_window: str, delay: str) -> dict[str, Any]:
    """Returns the content of a mapping file for impressions with ``FEATURES`` integer categories, and their clicks."""
    keys = {
        "input": {"type": "parquet"},
        "time": {"column": "event_time", "unit": "us"},
        "arrival": {"column": "arrival_time", "unit": "us"},
        "impression_id": "impression_id",
    }
    names = [f"f{number}" for number in range(FEATURES)]
    return {
        "impressions": {**keys, "query_id": "query_id"},
        "clicks": keys,
        **{"partition": partition, "click_window": click_window, "delay": delay},
        "features": [
            {"name": name, "kind": "category", "source": name, "buckets": BUCKETS} for name in names
        ],
    }


def mapping() -> EventMapping:
    """Returns the mapping of this benchmark's events, whose non-clicks are sampled."""
    content = mapping_content("1h", "30m", "10m")
    content["sampling"] = {"name": "quarter", "rule": {"non_click_rate": NON_CLICK_RATE}}
    return parse_model(EventMapping, content, "benchmark")


def feature_columns(random: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Draws the values of each feature, int64 [rows], by Zipf's law."""
    return {f"f{number}": random.zipf(ZIPF, rows) % (BUCKETS - 1) + 1 for number in range(FEATURES)}


def make_events(folder: Path, impressions: int, hour_rows: int = INTERVAL_ROWS) -> int:
    """Writes files of one hour each, in the order of arrival; returns the number of their events."""
    rng = np.random.default_rng(1)
    events = 0
    for hour in range(max(1, impressions // hour_rows)):
        shown_at = np.sort(rng.integers(0, HOUR_US, hour_rows // PER_QUERY)) + START_US + hour * HOUR_US
        shown_at = np.repeat(shown_at, PER_QUERY)
        count = len(shown_at)
        number = np.arange(hour * count, (hour + 1) * count)
        columns = {
            "impression_id": number * 2_654_435_761 % 2**61,
            "query_id": number // PER_QUERY,
            "event_time": shown_at,
            "arrival_time": shown_at + rng.exponential(10e6, count).astype(np.int64),
            **feature_columns(rng, count),
        }
        clicked = rng.random(count) < CLICK_RATE
        moment = shown_at[clicked] + 1 + rng.exponential(60e6, clicked.sum()).astype(np.int64)
        clicks = {
            "impression_id": columns["impression_id"][clicked],
            "event_time": moment,
            "arrival_time": moment + rng.exponential(10e6, len(moment)).astype(np.int64),
        }
        for kind, table in (("impressions", columns), ("clicks", clicks)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            order = pa.array(np.argsort(table["arrival_time"], kind="stable"))
            content = parquet_bytes(pa.table(table).take(order))
            (folder / kind / f"{hour:05d}.parquet").write_bytes(content)
            events += len(order)
    return events


def read_and_write(folder: Path, log: Path) -> float:
    """Returns the seconds to read all events and to encode the shards of a log again."""
    schema = mapping().feature_schema
    tables = [read_shard(log, entry, schema) for manifest in read_manifests(log) for entry in manifest.shards]
    begun = time.perf_counter()
    for path in folder.glob("*/*.parquet"):
        pq.read_table(path, page_checksum_verification=True)
    for table in tables:
        parquet_bytes(table)
    return time.perf_counter() - begun


def rowwise(folder: Path) -> tuple[int, float]:
    """Joins events row by row in Beam; returns the number of events, and seconds."""
    impressions = pq.read_table(folder / "impressions" / "00000.parquet").slice(0, ROWWISE_IMPRESSIONS)
    impression_ids = set(impressions.column("impression_id").to_pylist())
    clicks = pq.read_table(folder / "clicks" / "00000.parquet").to_pylist()
    clicks = [row for row in clicks if row["impression_id"] in impression_ids]
    rows = impressions.to_pylist()

    def label(element: Any) -> Any:
        return [
            {**row, "label": int(any(element[1]["clicks"]))} for row in list(element[1]["impressions"])[:1]
        ]

    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
            keyed = {
                kind: pipeline
                | f"Create {kind}" >> beam.Create(elements)
                | f"Key {kind}" >> beam.Map(lambda row: (row["impression_id"], row))
                for kind, elements in (("impressions", rows), ("clicks", clicks))
            }
            fields = [*impressions.schema, pa.field("label", pa.int64())]
            _ = (
                keyed
                | beam.CoGroupByKey()
                | beam.FlatMap(label)
                | beam.io.WriteToParquet(f"{out}/part", pa.schema(fields))
            )
        return len(rows) + len(clicks), time.perf_counter() - begun


def raw_events(folder: Path, examples: int) -> tuple[int, float]:
    """Ingests the simulator's raw events; returns their number, and the seconds to make a log of them."""
    from ctr.simulator.config import SimulatorConfig
    from ctr.simulator.simulate import simulate

    config = SimulatorConfig(examples=examples, queries_per_day=200_000)
    counts = simulate(config, folder / "log", events=folder / "events")
    simulated = load_event_mapping(Path(__file__).parent.parent / "examples/events/simulated.yaml")
    begun = time.perf_counter()
    ingest_events(simulated, [folder / "events"], folder / "joined")
    return counts["delivered_impressions"] + counts["delivered_clicks"], time.perf_counter() - begun


def peak_megabytes(impressions: int) -> float:
    """Returns the peak memory, in MiB, of a separate process that ingests ``impressions`` impressions."""
    with tempfile.TemporaryDirectory() as folder:
        run_python(["-c", f"from bench_events import *; make_events(Path({folder!r}), {impressions})"])
        joined = f"from bench_events import *; ingest_events(mapping(), [Path({folder!r})], Path({folder!r}) / 'log')"
        return run_python(["-c", joined])[0].peak_bytes / 2**20


def measure(
    impressions: int = 4_000_000, raw: bool = False, memory: bool = False, partition_rows: int = INTERVAL_ROWS
) -> dict[str, Any]:
    """Measures events per second; with ``raw`` also of raw strings, with ``memory`` also peak memory."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_events(folder / "first", partition_rows, partition_rows)
        # Beam loads much with its first pipeline.
        ingest_events(mapping(), [folder / "first"], folder / "warm")
        events = make_events(folder / "events", impressions, partition_rows)
        begun = time.perf_counter()
        ingest_events(mapping(), [folder / "events"], folder / "log")
        rate = events / (time.perf_counter() - begun)
        least = read_and_write(folder / "events", folder / "log")
        rows, rows_seconds = rowwise(folder / "first")
        results = {
            "events": events,
            "events_per_second": rate,
            "times_read_and_write_alone": events / rate / least,
            "rowwise_events_per_second": rows / rows_seconds,
            "ratio_to_rowwise": rate / (rows / rows_seconds),
        }
        if raw:
            count, raw_seconds = raw_events(folder / "raw", impressions // 4)
            results["raw_events_per_second"] = count / raw_seconds
    if memory:
        results["peak_mb"] = peak_megabytes(impressions)
        results["peak_mb_ten_times"] = peak_megabytes(10 * impressions)
    return results


if __name__ == "__main__":
    main(measure, {"impressions": 2000, "partition_rows": 1000})
