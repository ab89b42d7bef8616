"""Models whose ids grow: trained state that has met some ids, and raw rows with ids that it has and has not met."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import parse_model
from ctr.data.batches import set_rejects_apart
from ctr.data.reader import Rows, rows_of_table
from ctr.data.schema import Schema
from ctr.training.compiled_step import TrainStep
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.run.snapshot import Snapshot
from ctr.training.state import TrainState
from ctr.workers.row_variables import row_count
from model_cases import FEATURES, MODELS, TRAINED_EXAMPLES, draw_raw, make_snapshot, packed_table

FIXED = ("item",)
SCHEMA = parse_model(
    Schema,
    {
        "features": [
            {key: value for key, value in feature.items() if key != "buckets" or feature["name"] in FIXED}
            for feature in FEATURES
        ]
    },
    "test",
)
"""The features of ``model_cases``; the ids of all hashed ones but one grow."""

BATCH_ROWS = 64


def draw_rows(count: int, seed: int, unknown: bool = False) -> dict[str, list[Any]]:
    """Raw rows; with ``unknown`` every third has a user, and every fourth a tag and a word, that no other rows have."""
    raw = draw_raw(count, seed)
    if unknown:
        raw["user:id"] = [
            f"new user {row}" if row % 3 == 0 else user for row, user in enumerate(raw["user:id"])
        ]
        raw["tags"] = [
            [f"new tag {row}", *tags] if row % 4 == 0 else tags for row, tags in enumerate(raw["tags"])
        ]
        raw["title"] = [f"new{row} {text}" if row % 4 == 0 else text for row, text in enumerate(raw["title"])]
    return raw


@dataclass
class GrowingRun:
    """A run without a log: it learns which ids there are, and its weights are drawn.

    Attributes:
        config: its configuration.
        state: its variables and maps.
        folder: the run directory.
        left_out: the fingerprints of ids whose slots are taken away from now on.
    """

    config: TrainConfig
    state: TrainState
    folder: Path

    def __post_init__(self) -> None:
        self.left_out: set[int] = set()
        for id_map in self.state.tables.id_maps.values():
            self._hide_evicted(id_map)

    def _hide_evicted(self, id_map: Any) -> None:
        plain = id_map.ids_by_row

        def ids_by_row() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            rows, features, fingerprints = plain()
            kept = ~np.isin(fingerprints, list(self.left_out))
            return rows[kept], features[kept], fingerprints[kept]

        id_map.ids_by_row = ids_by_row

    def learn(self, raw: dict[str, list[Any]]) -> None:
        """Gives the ids of rows their slots; new rows of tables, which begin near 0, are drawn."""
        feed = make_feed(set_rejects_apart(rows_of(raw)), self.state.layouts, BATCH_ROWS, ids=self.config.ids)
        before = [row_count(table) for table in self.state.tables.weights]
        feed.with_rows(self.state.tables, learning=True)
        for number, (table, old) in enumerate(zip(self.state.tables.weights, before, strict=True)):
            values = table.numpy()
            values[old:] = np.random.default_rng(number).normal(0, 0.4, values[old:].shape)
            table.assign(values)

    def move(self, seed: int, share: float = 1.0) -> None:
        """Changes all dense weights and a share of the rows of tables."""
        rng = np.random.default_rng(seed)
        for table in self.state.tables.weights:
            values = table.numpy()
            moved = rng.random(len(values)) < share
            values[moved] += rng.normal(0, 0.4, values[moved].shape).astype(np.float32)
            table.assign(values)
        for weight in self.state.dense:
            weight.assign(weight.numpy() + rng.normal(0, 0.2, weight.shape))

    def score(self, raw: dict[str, list[Any]]) -> np.ndarray:
        """Returns what the trainer predicts for rows before it learns from them: logits, float32 [N]."""
        feed = make_feed(set_rejects_apart(rows_of(raw)), self.state.layouts, BATCH_ROWS)
        feed = feed.with_rows(self.state.tables)
        ramps = self.config.ramps_at(TRAINED_EXAMPLES)
        logits: np.ndarray = TrainStep(self.state, self.config, jit=False).score(feed, ramps)[0].numpy()
        return logits[: len(raw["title"])]

    def snapshot(self, examples: int) -> Snapshot:
        return make_snapshot(self.state, self.config, SCHEMA, self.folder, examples)


def rows_of(raw: dict[str, list[Any]]) -> Rows:
    """The rows of a log."""
    return rows_of_table(packed_table(raw, SCHEMA), SCHEMA, 0)


def make_run(
    folder: Path, model: str = "plain", compute_dtype: str = "float32", export: dict[str, Any] | None = None
) -> GrowingRun:
    """A run that has learned nothing."""
    content = {
        "model": MODELS[model],
        "compute_dtype": compute_dtype,
        "batch": {"rows": BATCH_ROWS},
        "ids": {"shared_rows": 3},
        "export": export,
    }
    config = parse_model(TrainConfig, content, "test")
    state = TrainState(config.table_layouts(SCHEMA), config, compute_dtype)
    return GrowingRun(config, state, folder)


def contents(folder: Path, but: Sequence[str] = (".lock",)) -> dict[str, bytes]:
    """The bytes of all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in but
    }
