"""Ids that grow, in training: as a dictionary and tables without end would have it, however the run came there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.batches import set_rejects_apart
from ctr.data.log import create_log, read_schema
from ctr.data.reader import rows_of_table
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.errors import InputError
from ctr.io.hashing import splitmix64
from ctr.training.compiled_step import TrainStep
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.ids.id_map import Learned
from ctr.training.loop import open_session, train
from ctr.training.run import checkpoint
from ctr.training.state import TrainState
from ctr.workers.group import ONE
from growing_logs import Growing
from slow_id_map import SlowIdMap
from small_runs import INTERVALS, SMALL, Examples, draw_examples, merged

GROWING = Schema(
    features=(
        Category(name="user", source="user", width=4),
        Category(name="item", source="item", buckets=50, width=4),
        Category(name="tags", source="tags", width=4, multivalent=True),
        Category(name="position", source="position", width=2, tower="ui"),
    )
)
NUMBERED = Schema(features=tuple(f.model_copy(update={"buckets": 60}) for f in GROWING.features))
# Without Shampoo, whose graph takes longer to build than all of the pass.
ADAGRAD = {"optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None, "momentum": 0}}}}
WITHOUT_NETWORK = {"model": {"crosses": {"layers": 0}, "deep": {"units": []}}}
CROWDED = {"ids": {"capacity": 12, "shared_rows": 2, "eviction": {"policy": "score", "share": 0.2}}}
LEAST_RECENT = merged(CROWDED, {"ids": {"eviction": {"policy": "least_recent", "max_idle": 1, "every": 1}}})
# Linear weights and network as two models, which learn as they do without a configuration.
TWO_MODELS = {"model": {"network_loss": "own"}, "optimizer": {"embeddings": {"linear_rule": "newton"}}}
POLICIES = [
    {},
    merged(CROWDED, TWO_MODELS),
    CROWDED,
    LEAST_RECENT,
    merged(CROWDED, {"ids": {"eviction": {"policy": "none"}}}),
    {"ids": {"admission": {"rule": "count", "count": 3, "exact_ids": 4}}},
    {"ids": {"admission": {"rule": "probability", "probability": 0.3}}},
]


def config_of(*changes: dict[str, Any]) -> TrainConfig:
    content = merged(merged(SMALL, ADAGRAD), {"max_rejected_share": 1, "metrics": {"slices": []}})
    for change in changes:
        content = merged(content, change)
    return parse_model(TrainConfig, content, "test")


def fingerprints(ids: np.ndarray) -> np.ndarray:
    """Another number for each id; 0 stays 0."""
    return np.where(ids == 0, 0, splitmix64(ids.astype(np.uint64)).view(np.int64))


def growing_table(rows: Examples) -> pa.Table:
    ids = rows.ids.astype(np.int64)
    ids[:, [0, 2]] = fingerprints(ids[:, [0, 2]])
    table = rows.table()
    tags = [fingerprints(np.array(row, np.int64)).tolist() for row in rows.tags]
    for name, column in (("ids", pack_ids(ids)), ("tags", pa.array(tags, pa.list_(pa.int64())))):
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def publish(folder: Path, schema: Schema, table: pa.Table) -> Path:
    create_log(folder, schema)
    times = table.column("query_time").to_numpy()
    for start, end in INTERVALS:
        inside = pa.array(np.flatnonzero((times >= start) & (times < end)))
        publish_partition(folder, schema, start, end, table.take(inside), shard_rows=170)
    return folder


@pytest.fixture(scope="module")
def growing_log(tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("ids") / "log", GROWING, growing_table(draw_examples()))


class DictionaryMap(SlowIdMap):
    """The slow map as the trainer calls it, which finds slots itself."""

    group = ONE

    def __init__(self, *arguments):
        # Not the group, which is of one.
        super().__init__(*arguments[:4])

    def look_up(self, *ids):
        # Also called by ``learn`` of the slow map itself, with its own arguments.
        if len(ids) == 1:
            return super().look_up(*ids)
        features, prints, _ = ids
        return np.array(super().look_up(list(zip(features.tolist(), prints.tolist(), strict=True))), np.int32)

    def held_slots(self, features, prints):
        return np.zeros(len(prints), np.int32)

    def learn(self, features, prints, counts, time_us, admit, slots):
        ids = list(zip(features.tolist(), prints.tolist(), strict=True))
        _, fresh = super().learn(ids, counts.tolist(), time_us, admit)
        return Learned(self.look_up(features, prints, slots), np.array(fresh, np.int64))


def final_arrays(run: Path) -> dict[str, np.ndarray]:
    arrays, _ = checkpoint.read(run / "checkpoints")
    return {name: array for name, array in arrays.items() if name.startswith("weights|")}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def metrics_of(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_bytes())
    return {
        name: summary[name] for name in ("examples", "auc", "per_query_auc", "logloss", "calibration_bias")
    }


@pytest.mark.slow
def test_a_logistic_regression_is_that_of_ids_without_collisions(growing_log, tmp_path):
    rows = draw_examples()
    numbered = publish(tmp_path / "log", NUMBERED, rows.table())
    config = config_of(WITHOUT_NETWORK)
    train(numbered, config, tmp_path / "numbered")
    train(growing_log, config, tmp_path / "growing")
    assert metrics_of(tmp_path / "numbered") == metrics_of(tmp_path / "growing")


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("changes", [{}, LEAST_RECENT])
def test_a_dictionary_and_tables_without_end_give_the_same_bits(changes, monkeypatch):
    config = config_of(changes)
    batches = []
    for seed in range(6):
        table = growing_table(draw_examples(queries=12, seed=seed))
        shift = pa.array(table.column("query_time").to_numpy() + 10_000_000 * seed)
        table = table.set_column(0, "query_time", shift)
        batches.append(set_rejects_apart(rows_of_table(table, GROWING, 0)))

    def logits() -> list[np.ndarray]:
        state = TrainState(config.table_layouts(GROWING), config, "float32")
        step = TrainStep(state, config, jit=False)
        found = []
        for batch in batches:
            feed = make_feed(batch, state.layouts, 64, ids=config.ids)
            found.append(step.learn(feed, config.ramps_at(0), config.rates_at(0)).logit.numpy())
        return found

    own = logits()
    monkeypatch.setattr("ctr.training.ids.id_map.IdMap", DictionaryMap)
    monkeypatch.setattr("ctr.training.tables.tables._FIRST_SLOTS", 10_000)
    for logit, slow in zip(own, logits(), strict=True):
        np.testing.assert_array_equal(logit, slow)


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, marks=pytest.mark.slow if number % 2 else pytest.mark.soak)
        for number, changes in enumerate(POLICIES)
    ],
)
def test_a_run_that_was_interrupted_ends_in_the_same_bits(changes, growing_log, tmp_path):
    config = config_of(changes)
    train(growing_log, config, tmp_path / "whole")
    seen = []

    def stop(examples: int, running: dict[str, Any]) -> None:
        seen.append(examples)
        if examples > 700:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(growing_log, config, tmp_path / "part", progress=stop)
    train(growing_log, config, tmp_path / "part")
    assert_same(final_arrays(tmp_path / "whole"), final_arrays(tmp_path / "part"))
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "part")


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("changes", [CROWDED, merged(merged(CROWDED, TWO_MODELS), {"label_delay": 0.02})])
def test_a_log_that_grows_gives_the_bits_of_one_pass(changes, growing_log, tmp_path):
    config = config_of(changes)
    train(growing_log, config, tmp_path / "whole")
    growing = Growing(tmp_path / "log", GROWING, growing_table(draw_examples()))
    with open_session(growing.grow(), config, tmp_path / "followed") as session:
        session.advance()
        for _ in range(2):
            growing.grow()
            session.advance()
        session.finish()
    assert_same(final_arrays(tmp_path / "whole"), final_arrays(tmp_path / "followed"))


@pytest.mark.slow
def test_scoring_admits_nobody(growing_log, tmp_path):
    with open_session(growing_log, config_of(), tmp_path / "run") as session:
        session.advance(partial=True)
        state = session.trainer.state
        before = {name: array.copy() for name, array in state.arrays().items()}
        strangers = growing_table(draw_examples(queries=5, seed=3))
        ids = np.full((strangers.num_rows, 4 - 1), 12345, np.int64)
        ids[:, 1] = 1
        first = session.score(strangers.set_column(7, "ids", pack_ids(ids)))
        assert_same(before, state.arrays())
        # Another id without a slot may share another row, but the same one the same row.
        np.testing.assert_array_equal(first, session.score(strangers.set_column(7, "ids", pack_ids(ids))))


@pytest.mark.soak
def test_the_order_of_slots_changes_nothing(growing_log, tmp_path):
    """With as many slots as ids and with far more of them."""
    few, many = config_of({"ids": {"capacity": 60}}), config_of({"ids": {"capacity": 100_000}})
    for name, config in (("few", few), ("many", many)):
        train(growing_log, config, tmp_path / name)
    assert_same(final_arrays(tmp_path / "few"), final_arrays(tmp_path / "many"))


@pytest.mark.soak
def test_under_xla_the_tables_grow_too(growing_log, tmp_path):
    config = config_of({"jit": True})
    train(growing_log, config, tmp_path / "xla")
    train(growing_log, config_of(), tmp_path / "run")
    own, other = metrics_of(tmp_path / "xla"), metrics_of(tmp_path / "run")
    assert own["logloss"] == pytest.approx(other["logloss"], rel=1e-4)


def test_a_slot_used_anew_begins_anew():
    config = config_of(
        {"ids": {"capacity": 2, "shared_rows": 1, "eviction": {"policy": "least_recent", "share": 1}}}
    )
    state = TrainState(config.table_layouts(GROWING), config, "float32")
    step = TrainStep(state, config, jit=False)
    number = next(n for n, layout in enumerate(state.layouts) if layout.name == "ui-2")

    def learn(position: int, time: int) -> None:
        rows = draw_examples(queries=4, seed=time)
        rows.ids[:, 2] = position
        table = growing_table(rows)
        table = table.set_column(0, "query_time", pa.array(np.full(table.num_rows, time * 10**6)))
        batch = set_rejects_apart(rows_of_table(table, GROWING, 0))
        step.learn(
            make_feed(batch, state.layouts, 64, ids=config.ids), config.ramps_at(0), config.rates_at(0)
        )

    def row_of(position: int) -> tuple[np.ndarray, np.ndarray]:
        print_of = fingerprints(np.array([position], np.int64))
        (row,) = state.tables.id_maps[number].look_up(np.zeros(1, np.int16), print_of)
        accumulator = state.tables.optimizer.variables["rows_accumulator/ui-2"]
        return (tf.gather(table, [row])[0].numpy() for table in (state.tables.weights[number], accumulator))

    learn(1, 1)
    first = [array.copy() for array in row_of(1)]
    learn(1, 2)
    for position, time in ((2, 3), (3, 4), (4, 5)):
        learn(position, time)
    fresh = TrainState(state.layouts, config, "float32")
    assert fresh.tables.id_maps[number].rows < state.tables.id_maps[number].rows
    learn(1, 1)
    values, sums = row_of(1)
    # As after its first step in the run, but for the weights of the rest of the model.
    assert np.all(sums > 0) and np.all(sums < first[1] * 4 + 1)
    assert np.abs(values - first[0]).max() < 0.2


def test_the_schema_says_so(growing_log):
    content = json.loads((growing_log / "schema.json").read_bytes())
    assert content["format"] == 3
    assert read_schema(growing_log).growing == ("user", "tags", "position")


def test_a_capacity_of_another_feature_is_refused(growing_log, tmp_path):
    with pytest.raises(InputError, match=r"ids\.capacities names item, .*allowed: user, tags, position"):
        train(growing_log, config_of({"ids": {"capacities": {"item": 5}}}), tmp_path / "run")
