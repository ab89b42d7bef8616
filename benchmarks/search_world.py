"""A small world in which it matters how a network is built: its clicks depend on products of two features' vectors."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.log import create_log
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition

QUERY_ROWS = 4
IDS = {"user": 40, "item": 60, "hour": 24, "noise": 500}
SCHEMA = Schema(features=tuple(Category(name=name, source=name, buckets=ids) for name, ids in IDS.items()))

BASE: dict[str, Any] = {
    "batch": {"rows": 200},
    "model": {
        "crosses": {"layers": 2, "rank": 8, "ramp": 2000},
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


# A world in which it matters which features a model has.

EFFECTS = {"a": 0.5, "b": 1.2, "b_copy": 0.0, "c": 0.8, "d": 0.4, "e": 0.2, "f": 0.0}
"""The standard deviation of each feature's effects; ``b_copy`` is the id of b in a share of the rows."""
COPIED = 0.85
EFFECT_IDS = 40
PLANTED_SCHEMA = Schema(
    features=tuple(Category(name=name, source=name, buckets=EFFECT_IDS) for name in EFFECTS)
)
PLANTED_BASE: dict[str, Any] = {
    "batch": {"rows": 100},
    "model": {
        "crosses": {"layers": 0},
        "deep": {"units": [16]},
        "init_scale": 0.05,
        "network_loss": "joint",
        "prior": 0.2,
        "widths": dict.fromkeys(EFFECTS, 8),
    },
    "optimizer": {"dense": {"learning_rate": 0.02}},
    "compute_dtype": "float32",
}
PLANTED_SPACE: dict[str, list[Any]] = {f"features.{name}": [True, False] for name in EFFECTS if name != "a"}
"""64 architectures: every model has the feature a."""


class Planted:
    """Clicks by the sum of independent effects of features.

    Attributes:
        optimum: of the candidates with at most two features beside a.
    """

    optimum = frozenset({"b", "c"})

    def __init__(self, rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._ids = {name: rng.integers(1, EFFECT_IDS, rows) for name in EFFECTS}
        self._ids["b_copy"] = np.where(rng.random(rows) < COPIED, self._ids["b"], self._ids["b_copy"])
        self._effects = {name: rng.normal(size=EFFECT_IDS) * size for name, size in EFFECTS.items()}
        parts = [self._effects[name][self._ids[name]] for name in EFFECTS]
        self._logit = np.sum(parts, axis=0) - 1.5
        self._label = rng.random(rows) < 1 / (1 + np.exp(-self._logit))

    def logloss(self, features: Collection[str], draws: int = 400) -> float:
        """The expected logloss of the best prediction by a and these features, on the first rows.

        Effects of other features are averaged over what they may be: any, or, of b, mostly that of its copy.
        """
        rows = slice(0, 4000)
        known = {"a", *features}
        count = len(self._logit[rows])
        logit = np.full((draws, count), -1.5)
        rng = np.random.default_rng(0)
        for name, effects in self._effects.items():
            if name in known:
                logit += effects[self._ids[name][rows]]
                continue
            drawn = rng.integers(1, EFFECT_IDS, (draws, count))
            if name == "b" and "b_copy" in known:
                drawn = np.where(rng.random((draws, count)) < COPIED, self._ids["b_copy"][rows], drawn)
            logit += effects[drawn]
        predicted = (1 / (1 + np.exp(-logit))).mean(axis=0)
        truth = 1 / (1 + np.exp(-self._logit[rows]))
        return float(-np.mean(truth * np.log(predicted) + (1 - truth) * np.log1p(-predicted)))

    def publish(self, folder: Path) -> Path:
        """Publishes the log, four rows a query."""
        count = len(self._logit)
        query = np.arange(count) // QUERY_ROWS
        table = pa.table(
            {
                "query_time": query * 1000,
                "timestamp": query * 1000,
                "query_id": query + 1,
                "example_id": np.arange(count),
                "label": self._label.astype(np.int8),
                "train_weight": np.ones(count, np.float32),
                "metric_weight": np.ones(count, np.float32),
                "ids": pack_ids(np.stack([self._ids[name] for name in EFFECTS], axis=1).astype(np.int32)),
            }
        )
        create_log(folder, PLANTED_SCHEMA)
        publish_partition(folder, PLANTED_SCHEMA, 0, (int(query[-1]) + 1) * 1000, table)
        return folder
