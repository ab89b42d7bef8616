"""A trained run in the loop: day after day it serves, what it showed is logged, and it learns from the log.

::

    OUT/log/             the run's log, going on with the days that the run served
    OUT/constraints/     likewise each simulated constraint log, going on with their randomised traffic
    OUT/run/             the run, going on
    OUT/shown.parquet    each query of those days: query_id, randomised, ads (how many it showed)
    OUT/loop.json        what happened on each day
"""

import os
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.config import dump_yaml, load_model, parse_model, read_yaml
from ctr.data.log import list_intervals, read_manifests, read_shard
from ctr.data.reader import rows_of_table
from ctr.data.sidecar import read_sidecar_interval
from ctr.errors import InputError
from ctr.files import write_atomic
from ctr.simulator.auction import Policy
from ctr.simulator.clicks import Placed
from ctr.simulator.config import DAY_US, WorldConfig
from ctr.simulator.day import QUERIES_PER_DAY_LIMIT, days, make_world
from ctr.simulator.features import SCHEMA, FeatureIds
from ctr.simulator.inventory import Ads
from ctr.simulator.simulate import AUCTION, Counts, publish_day, read_world
from ctr.simulator.traffic import Queries, draw_queries
from ctr.training.config import TrainConfig
from ctr.training.run_directory import write_json
from ctr.training.session import Session, open_session

LOOP_FILE = "loop.json"
SHOWN_FILE = "shown.parquet"


def run_closed_loop(
    policy: Path,
    log: Path,
    day_count: int,
    out: Path,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Lets a run serve the days after those of its log, and learn from each of them before it serves the next.

    The run and its logs stay as they are: copies of them go on. The same call again continues where it was stopped.

    Args:
        policy: a finished run.
        log: the simulated log that it was trained on.
        day_count: days to serve.
        out: the folder for all that grows.
        progress: called with the number of days served so far.

    Returns:
        The content of loop.json: ``first_day``, the number of the first day that the run served, and ``days``, of each
        what it showed.

    Raises:
        InputError: the log was not simulated, the run is not finished or of another log, or the folder holds
            something else.
    """
    world_config = read_world(log)
    first = len(list_intervals(log))
    _copy_once(policy, log, out)
    config = load_model(TrainConfig, out / "run" / "config.yaml", "config")
    logs = [path for path in (out / "constraints").glob("*") if path.is_dir()]
    world = make_world(world_config)
    ids = FeatureIds(world)
    with open_session(out / "log", config, out / "run") as session:
        session.advance(partial=True)
        served = len(list_intervals(out / "log")) - first
        for day in islice(days(world_config, world, first + served), max(day_count - served, 0)):
            model = model_policy(session, ids)
            publish_day(world_config, world, ids, day, model, (out / "log", *logs), Counts())
            session.advance(partial=True)
            session.save()
            if progress is not None:
                progress(day.number - first + 1)
        session.finish()
    return _describe(world_config, out, first)


def _copy_once(policy: Path, log: Path, out: Path) -> None:
    """Copies a run and its logs, at the first call."""
    for path in (policy / "summary.json", policy / "config.yaml"):
        if not path.is_file():
            raise InputError(f"{policy}: no {path.name}: a run that ctr train finished is needed")
    if (out / "run").is_dir():
        return
    if out.exists() and any(path.name not in ("log", "constraints") for path in out.iterdir()):
        raise InputError(f"{out}: neither empty nor a loop: another folder is needed")
    config = load_model(TrainConfig, policy / "config.yaml", "config")
    changes = []
    constraints = config.objective.bias_constraints
    for index, other in enumerate(constraints.logs if constraints is not None else ()):
        if read_world(Path(other.path)) != read_world(log):
            raise InputError(f"constraint log {other.name}, {other.path}: its world is not that of {log}")
        copy = out / "constraints" / other.name
        _copy_log(Path(other.path), copy)
        changes.append((index, str(copy)))
    _copy_log(log, out / "log")
    unfinished = out / "run.partial"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(policy, unfinished)
    if changes:
        content = read_yaml(policy / "config.yaml", "config")
        for index, copied in changes:
            content["objective"]["bias_constraints"]["logs"][index]["path"] = copied
        moved = parse_model(TrainConfig, content, "config")
        (unfinished / "config.yaml").write_text(dump_yaml(moved))
    # Last, and at once: where there is a run, everything is there.
    unfinished.rename(out / "run")


def _copy_log(log: Path, copy: Path) -> None:
    """A log under another name that can grow by itself; the files of its intervals never change and are shared."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # on another disk
            shutil.copy2(source, target)

    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(log, copy, copy_function=link)


def _describe(config: WorldConfig, out: Path, first: int) -> dict[str, Any]:
    """Writes what the queries of the days that were served showed, and what happened."""
    days_told, parts = [], []
    world = make_world(config)
    for number, manifest in enumerate(read_manifests(out / "log")[first:], first):
        queries = draw_queries(config, world, number)
        base = (config.start_us // DAY_US + number) * QUERIES_PER_DAY_LIMIT
        rows = pa.concat_tables(
            [
                read_shard(out / "log", entry, SCHEMA).select(["query_id", "label"])
                for entry in manifest.shards
            ]
        )
        auction = read_sidecar_interval(out / "log", AUCTION, manifest)
        clicked = rows.column("label").to_numpy() > 0
        ads = np.bincount(rows.column("query_id").to_numpy() - base, minlength=len(queries))
        parts.append(
            pa.table(
                {
                    "query_id": base + queries.number,
                    "randomised": queries.randomised,
                    "ads": ads.astype(np.int16),
                }
            )
        )
        days_told.append(
            {
                "day": number,
                "queries": len(queries),
                "answered": manifest.queries,
                "examples": manifest.rows,
                "clicks": manifest.clicks,
                "revenue": round(float(auction.column("price").to_numpy()[clicked].sum(dtype=np.float64)), 2),
                "ads_per_query": manifest.rows / len(queries),
            }
        )
    write_atomic(out / SHOWN_FILE, lambda stream: pq.write_table(pa.concat_tables(parts), stream))
    told = {"first_day": first, "days": days_told}
    write_json(out / LOOP_FILE, told)
    return told


def model_policy(session: Session, ids: FeatureIds) -> Policy:
    """The predictions of a run as it is now."""

    def predict(queries: Queries, ads: Ads, placed: Placed) -> np.ndarray:
        nothing = np.zeros(len(placed), np.int64)
        keys = {
            **dict.fromkeys(("query_time", "timestamp", "query_id"), nothing),
            "example_id": np.arange(len(placed)),
            "label": nothing.astype(np.int8),
            **dict.fromkeys(("train_weight", "metric_weight"), nothing.astype(np.float32)),
        }
        table = ids.table(keys, queries, placed)
        logit = session.score(rows_of_table(table, SCHEMA, 0))
        return (1 / (1 + np.exp(-logit.astype(np.float64)))).astype(np.float32)

    return predict
