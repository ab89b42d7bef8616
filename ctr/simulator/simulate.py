"""Simulated log: each day is a partition, with sidecars of what only the simulator knows; and the record of a loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr.config import dump_yaml, load_model
from ctr.data.log import Manifest, create_log, read_manifests
from ctr.data.shards import publish_partition, read_shard
from ctr.data.sidecar import read_sidecar_partition, write_sidecar_partition
from ctr.eval.ads_churn import SHOWN_FILE
from ctr.io.errors import InputError
from ctr.io.files import create_exclusively, write_atomic
from ctr.simulator.auction import Policy, crude_policy
from ctr.simulator.config import DAY_US, SimulatorConfig, WorldConfig
from ctr.simulator.day import (
    ADS_PER_QUERY_LIMIT,
    QUERIES_PER_DAY_LIMIT,
    Day,
    Served,
    days,
    log_rows,
    make_world,
    serve,
)
from ctr.simulator.events import EventFiles
from ctr.simulator.features import FeatureIds, world_schema
from ctr.simulator.folders import WORLD_FILE, check_simulation, check_world
from ctr.simulator.traffic import Queries, draw_queries
from ctr.simulator.world import World

TRUTH = "truth"
"""The sidecar with what is true of each example: the ``probability`` of a click, which is ``quality`` times
``visibility`` (float32), and whether the user ``examined`` it (bool). Training never reads it.
"""

AUCTION = "auction"
"""The sidecar with how each example came to be shown: the ``predicted`` click probability, the ``bid``, the ``price``
of a click (float32), and whether its query was ``randomized`` (bool).
"""


@dataclass
class Counts:
    """Counts of a simulation: of all queries that the log could have, and those that showed something."""

    examples: int = 0
    queries: int = 0
    answered: int = 0
    clicks: int = 0
    partitions: int = 0
    randomized: int = 0
    revenue: float = 0.0
    expected_clicks: float = field(default=0.0, repr=False)

    def as_dict(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name != "expected_clicks"}
        return {
            **counts,
            "revenue": round(self.revenue, 2),
            "ctr": self.clicks / max(self.examples, 1),
            "mean_probability": self.expected_clicks / max(self.examples, 1),
            "ads_per_query": self.examples / max(self.queries, 1),
        }


def simulate(
    config: SimulatorConfig,
    out: Path,
    progress: Callable[[int], None] | None = None,
    randomized: Path | None = None,
    events: Path | None = None,
) -> dict[str, Any]:
    """Writes a log of the crude policy, with the sidecars ``TRUTH`` and ``AUCTION``. The same config, the same bytes.

    Continues a log that an interrupted run of the same config left. ``randomized`` is the folder of a second log, of
    the examples of randomized queries alone; ``events`` that of the traffic as raw events. Returns ``Counts`` of both.
    Raises InputError: a folder holds something else, for example the log of another world.
    """
    if randomized is not None and randomized.resolve() == out.resolve():
        raise InputError(
            f"{randomized}: is the log itself; use another output directory for the randomized traffic"
        )
    world = make_world(config.world)
    folders = [folder for folder in (out, randomized) if folder is not None]
    check_simulation(folders, events)
    for folder in folders:
        begin_log(config.world, folder)
    ids, counts = FeatureIds(world, world_schema(config)), Counts()
    files = None if events is None else EventFiles(config, events, ids)
    policy = crude_policy(config, world)
    for day in islice(days(config.world, world), config.days):
        left = None if config.examples is None else config.examples - counts.examples
        publish_day(config.world, world, ids, day, policy, folders, counts, left, files)
        if progress is not None:
            progress(counts.examples)
        if counts.examples == config.examples:
            break
    return {**counts.as_dict(), **(files.finish() if files is not None else {})}


def begin_log(config: WorldConfig, folder: Path) -> None:
    """Makes a folder a log of this world, or checks that it is one; raises InputError where it holds something else."""
    create_log(folder, world_schema(config))
    path = folder / WORLD_FILE
    if create_exclusively(path, dump_yaml(config).encode()):
        return
    found = read_world(folder)
    for name in WorldConfig.model_fields:
        old, new = getattr(found, name), getattr(config, name)
        if old != new:
            raise InputError(
                f"{path}: this log is of another world: its {name} is {old}, not {new}; use another output directory"
            )


def read_world(log: Path) -> WorldConfig:
    """Reads the settings of a simulated log's world. Raises InputError for a log that was not simulated."""
    return load_model(WorldConfig, check_world(log), "world")


