"""Closed loop of a trained run: each day it serves queries, its impressions are logged, and it learns from them.

::

    OUT/log/             the run's log, continued with the days that the run served
    OUT/constraints/     the same for each simulated constraint log, continued with their randomized traffic
    OUT/run/             the run, continued
    OUT/origin.json      the run and log that the loop began with
    OUT/shown.parquet    each logged query of those days: day, query_id, randomized, ads (that it showed)
    OUT/loop.json        what happened on each day
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.config import differing_keys, dump_yaml, load_model, parse_model
from ctr.data.log import check_log, list_partitions, log_sha256, read_manifests
from ctr.data.reader import rows_of_table
from ctr.data.shards import read_shard
from ctr.data.sidecar import read_sidecar_partition, sidecar_folder
from ctr.data.times import DAY_US
from ctr.eval.ads_churn import SHOWN_FILE
from ctr.io.documents import json_bytes, read_json_object
from ctr.io.errors import InputError, joined
from ctr.io.files import make_folder, sync_folder, write_atomic
from ctr.serving.export import export_from_run
from ctr.simulator.auction import Placed, Policy, days, logistic, make_world
from ctr.simulator.config import ORIGIN_FILE, WorldConfig, check_days, check_loop_folders, read_world
from ctr.simulator.features import FeatureIds, world_schema
from ctr.simulator.simulate import AUCTION, QUERIES_PER_DAY_LIMIT, Counts, logged_queries, publish_day
from ctr.simulator.world import Ads, Queries, World, draw_queries
from ctr.training.config import TrainConfig
from ctr.training.loop import TIMING, Session, open_session
from ctr.training.run.directory import write_json

LOOP_FILE = "loop.json"


def run_closed_loop(
    policy: Path, log: Path, day_count: int, out: Path, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Lets a run serve the days after those of its log, and learn from each of them before it serves the next.

    The run and its logs stay as they are; the loop continues copies of them. The same call again continues a loop that
    was stopped, or extends one that has ended if there are more days, and gives the same bytes. Returns the content of
    loop.json. Raises InputError: the log was not simulated, the run is not finished, of another log or needs more than
    the simulator gives, or the folder holds something else.
    """
    check_days(day_count)
    # The configuration of the run names the constraint logs, wherever the loop is continued from.
    out = out.resolve()
    first = _begin(policy, log, out)
    config = load_model(TrainConfig, out / "run" / "config.yaml", "config")
    logs = (out / "log", *sorted((out / "constraints").glob("*")))
    world_config = read_world(out / "log")
    world = make_world(world_config)
    ids = FeatureIds(world, world_schema(world_config))
    with open_session(out / "log", config, out / "run", exporter=export_from_run) as session:
        begin = _first_day_to_serve(session, logs, first)
        for day in islice(days(world_config, world, begin), max(first + day_count - begin, 0)):
            publish_day(world_config, world, ids, day, model_policy(session, ids), logs, Counts())
            _learn(session)
            if progress is not None:
                progress(day.number - first + 1)
        session.finish()
    served = {"first_day": first, "days": _record_days(world_config, world, out, first)}
    write_json(out / LOOP_FILE, served)
    return served


def _record_days(config: WorldConfig, world: World, out: Path, first: int) -> list[dict[str, Any]]:
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


def _learn(session: Session) -> None:
    """Learns what was published. Then nothing is computed again: the weights that serve a day are on the disk."""
    session.advance(partial=True)
    # Where weights are broken it goes back instead, a few times at most.
    while session.save():
        session.advance(partial=True)


def _first_day_to_serve(session: Session, logs: Sequence[Path], first: int) -> int:
    """Number of the first day that is not published whole, at least ``first``, with all before it learned.

    A day that is published in part is served again, by the weights that served it before: nothing changes but what was
    missing. One that is published whole never is: a run that went back may know less than it did then.
    """
    served = [_whole_days(log) for log in logs]
    begins = np.cumsum([0, *(manifest.rows for manifest in session.inputs.log.manifests)])
    day = max(min(served), first)
    if session.run.position.examples < begins[day]:
        _learn(session)
    return day


def _whole_days(log: Path) -> int:
    """Days of a log that ``publish_day`` has completed; the last one may lack its last sidecar."""
    manifests = read_manifests(log)
    # The last thing that it publishes.
    lacking = manifests and not (sidecar_folder(log, AUCTION) / f"{manifests[-1].name}.json").is_file()
    return len(manifests) - bool(lacking)


