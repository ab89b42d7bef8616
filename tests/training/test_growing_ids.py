"""Ids that grow, in training: as a dictionary and tables without end would have it, however the run came there."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

import small_runs
from ctr.data.batches import Batch, set_rejects_apart
from ctr.data.reader import rows_of_table
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids
from ctr.io.errors import InputError
from ctr.training.compiled_step import CompiledStep
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.session import open_session, train
from ctr.training.state import TrainState
from fingerprint_logs import SCHEMA, growing_table, prints_of
from growing_logs import ADAGRAD, STANDS, Growing, assert_same, whole_and_in_parts
from small_runs import SMALL, Examples, draw_examples, merged, publish

NUMBERED = Schema(features=tuple(f.model_copy(update={"buckets": 60}) for f in SCHEMA.features))
BASE = merged(SMALL, ADAGRAD, {"max_rejected_share": 1, "metrics": {"slices": []}})
CROWDED = {"ids": {"capacity": 12, "shared_rows": 2, "eviction": {"policy": "score", "share": 0.2}}}
LEAST_RECENT = merged(CROWDED, {"ids": {"eviction": {"policy": "least_recent", "max_idle": 1, "every": 1}}})
# Linear weights and network as two models, which learn as they do without a configuration.
TWO_MODELS = {
    "model": {"experts": ["linear", "network"]},
    "optimizer": {"embeddings": {"linear_rule": "newton"}},
}
POLICIES: dict[str, dict[str, Any]] = {
    "crowded, admitted by count, two models": merged(
        CROWDED, TWO_MODELS, {"ids": {"admission": {"rule": "count", "count": 3, "exact_ids": 4}}}
    ),
    "room for all": {},
    "least recent": LEAST_RECENT,
    "nobody evicted": merged(CROWDED, {"ids": {"eviction": {"policy": "none"}}}),
    "admitted by chance": {"ids": {"admission": {"rule": "probability", "probability": 0.3}}},
}


def config_of(*changes: dict[str, Any]) -> TrainConfig:
    return small_runs.config_of(BASE, *changes)


def batch_of(rows: Examples, time_us: int | None = None) -> Batch:
    table = growing_table(rows)
    if time_us is not None:
        table = table.set_column(0, "query_time", pa.array(np.full(table.num_rows, time_us)))
    return set_rejects_apart(rows_of_table(table, SCHEMA, 0))


@pytest.fixture(scope="module")
def growing_log(tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("ids") / "log", growing_table(draw_examples()), schema=SCHEMA)


def test_a_slot_used_anew_begins_anew():
    """With the values that the id has in a run of its own, and with the sums that every row begins with."""
    eviction = {"policy": "least_recent", "share": 1}
    config = config_of({"ids": {"capacity": 2, "shared_rows": 1, "eviction": eviction}})

    class Learner:
        def __init__(self) -> None:
            self.state = TrainState(config.table_layouts(SCHEMA), config, "float32")
            self.step = CompiledStep(self.state, config, jit=False)
            names = [layout.name for layout in self.state.layouts]
            self.number = names.index("quality-2")

        def learn(self, position: int, time: int, weight: float = 1.0) -> None:
            rows = draw_examples(queries=4, seed=time)
            rows.ids[:, 2] = position
            rows.train_weight[:] = weight
            feed = make_feed(batch_of(rows, time * 10**6), self.state.layouts, 64, ids=config.ids)
            assert bool(self.step.learn(feed, config.ramps_at(0), config.rates_at(0)).applied)

        def row_of(self, position: int) -> tuple[np.ndarray, np.ndarray]:
            print_of = prints_of(np.array([position], np.int64))
            tables = self.state.tables
            (row,) = tables.id_maps[self.number].look_up(np.zeros(1, np.int16), print_of)
            accumulator = tables.optimizer.variables["rows_accumulator/quality-2"]
            return tuple(
                tf.gather(part, [row])[0].numpy() for part in (tables.weights[self.number], accumulator)
            )

    run, fresh = Learner(), Learner()
    run.learn(1, 1)
    run.learn(1, 2)
    learned, sums = run.row_of(1)
    for position, time in ((2, 3), (3, 4), (4, 5)):
        run.learn(position, time)
    # Without weight it learns nothing, but has a row.
    for one in (run, fresh):
        one.learn(1, 6, weight=0.0)
    for own, other, before in zip(run.row_of(1), fresh.row_of(1), (learned, sums), strict=True):
        np.testing.assert_array_equal(own, other)
        assert np.all(own != before)
    np.testing.assert_array_equal(run.row_of(1)[1], np.float32([0.01, 0.01, 0.02]))


@pytest.mark.slow
def test_a_logistic_regression_is_that_of_ids_without_collisions(growing_log, tmp_path):
    numbered = publish(tmp_path / "log", draw_examples().table(), schema=NUMBERED)
    config = config_of({"model": {"experts": ["linear"]}})
    found, expected = (train(log, config, tmp_path / log.parent.name) for log in (growing_log, numbered))
    for name in ("examples", "auc", "per_query_auc", "logloss", "calibration_bias"):
        assert found[name] == expected[name]


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_that_was_interrupted_ends_in_the_same_bits(policy, growing_log, tmp_path):
    whole_and_in_parts(growing_log, config_of(POLICIES[policy]), tmp_path, 700)


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("changes", [merged(CROWDED, TWO_MODELS, {"label_delay": 0.02}), CROWDED])
def test_a_log_that_grows_gives_the_bits_of_one_pass(changes, growing_log, tmp_path):
    config = config_of(changes)
    train(growing_log, config, tmp_path / "whole")
    growing = Growing(tmp_path / "log", SCHEMA, growing_table(draw_examples()))
    strangers = growing_table(draw_examples(queries=5, seed=3))
    ids = np.full((strangers.num_rows, 3), 12345, np.int64)
    ids[:, 1] = 1
    strangers = strangers.set_column(7, "ids", pack_ids(ids))
    with open_session(growing.grow(), config, tmp_path / "followed") as session:
        session.advance()
        for _ in range(2):
            # Scoring between changes nothing and admits nobody, and the same id always shares the same row.
            np.testing.assert_array_equal(session.score(strangers), session.score(strangers))
            growing.grow()
            session.advance()
        session.finish()
    assert_same(tmp_path / "followed", tmp_path / "whole", *STANDS)


def test_a_capacity_of_another_feature_is_refused(growing_log, tmp_path):
    with pytest.raises(InputError, match=r"ids\.capacities names item, .*allowed: user, tags, position"):
        train(growing_log, config_of({"ids": {"capacities": {"item": 5}}}), tmp_path / "run")