def publish_day(
    config: WorldConfig,
    world: World,
    ids: FeatureIds,
    day: Day,
    policy: Policy,
    folders: Sequence[Path],
    counts: Counts,
    most: int | None = None,
    events: EventFiles | None = None,
) -> None:
    """Serves a day, cut at ``most`` examples, and publishes its impressions, which are added to ``counts``.

    The first folder is the log's; the others get randomized queries alone.
    """
    ids.begin_day(day.queries, day.ads)
    first_day = config.start_us // DAY_US
    parts: list[tuple[pa.Table, ...]] = []
    left = most
    for served in serve(config, world, day, policy):
        parts.append((log_rows(ids, day, first_day, served), *_sidecars(day, served)))
        if events is not None:
            has = logged_queries(config, served.queries)[served.impressions.query]
            kept = np.flatnonzero(has)[:left]
            events.add(served, parts[-1][0], kept)
            left = None if left is None else left - len(kept)
    tables = [pa.concat_tables(column) for column in zip(*parts, strict=True)]
    drawn = tables[2].column("randomized")
    in_log = None if config.randomized_in_log else pc.invert(drawn)
    logged = tables if in_log is None else [table.filter(in_log) for table in tables]
    apart = [table.filter(drawn) for table in tables]
    if most is not None and len(logged[0]) >= most:
        logged = [table.slice(0, most) for table in logged]
        last = logged[0].column("example_id")[-1]
        begun = pc.less_equal(apart[0].column("example_id"), last)
        apart = [table.filter(begun) for table in apart]
        begun_queries = last.as_py() // ADS_PER_QUERY_LIMIT % QUERIES_PER_DAY_LIMIT + 1
    else:
        begun_queries = len(day.queries)
    counts.queries += int(logged_queries(config, day.queries)[:begun_queries].sum())
    manifest = _publish(folders[0], config, day, *logged)
    counts.examples += manifest.rows
    counts.answered += manifest.queries
    counts.clicks += manifest.clicks
    counts.partitions += 1
    counts.randomized += len(apart[0])
    rows, truth, auction = logged
    clicked = rows.column("label").to_numpy() > 0
    counts.revenue += float(auction.column("price").to_numpy()[clicked].sum(dtype=np.float64))
    counts.expected_clicks += float(truth.column("probability").to_numpy().sum(dtype=np.float64))
    for folder in folders[1:]:
        _publish(folder, config, day, *apart)


def logged_queries(config: WorldConfig, queries: Queries) -> np.ndarray:
    """Finds the queries whose ads are in the log, bool [Q]."""
    return config.randomized_in_log | ~queries.randomized


def _sidecars(day: Day, served: Served) -> tuple[pa.Table, pa.Table]:
    shown = served.impressions
    truth = {
        "probability": served.quality * served.visibility,
        "quality": served.quality,
        "visibility": served.visibility,
        "examined": served.examined,
    }
    auction = {
        "predicted": shown.predicted,
        "bid": day.ads.bid[shown.ad].astype(np.float32),
        "price": shown.price,
        "randomized": served.queries.randomized[shown.query],
    }
    return pa.table(truth), pa.table(auction)


def _publish(
    folder: Path, config: WorldConfig, day: Day, rows: pa.Table, truth: pa.Table, auction: pa.Table
) -> Manifest:
    start = config.day_us(day.number)
    manifest = publish_partition(folder, world_schema(config), start, start + DAY_US, rows)
    for name, table in ((TRUTH, truth), (AUCTION, auction)):
        table = table.add_column(0, "example_id", rows.column("example_id"))
        write_sidecar_partition(folder, name, manifest, table)
    return manifest


def record_days(config: WorldConfig, world: World, out: Path, first: int) -> list[dict[str, Any]]:
    """Writes how many ads each query of the days from ``first`` on showed, and returns the counts of each day."""
    counts, parts = [], []
    for number, manifest in enumerate(read_manifests(out / "log")[first:], first):
        queries = draw_queries(config, world, number)
        # The log does not have the other queries, so it is unknown how many ads they showed.
        kept = logged_queries(config, queries)
        base = (config.start_us // DAY_US + number) * QUERIES_PER_DAY_LIMIT
        # A day on which nothing was shown has no shards.
        shown, label = [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        for entry in manifest.shards:
            rows = read_shard(out / "log", entry, world_schema(config))
            shown.append(rows.column("query_id").to_numpy() - base)
            label.append(rows.column("label").to_numpy())
        price = read_sidecar_partition(out / "log", AUCTION, manifest).column("price").to_numpy()
        columns = {
            "day": np.full(kept.sum(), number, np.int32),
            "query_id": (base + queries.number)[kept],
            "randomized": queries.randomized[kept],
            "ads": np.bincount(np.concatenate(shown), minlength=len(queries))[kept].astype(np.int16),
        }
        parts.append(pa.table(columns))
        of_day = {
            "day": number,
            "queries": int(kept.sum()),
            "answered": manifest.queries,
            "examples": manifest.rows,
            "clicks": manifest.clicks,
            "revenue": round(float(price[np.concatenate(label) > 0].sum(dtype=np.float64)), 2),
            "ads_per_query": manifest.rows / max(int(kept.sum()), 1),
        }
        counts.append(of_day)
    write_atomic(out / SHOWN_FILE, lambda stream: pq.write_table(pa.concat_tables(parts), stream))
    return counts
