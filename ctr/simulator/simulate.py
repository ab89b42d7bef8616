"""Writes simulated logs: each day is a partition, with sidecars of the simulator's hidden values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.config import dump_yaml
from ctr.data.log import Manifest, create_log
from ctr.data.shards import publish_partition
from ctr.data.sidecar import write_sidecar_partition
from ctr.data.times import DAY_US
from ctr.io.errors import InputError
from ctr.io.files import create_exclusively
from ctr.simulator.auction import Day, Policy, Served, crude_policy, days, make_world, serve
from ctr.simulator.config import (
    WORLD_FILE,
    SimulatorConfig,
    WorldConfig,
    check_simulation,
    read_world,
)
from ctr.simulator.events import EventFiles
from ctr.simulator.features import FeatureIds, world_schema
from ctr.simulator.world import Queries, World

QUERIES_PER_DAY_LIMIT = 10**6
ADS_PER_QUERY_LIMIT = 64

TRUTH = "truth"
"""The sidecar with the hidden truth of each example: the ``probability`` of a click, which is ``quality`` times
``visibility`` (float32), and whether the user ``examined`` it (bool). Training never reads it.
"""

AUCTION = "auction"
"""The sidecar of each example's auction: the ``predicted`` click probability, the ``bid``, the ``price``
of a click (float32), and whether its query was ``randomized`` (bool).
"""


@dataclass
class Counts:
    """Counts of a simulated log; ``answered`` are the queries that showed ads, ``queries`` all of them."""

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


@dataclass
class Simulation:
    """A simulation's world and output; ``folders`` are of the log and, if written, the log of randomized queries."""

    config: WorldConfig
    world: World
    ids: FeatureIds
    folders: Sequence[Path]
    events: EventFiles | None = None
    counts: Counts = field(default_factory=Counts)


def simulate(
    config: SimulatorConfig,
    out: Path,
    progress: Callable[[int], None] | None = None,
    randomized: Path | None = None,
    events: Path | None = None,
) -> dict[str, Any]:
    """Writes a log of the crude policy, with the sidecars ``TRUTH`` and ``AUCTION``; equal configs give equal bytes.

    Continues an interrupted log of the same config. ``randomized`` is the folder of a second log, with the
    examples of randomized queries alone; ``events`` is the folder of the log's raw events. Returns the counts of the
    log and of its events. Raises InputError if a folder has other content, for example the log of another world.
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
    ids = FeatureIds(world, world_schema(config))
    files = None if events is None else EventFiles(config, events, ids)
    simulation = Simulation(config.world, world, ids, folders, files)
    counts = simulation.counts
    policy = crude_policy(config, world)
    for day in islice(days(config.world, world), config.days):
        left = None if config.examples is None else config.examples - counts.examples
        publish_day(simulation, day, policy, left)
        if progress is not None:
            progress(counts.examples)
        if counts.examples == config.examples:
            break
    return {**counts.as_dict(), **(files.finish() if files is not None else {})}


def begin_log(config: WorldConfig, folder: Path) -> None:
    """Creates a log of this world in a folder, unless there is one. Raises InputError if it holds anything else."""
    create_log(folder, world_schema(config))
    path = folder / WORLD_FILE
    if create_exclusively(path, dump_yaml(config).encode()):
        return
    existing = read_world(folder)
    for name in WorldConfig.model_fields:
        old, new = getattr(existing, name), getattr(config, name)
        if old != new:
            raise InputError(
                f"{path}: this log is of another world: its {name} is {old}, not {new}; use another output directory"
            )


def log_rows(ids: FeatureIds, day: Day, first_day: int, served: Served) -> pa.Table:
    """Returns the rows of a log that begins at ``first_day`` (since 1970); ids increase with time and never repeat."""
    impressions, queries = served.impressions, served.queries
    query_id = (first_day + day.number) * QUERIES_PER_DAY_LIMIT + queries.number[impressions.query]
    keys: dict[str, Any] = {
        **dict.fromkeys(("query_time", "timestamp"), queries.time_us[impressions.query]),
        "query_id": query_id,
        "example_id": query_id * ADS_PER_QUERY_LIMIT + impressions.position,
        "label": served.clicked.astype(np.int8),
        **dict.fromkeys(("train_weight", "metric_weight"), np.ones(len(impressions), np.float32)),
    }
    return ids.table(keys, queries, impressions)


def publish_day(simulation: Simulation, day: Day, policy: Policy, most: int | None = None) -> None:
    """Serves a day, cut at ``most`` examples, publishes its impressions and updates the counts."""
    config, ids, events, counts = simulation.config, simulation.ids, simulation.events, simulation.counts
    ids.begin_day(day.queries, day.ads)
    first_day = config.start_us // DAY_US
    parts: list[tuple[pa.Table, ...]] = []
    left = most
    for served in serve(config, simulation.world, day, policy):
        parts.append((log_rows(ids, day, first_day, served), *_sidecars(day, served)))
        if events is not None:
            has = logged_queries(config, served.queries)[served.impressions.query]
            indices = np.flatnonzero(has)[:left]
            events.add(served, parts[-1][0], indices)
            left = None if left is None else left - len(indices)
    tables = [pa.concat_tables(column) for column in zip(*parts, strict=True)]
    drawn = tables[2].column("randomized")
    logged = tables if config.randomized_in_log else [table.filter(pc.invert(drawn)) for table in tables]
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
    manifest = _publish(simulation.folders[0], config, day, *logged)
    counts.examples += manifest.rows
    counts.answered += manifest.queries
    counts.clicks += manifest.clicks
    counts.partitions += 1
    counts.randomized += len(apart[0])
    rows, truth, auction = logged
    clicked = rows.column("label").to_numpy() > 0
    counts.revenue += float(auction.column("price").to_numpy()[clicked].sum(dtype=np.float64))
    counts.expected_clicks += float(truth.column("probability").to_numpy().sum(dtype=np.float64))
    for folder in simulation.folders[1:]:
        _publish(folder, config, day, *apart)


def logged_queries(config: WorldConfig, queries: Queries) -> np.ndarray:
    """Returns for each query whether its ads are in the log, bool [Q]."""
    return config.randomized_in_log | ~queries.randomized


def _sidecars(day: Day, served: Served) -> tuple[pa.Table, pa.Table]:
    impressions = served.impressions
    truth = {
        "probability": served.quality * served.visibility,
        "quality": served.quality,
        "visibility": served.visibility,
        "examined": served.examined,
    }
    auction = {
        "predicted": impressions.predicted,
        "bid": day.ads.bid[impressions.ad].astype(np.float32),
        "price": impressions.price,
        "randomized": served.queries.randomized[impressions.query],
    }
    return pa.table(truth), pa.table(auction)


def _publish(
    folder: Path, config: WorldConfig, day: Day, rows: pa.Table, truth: pa.Table, auction: pa.Table
) -> Manifest:
    start = config.day_us(day.number)
    # The predictions decide how many ads a page shows.
    times = start, start + DAY_US
    manifest = publish_partition(folder, world_schema(config), *times, rows, counts_pages=False)
    for name, table in ((TRUTH, truth), (AUCTION, auction)):
        table = table.add_column(0, "example_id", rows.column("example_id"))
        write_sidecar_partition(folder, name, manifest, table)
    return manifest