def _begin(policy: Path, log: Path, out: Path) -> int:
    """Copies a run and its logs, at the first call; returns the number of the first day that is not in the log."""
    check_loop_folders(policy, log, out)
    summary = read_json_object(policy / "summary.json", f"{policy}: no summary.json")
    results = {key: value for key, value in summary.items() if key not in TIMING}
    config = load_model(TrainConfig, policy / "config.yaml", "config")
    constraint_logs = _constraint_logs(config)
    read_world(log)
    if summary.get("log_sha256") != log_sha256(read_manifests(log)):
        raise InputError(f"{log}: is not the log that the run was trained on, or the run has not finished it")
    check_loop(config, log)
    first = len(list_partitions(log))
    origin = {
        "first_day": first,
        "log_sha256": summary["log_sha256"],
        "policy_sha256": hashlib.sha256(json_bytes(results)).hexdigest(),
    }
    path = out / ORIGIN_FILE
    if path.is_file():
        begun = read_json_object(path, f"{path}: no such file")
        if differences := differing_keys(begun, origin):
            raise InputError(
                f"{out}: this loop began with another run or log ({joined(differences)}): "
                "use another output directory"
            )
    else:
        _copy(policy, log, constraint_logs, origin, out)
    return first


def check_loop(config: TrainConfig, log: Path) -> None:
    """Raises InputError where a run's configuration would fail, or mean something else, on the days to come."""
    world = read_world(log)
    check_log(log, world_schema(world))
    distillation = config.objective.distillation
    if config.sampling is not None:
        raise InputError("config: sampling: the sample has no decisions for the days that the loop adds")
    if config.model.query_size is True:
        raise InputError(
            "config: model.query_size: true: how many ads a page shows is decided by their predictions: use false"
        )
    if config.time_range.end is not None:
        raise InputError(
            f"config: time_range.end: {config.time_range.end}: impressions after this time would not be trained on"
        )
    if distillation is not None and distillation.missing == "refuse":
        raise InputError(
            "config: objective.distillation.missing: refuse: no teacher predicts the days that the loop adds: "
            "use train_without"
        )
    for name, path in _constraint_logs(config).items():
        where = f"constraint log {name}, {path}"
        if read_world(path) != world:
            raise InputError(f"{where}: its world is not that of {log}")
        if list_partitions(path) != list_partitions(log):
            raise InputError(f"{where}: its days are not those of {log}")
        for manifest in read_manifests(path):
            auction = read_sidecar_partition(path, AUCTION, manifest)
            if not auction.column("randomized").to_numpy().all():
                raise InputError(
                    f"{where}: not of randomized traffic only; ctr simulate --randomized makes such a log"
                )


def _constraint_logs(config: TrainConfig) -> dict[str, Path]:
    constraints = config.objective.bias_constraints
    return {other.name: Path(other.path) for other in (constraints.logs if constraints is not None else ())}


def _copy(
    policy: Path, log: Path, constraint_logs: dict[str, Path], origin: dict[str, Any], out: Path
) -> None:
    """Makes the folder of a loop; it appears whole or not at all."""
    # No user would choose this name: whatever is there was left by a copy that was killed.
    partial = out.with_name(f".{out.name}.loop-partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    for name, path in constraint_logs.items():
        _copy_log(path, partial / "constraints" / name)
    _copy_log(log, partial / "log")
    shutil.copytree(policy, partial / "run")
    if constraint_logs:
        config = load_model(TrainConfig, policy / "config.yaml", "config")
        content = config.model_dump(mode="json", by_alias=True)
        for other in content["objective"]["bias_constraints"]["logs"]:
            other["path"] = str(out / "constraints" / other["name"])
        moved = parse_model(TrainConfig, content, "config")
        (partial / "run" / "config.yaml").write_text(dump_yaml(moved))
    write_json(partial / ORIGIN_FILE, origin)
    partial.rename(out)
    sync_folder(out.parent)


def _copy_log(log: Path, copy: Path) -> None:
    """Copies a log that is to grow independently; the files of its partitions never change and are shared."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # on another disk
            shutil.copy2(source, target)

    shutil.copytree(log, copy, copy_function=link)


def model_policy(session: Session, ids: FeatureIds) -> Policy:
    """Makes a policy of a run's predictions as it is now."""

    def predict(queries: Queries, ads: Ads, placed: Placed) -> np.ndarray:
        nothing = np.zeros(len(placed), np.int64)
        keys = {
            **dict.fromkeys(("query_time", "timestamp", "query_id"), nothing),
            "example_id": np.arange(len(placed)),
            "label": nothing.astype(np.int8),
            **dict.fromkeys(("train_weight", "metric_weight"), nothing.astype(np.float32)),
        }
        table = ids.table(keys, queries, placed)
        logit = session.score(rows_of_table(table, ids.schema, 0))
        return logistic(logit.astype(np.float64)).astype(np.float32)

    return predict
