"""Runs that begin from another one: logs of the same examples with any features, and what runs know of ids."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import small_runs
from ctr.data.features import Category
from ctr.data.schema import Schema
from ctr.models.embeddings import tower_columns
from ctr.training.config import TrainConfig
from ctr.training.run import checkpoint
from ctr.training.run.directory import read_warm_start
from ctr.training.warm_start.start import InitFrom, warm_start
from fingerprint_logs import table_with
from small_runs import SMALL, Examples, draw_examples, merged

HALF, END = 160_000, 240_000
# Ids of users and tags grow, those of items and positions have buckets.
USER = Category(name="user", source="user", width=4)
ITEM = Category(name="item", source="item", buckets=50, width=4)
TAGS = Category(name="tags", source="tags", width=4, multivalent=True)
POSITION = Category(name="position", source="position", buckets=8, width=2, tower="ui")
HOUR = Category(name="hour", source="hour", width=4)
SCHEMA = Schema(features=(USER, ITEM, TAGS, POSITION))
CONFIG: dict[str, Any] = merged(
    SMALL,
    {
        # Batches end with partitions, so that a pass over half of the log and the rest is a pass over all of it.
        "batch": {"within_partitions": True},
        # So that roots are in flight wherever a run ends.
        "optimizer": {
            "dense": {"shampoo": {"start_preconditioning_step": 2, "precondition_frequency": 4}},
            "embeddings": {"schedule": "warmup 50, cosine 800 to 0.2"},
        },
        "metrics": {"slices": []},
    },
)
# A change that changes nothing that is learned.
HARMLESS = {"metrics": {"window_examples": 100}}


def config_of(*changes: dict[str, Any]) -> TrainConfig:
    return small_runs.config_of(CONFIG, *changes)


def changed(feature: Category, **changes: Any) -> Category:
    return feature.model_copy(update=changes)


def publish(
    folder: Path,
    features: Sequence[Category] = SCHEMA.features,
    ends: Sequence[int] = (0, 80_000, HALF, END),
    examples: Examples | None = None,
) -> Path:
    """The same examples as a log of any features."""
    schema = Schema(features=tuple(features))
    return small_runs.publish(
        folder, table_with(schema, examples or draw_examples()), tuple(pairwise(ends)), schema
    )


def rows_before(time: int) -> int:
    return int((draw_examples().query * 1000 < time).sum())


def weights(run: Path) -> dict[str, np.ndarray]:
    """Of the newest checkpoint; the counters alone begin anew with each run."""
    arrays = checkpoint.weights_of(checkpoint.read(run / "checkpoints")[0])
    return {name: array for name, array in arrays.items() if "counters" not in name}


def begun(old: Path, log: Path, config: TrainConfig, run: Path) -> dict[str, np.ndarray]:
    warm_start(log, config, run, InitFrom(old))
    return weights(run)


def table_of(run: Path, part: str) -> dict[str, tuple[str, str]]:
    content = read_warm_start(run)
    assert content is not None
    return {line["name"]: (line["status"], line["why"]) for line in content["table"] if line["part"] == part}


TAKEN, FRESH = ("taken", ""), ("fresh", "the old run has none")


class Rows:
    """What a run knows of the ids of each feature, wherever its rows are: the rows and their sums of squares."""

    def __init__(
        self, arrays: dict[str, np.ndarray], features: Sequence[Category] = SCHEMA.features, *changes: Any
    ) -> None:
        self.arrays, self.schema = arrays, Schema(features=tuple(features))
        self.config = config_of(*changes)
        self.layouts = {
            feature.name: layout
            for layout in self.config.table_layouts(self.schema)
            for feature in layout.features
        }

    def columns(self) -> dict[str, slice]:
        """Of each feature in what the crosses read."""
        layouts = self.config.table_layouts(self.schema)
        return tower_columns(layouts, factorized=False)["quality"]

    def fixed(self, name: str) -> list[np.ndarray]:
        """A feature's fixed rows: where ids grow those of a missing value and of ids without a slot."""
        layout = self.layouts[name]
        begin = layout.offsets()[name]
        count = next(feature.buckets for feature in layout.features if feature.name == name)
        groups = ("rows", "rows_accumulator")
        return [self.arrays[f"{group}/{layout.name}"][begin : begin + count] for group in groups]

    def by_id(self, name: str) -> dict[int, tuple[Any, ...]]:
        """By fingerprint, of ids that have slots: row, sums of squares, and the uses that decide who is evicted."""
        layout = self.layouts[name]
        number = [feature.name for feature in layout.growing].index(name)
        of_slots = {
            kind: self.arrays[f"ids/{layout.name}/slots/{kind}"]
            for kind in ("feature", "fingerprint", "first_seen", "last_seen", "uses")
        }
        return {
            int(of_slots["fingerprint"][place]): (
                *(
                    tuple(self.arrays[f"{group}/{layout.name}"][layout.rows + place].tolist())
                    for group in ("rows", "rows_accumulator")
                ),
                *(int(of_slots[kind][place]) for kind in ("first_seen", "last_seen", "uses")),
            )
            for place in np.flatnonzero(of_slots["feature"] == number)
        }

    def assert_equal(self, other: "Rows", *names: str) -> None:
        for name in names:
            for one, expected in zip(self.fixed(name), other.fixed(name), strict=True):
                np.testing.assert_array_equal(one, expected, err_msg=name)
            if name in self.schema.growing:
                assert self.by_id(name) == other.by_id(name) != {}


def assert_same(run: Path, other: Path) -> None:
    """All that two runs have learned is the same, bit by bit; ids may have other slots."""
    found, expected = weights(run), weights(other)
    assert found.keys() == expected.keys()
    Rows(found).assert_equal(Rows(expected), *SCHEMA.by_name)
    for name, array in expected.items():
        if not name.startswith(("ids/", "rows/", "rows_accumulator/")):
            np.testing.assert_array_equal(found[name], array, err_msg=name)
