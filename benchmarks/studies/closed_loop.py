"""Measures churn of ads: how much two trainings of a model differ in shown ads (FF 7.3, table 3, "Ads/Query Churn").

    ctr simulate --examples 1000000 --config examples/replay/world.yaml --set queries_per_day=16000 \
        --set randomized_share=0.05 --set randomized_in_log=false --out logs/served --randomized logs/randomized
    python benchmarks/study.py closed_loop [--experiment FILE] --log logs/served --days 4 --out runs/closed-loop

FILE is an experiment of ``ctr replay``, by default ``closed_loop.yaml``. Each arm is trained with each seed on a
copy of the log, and so is each of its retrains. Then it serves, day by day: its predictions decide the auctions of the
simulated world, the ads shown and their clicks become the next partition of its log, and it learns from them before the
next day. Queries and retrieved ads do not depend on the model, so that all runs serve the same queries. The results of
each arm are the ads per query, and the churn, in percent: the difference of the mean ads per query of two runs over
their mean, averaged over pairs of seeds, and over runs and their retrains.
"""

import shutil
from collections.abc import Mapping, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from runner import main

from ctr.config import parse_model
from ctr.data.log import read_manifests
from ctr.data.reader import rows_of_table
from ctr.data.shards import read_shard
from ctr.data.times import DAY_US
from ctr.experiments.config import BASELINE, changed, read_experiment
from ctr.simulator import auction
from ctr.simulator.auction import Placed, Policy, logistic, make_world
from ctr.simulator.config import WorldConfig, read_world
from ctr.simulator.features import FeatureIds, world_schema
from ctr.simulator.simulate import QUERIES_PER_DAY_LIMIT, Simulation, publish_day
from ctr.simulator.world import Ads, Queries, World, draw_queries
from ctr.training.config import TrainConfig
from ctr.training.session import Session, open_session

EXPERIMENT = Path(__file__).with_suffix(".yaml")


def policy_of(session: Session, ids: FeatureIds) -> Policy:
    """Returns a policy that predicts with the current weights of a run."""

    def predict(queries: Queries, ads: Ads, placed: Placed) -> np.ndarray:
        zeros = np.zeros(len(placed), np.int64)
        keys = {
            **dict.fromkeys(("query_time", "timestamp", "query_id"), zeros),
            "example_id": np.arange(len(placed)),
            "label": zeros.astype(np.int8),
            **dict.fromkeys(("train_weight", "metric_weight"), zeros.astype(np.float32)),
        }
        logit = session.score(rows_of_table(ids.table(keys, queries, placed), ids.schema, 0))
        return logistic(logit.astype(np.float64)).astype(np.float32)

    return predict


def ads_of_queries(log: Path, config: WorldConfig, world: World, first: int) -> np.ndarray:
    """Counts the ads of each query of the days from ``first`` on, [Q]; randomized queries are left out."""
    counts = []
    for day, manifest in enumerate(read_manifests(log)[first:], first):
        queries = draw_queries(config, world, day)
        base = (config.start_us // DAY_US + day) * QUERIES_PER_DAY_LIMIT
        shards = [read_shard(log, entry, world_schema(config)) for entry in manifest.shards]
        ids = np.concatenate(
            [np.zeros(0, np.int64), *(rows.column("query_id").to_numpy() for rows in shards)]
        )
        counts.append(np.bincount(ids - base, minlength=len(queries))[~queries.randomized])
    return np.concatenate(counts)


def serve(config: TrainConfig, log: Path, day_count: int, out: Path) -> np.ndarray:
    """Trains on a copy of the log and serves; returns the number of ads of each served query, [Q], kept in ``out``."""
    result = out / "ads.npy"
    if result.exists():
        return np.load(result)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(log, out / "log")
    content = config.model_dump(mode="json", by_alias=True)
    others = (content["objective"]["bias_constraints"] or {}).get("logs", [])
    for other in others:
        other["path"] = str(shutil.copytree(other["path"], out / other["name"]))
    world_config = read_world(log)
    world = make_world(world_config)
    ids = FeatureIds(world, world_schema(world_config))
    first = len(read_manifests(log))
    logs = [out / "log", *(Path(other["path"]) for other in others)]
    with open_session(out / "log", parse_model(TrainConfig, content, "config"), out / "run") as session:
        session.advance(partial=True)
        for day in islice(auction.days(world_config, world), first, first + day_count):
            publish_day(Simulation(world_config, world, ids, logs), day, policy_of(session, ids))
            session.advance(partial=True)
        session.finish()
    np.save(result, ads_of_queries(out / "log", world_config, world, first))
    return np.load(result)


def churn(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """Formats the churn of pairs of runs in percent: the mean, the smallest and the largest."""
    values = [200 * abs(float(a.mean() - b.mean())) / float(a.mean() + b.mean()) for a, b in pairs]
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"


def measure(
    log: Path = Path("logs/served"),
    experiment: Path = EXPERIMENT,
    days: int = 4,
    out: Path = Path("runs/closed-loop"),
    set: tuple[str, ...] = (),
) -> dict[str, dict[str, Any]]:
    """Returns ads per query and churn of seeds and of each kind of retrain, by arm; ``set`` changes the experiment."""
    plan, content = read_experiment(experiment, set)
    baseline = changed(content, plan.baseline.set)
    arms = {BASELINE: baseline, **{name: changed(baseline, arm.set) for name, arm in plan.arms.items()}}

    def run(name: str, seed: int, settings: Mapping[str, Any]) -> np.ndarray:
        config = parse_model(TrainConfig, {**settings, "seed": seed}, name)
        return serve(config, log, days, out / f"{name}-seed-{seed}")

    results = {}
    for name, settings in arms.items():
        ads = {seed: run(name, seed, settings) for seed in plan.seeds}
        mean = float(np.mean([counts.mean() for counts in ads.values()]))
        row = {"ads_per_query": mean, "churn_of_seeds": churn([*combinations(ads.values(), 2)])}
        for kind, changes in plan.retrain.items():
            again = {seed: run(f"{name}~{kind}", seed, changed(settings, changes)) for seed in ads}
            row[f"churn_of_{kind}"] = churn([(ads[seed], again[seed]) for seed in ads])
        print(name, row, flush=True)
        results[name] = row
    return results


if __name__ == "__main__":
    main(measure, {})
