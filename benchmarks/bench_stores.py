"""A log in an object store beside the same log on disk: rows a second that are read, seconds to publish.

    python benchmarks/bench_stores.py [--partitions 4] [--partition-rows 500000] [--latency-ms 20]

The store is moto's S3 in memory, in a process of its own; each request waits on the way to it, in another process.
Each time, a log is read with an empty cache. The ratios of reading are to what the training step of the reference model
needs: reading delays no step where they are above 1. Beside them is what this server gives when the objects of the
shards are read and nothing else is done: it is written in Python, and shares the processors with what it serves.
"""

import contextlib
import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

import numpy as np
import obstore
from obstore.store import from_url
from own import make_model
from reference import (
    ADAGRAD,
    REFERENCE,
    SLATE,
    TINY,
    Size,
    click_labels,
    publish_rows,
    reference_schema,
    zipf_ids,
)
from runner import Arm, Numbers, compare, main

from ctr.data.log import create_log, read_manifests, read_schema
from ctr.data.reader import read_rows
from ctr.io.paths import read_path, with_content
from ctr.io.stores import pulls_anew, remove_folder
from services import said, service
from stores import environment, make_bucket, store_server

BUCKET = "benchmark"
AT_ONCE = 8
"""Objects that are read at the same time where nothing else is done with them."""

Part = tuple[np.ndarray, np.ndarray, np.ndarray, int]


@contextlib.contextmanager
def slow_store(folder: Path, seconds: float) -> Iterator[str]:
    """Makes an empty bucket that each request reaches so much later; yields its address, s3://BUCKET."""
    script = Path(__file__).parent / "parts" / "slow_way.py"
    with store_server("s3", folder) as server:
        make_bucket("s3", server, BUCKET)
        command = [sys.executable, script, server.removeprefix("http://"), str(seconds)]
        ready = functools.partial(said, re.compile(r"serves at (\S+)"))
        with service("slow way", command, folder / "slow_way.log", ready) as address:
            os.environ.update(environment("s3", address))
            yield f"s3://{BUCKET}"


def make_parts(partitions: int, rows: int, size: Size) -> list[Part]:
    """Makes ids, labels, queries and the number of the first row of each partition."""
    random = np.random.default_rng(1)
    parts = []
    for first in range(0, partitions * rows, rows):
        ids = zipf_ids(random, rows, size)
        parts.append((ids, click_labels(random, ids), (first + np.arange(rows)) // SLATE, first))
    return parts


def publish_log(log: Path, parts: list[Part], size: Size) -> float:
    """Publishes a log; returns the seconds that its partitions took."""
    schema = reference_schema(size)
    create_log(log, schema)
    begun = time.perf_counter()
    for part in parts:
        publish_rows(log, schema, *part)
    return time.perf_counter() - begun


class Place:
    """A folder, or an address of a store, as a machine finds it that has never seen it."""

    def __init__(self, address: str, caches: Path) -> None:
        self.address, self._caches, self._number = address, caches, count()

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Yields the path of what has this name here."""
        with tempfile.TemporaryDirectory(dir=self._caches) as cache, pulls_anew():
            os.environ["CTR_CACHE"] = cache
            yield with_content(read_path(f"{self.address}/{name}"))

    def publishes(self, parts: list[Part], size: Size) -> Arm:
        """Returns an arm that publishes partitions to a new log, which is deleted."""

        def turn() -> Numbers:
            with self.opened(f"new-{next(self._number)}") as log:
                seconds = publish_log(log, parts, size)
                remove_folder(log)
            return {"seconds": seconds}

        return turn

    def opens(self, name: str) -> Arm:
        """Returns an arm that reads the manifests of a log, and all else but rows."""

        def turn() -> Numbers:
            begun = time.perf_counter()
            with self.opened(name) as log:
                read_schema(log), read_manifests(log)
                return {"seconds": time.perf_counter() - begun}

        return turn

    def reads(self, name: str) -> Arm:
        """Returns an arm that reads all rows of a log whose manifests are read."""

        def turn() -> Numbers:
            with self.opened(name) as log:
                schema, manifests = read_schema(log), read_manifests(log)
                begun = time.perf_counter()
                rows = sum(map(len, read_rows(log, schema, manifests)))
                return {"rows_per_second": rows / (time.perf_counter() - begun)}

        return turn


def gets(names: list[str], rows: int, at_once: int) -> Arm:
    """Returns an arm that reads objects, of so many rows together, and does nothing with them."""
    store = from_url(f"s3://{BUCKET}")

    def turn() -> Numbers:
        begun = time.perf_counter()
        with ThreadPoolExecutor(at_once) as threads:
            for _ in threads.map(lambda name: obstore.get(store, name).bytes(), names):
                pass
        return {"rows_per_second": rows / (time.perf_counter() - begun)}

    return turn


def puts(log: Path) -> Arm:
    """Returns an arm that writes the shards of a log as objects, one after the other, and does nothing else."""
    store = from_url(f"s3://{BUCKET}")
    shards = [path.read_bytes() for path in sorted((log / "shards").iterdir())]

    def turn() -> Numbers:
        begun = time.perf_counter()
        for number, content in enumerate(shards):
            obstore.put(store, f"put/{number}", content, use_multipart=False)
        return {"seconds": time.perf_counter() - begun}

    return turn


def measure(
    partitions: int = 4,
    partition_rows: int = 500_000,
    small_partitions: int = 200,
    small_rows: int = 5_000,
    latency_ms: float = 20.0,
    rounds: int = 5,
    tiny: bool = False,
) -> dict[str, Any]:
    """Rows a second of reading, and seconds of publishing."""
    size = TINY if tiny else REFERENCE
    logs = {
        "large": make_parts(partitions, partition_rows, size),
        "small": make_parts(small_partitions, small_rows, size),
    }
    model = make_model(size, ADAGRAD)
    found: dict[str, Any] = {}

    def step() -> Numbers:
        return {"rows_per_second": 1000 * size.batch / model.turn()["ms"]}

    with tempfile.TemporaryDirectory() as folder, slow_store(Path(folder), latency_ms / 1000) as bucket:
        disk, store = Place(folder, Path(folder)), Place(bucket, Path(folder))
        for name, parts in logs.items():
            for place in (disk, store):
                with place.opened(name) as log:
                    publish_log(log, parts, size)
            shards = sorted((Path(folder) / name / "shards").iterdir())
            names, rows = (
                [f"{name}/shards/{path.name}" for path in shards],
                sum(len(part[0]) for part in parts),
            )
            about = f"{len(parts)} partitions of {len(parts[0][0]):,} rows"
            found[f"bytes a row, {about}"] = sum(path.stat().st_size for path in shards) / rows
            found[f"reading {about}"] = compare(
                {
                    "what the step needs": step,
                    "from disk": disk.reads(name),
                    "from the store": store.reads(name),
                    "get of its objects, one by one": gets(names, rows, 1),
                    f"get of its objects, {AT_ONCE} at once": gets(names, rows, AT_ONCE),
                },
                rounds,
            )
            found[f"opening {about}"] = compare(
                {"on disk": disk.opens(name), "in the store": store.opens(name)}, rounds
            )
            found[f"publishing {about}"] = compare(
                {
                    "to disk": disk.publishes(parts, size),
                    "to the store": store.publishes(parts, size),
                    "put of its objects": puts(Path(folder) / name),
                },
                rounds,
            )
    return found


if __name__ == "__main__":
    quick = {"partitions": 2, "partition_rows": 2_000, "small_partitions": 3, "small_rows": 200}
    main(measure, {**quick, "latency_ms": 1.0, "rounds": 1, "tiny": True})
