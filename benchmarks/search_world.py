"""A small world in which it matters how a network is built: its clicks depend on products of two features' vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.log import create_log, pack_ids, publish_partition
from ctr.data.schema import Category, Schema

QUERY_ROWS = 4
IDS = {"user": 40, "item": 60, "hour": 24, "noise": 500}
SCHEMA = Schema(features=tuple(Category(name=name, source=name, buckets=ids) for name, ids in IDS.items()))

BASE: dict[str, Any] = {
    "batch": {"rows": 200},
    "model": {
        "crosses": {"layers": 2, "rank": 8, "ramp": {"length": 2000}},
        "deep": {"units": [32, 32]},
        "init_scale": 0.1,
        "network_loss": "joint",
        "prior": 0.2,
        "widths": {"user": 12, "item": 12, "hour": 2, "noise": 2},
    },
    "optimizer": {"dense": {"learning_rate": 0.02}},
    "compute_dtype": "float32",
}
SPACE: dict[str, list[Any]] = {
    "model.crosses.layers": [0, 1, 2],
    "model.deep.units.0": [2, 8, 32],
    "model.deep.units.1": [2, 8, 32],
    "model.widths.user,item": [1, 4, 12],
}
"""81 architectures, of which the base is the largest."""


def make_log(folder: Path, rows: int, seed: int) -> Path:
    """Publishes a log: linear effects, a product of vectors of user and item, and one of hour and user's first."""
    rng = np.random.default_rng(seed)
    queries = rows // QUERY_ROWS
    query = np.repeat(np.arange(queries), QUERY_ROWS)
    users, hours = rng.integers(1, IDS["user"], queries)[query], rng.integers(1, IDS["hour"], queries)[query]
    items, noise = (rng.integers(1, IDS[name], len(query)) for name in ("item", "noise"))
    vectors = {name: rng.normal(size=(IDS[name], 4)) for name in ("user", "item", "hour")}
    linear = {name: rng.normal(size=IDS[name]) * 0.4 for name in ("user", "item", "hour")}
    logit = linear["user"][users] + linear["item"][items] + linear["hour"][hours] - 1.8
    logit += 0.8 * np.sum(vectors["user"][users] * vectors["item"][items], axis=1)
    logit += 0.5 * np.maximum(vectors["hour"][hours, 0] * vectors["user"][users, 0], 0)
    count = len(query)
    table = pa.table(
        {
            "query_time": query * 1000,
            "timestamp": query * 1000,
            "query_id": query + 1,
            "example_id": np.arange(count),
            "label": (rng.random(count) < 1 / (1 + np.exp(-logit))).astype(np.int8),
            "train_weight": np.ones(count, np.float32),
            "metric_weight": np.ones(count, np.float32),
            "ids": pack_ids(np.stack([users, items, hours, noise], axis=1).astype(np.int32)),
        }
    )
    create_log(folder, SCHEMA)
    publish_partition(folder, SCHEMA, 0, queries * 1000, table)
    return folder
