"""A run that begins from another one: what it takes is matched by meaning, and what matches goes on as it was."""

import json
import multiprocessing
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

import killed_warm_start
from ctr.data.log import create_log, read_schema
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.follow import Polling, follow
from ctr.training.loop import TIMING, open_session, train
from ctr.training.run import checkpoint
from ctr.training.run.directory import read_warm_start
from ctr.training.run.snapshot import read_snapshot
from ctr.training.state import dense_weights
from ctr.training.warm_start.dense import take_fitted
from ctr.training.warm_start.start import InitFrom, warm_start

KILLED = -9
# So that roots are in flight wherever a run ends.
ROOTS = {"optimizer": {"dense": {"shampoo": {"start_preconditioning_step": 2, "precondition_frequency": 4}}}}
HALF, END = 160_000, 240_000
# A change that changes nothing that is learned.
HARMLESS = {"metrics": {"window_examples": 100}}


def merged(*contents: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for content in contents:
        for key, value in content.items():
            both = isinstance(value, dict) and isinstance(out.get(key), dict)
            out[key] = merged(out[key], value) if both else value
    return out


def weights(run: Path) -> dict[str, np.ndarray]:
    """Of the newest checkpoint; the counters alone begin anew with each run."""
    with np.load(max((run / "checkpoints").iterdir()) / "arrays.npz") as arrays:
        names = [name for name in arrays if name.startswith("weights|") and "counters" not in name]
        return {name.removeprefix("weights|"): arrays[name] for name in names}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name].tobytes() != expected[name].tobytes()] == []


def table_of(run: Path) -> dict[tuple[str, str], tuple[str, str | None, str]]:
    content = read_warm_start(run)
    assert content is not None
    return {
        (line["part"], line["name"]): (line["status"], line["optimizer"], line["why"])
        for line in content["table"]
    }


def statuses(run: Path, part: str) -> dict[str, tuple[str, str | None]]:
    return {name: line[:2] for (of, name), line in table_of(run).items() if of == part}


class Logs:
    """The same examples as logs of any features."""

    def __init__(self, examples: Any, folder: Path) -> None:
        self.table, self.folder = examples.table(), folder
        self.times = self.table.column("query_time").to_numpy()
        ids = examples.ids.astype(np.int32)
        self.columns = dict(zip(("user", "item", "position"), ids.T, strict=True))

    def publish(self, name: str, schema: Schema, ends: tuple[int, ...] = (0, 80_000, HALF, END)) -> Path:
        folder = self.folder / name
        create_log(folder, schema)
        row = np.arange(len(self.times), dtype=np.int32)
        ids = [
            self.columns.get(feature, row % schema.by_name[feature].buckets)
            for feature in schema.single_valued
        ]
        table = self.table.set_column(
            self.table.column_names.index("ids"), "ids", pack_ids(np.stack(ids, axis=1).astype(np.int32))
        )
        table = table.select(
            [name for name in table.column_names if name != "tags" or "tags" in schema.by_name]
        )
        for start, end in pairwise(ends):
            self.grow(folder, table, start, end)
        return folder

    def grow(self, folder: Path, table: pa.Table, start: int, end: int) -> None:
        inside = np.flatnonzero((self.times >= start) & (self.times < end))
        publish_partition(
            folder, read_schema(folder), start, end, table.take(pa.array(inside)), shard_rows=170
        )

    def rows_before(self, time: int) -> int:
        return int((self.times < time).sum())


@pytest.fixture(scope="module")
def logs(examples, tmp_path_factory) -> Logs:
    return Logs(examples, tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def whole(logs, schema) -> Path:
    return logs.publish("whole", schema)


@pytest.fixture(scope="module")
def half(logs, schema) -> Path:
    return logs.publish("half", schema, (0, 80_000, HALF))


@pytest.fixture
def config(make_config) -> TrainConfig:
    # Batches end with intervals, so that a pass over half of the log and the rest is a pass over all of it.
    return make_config(merged(ROOTS, {"batch": {"within_partitions": True}}))


@pytest.fixture(scope="module")
def finished() -> dict[str, Path]:
    """Runs that tests share, by what they are."""
    return {}


@pytest.fixture
def old(finished, half, config, tmp_path_factory) -> Path:
    """A run that has passed the first half of the log."""
    if "old" not in finished:
        run = tmp_path_factory.mktemp("old") / "run"
        train(half, config, run)
        finished["old"] = run
    return finished["old"]


@pytest.fixture
def change(config):
    """The configuration of ``old`` with changes."""

    def changed(*changes: dict[str, Any]) -> TrainConfig:
        return TrainConfig.model_validate(merged(config.model_dump(mode="json"), *changes))

    return changed


@pytest.fixture
def unkilled(finished, old, whole, change, tmp_path_factory) -> Path:
    """A run over the second half that began from ``old``."""
    if "unkilled" not in finished:
        run = finished["unkilled"] = tmp_path_factory.mktemp("unkilled") / "run"
        reported = run.parent / "reported"
        train(whole, change(HARMLESS), run, init_from=InitFrom(old, reported.write_text))
    return finished["unkilled"]


PLAIN = {"start_preconditioning_step": None, "momentum": 0, "nesterov": False}
AVERAGED = {"dense": {"schedule_free": 0.75, "shampoo": PLAIN}}


@pytest.mark.soak
def test_averages_of_weights_go_on_or_become_the_weights(half, whole, change, tmp_path):
    averaged = change({"optimizer": AVERAGED})
    train(half, averaged, tmp_path / "old")
    train(whole, averaged, tmp_path / "uninterrupted")
    train(whole, averaged, tmp_path / "same", init_from=InitFrom(tmp_path / "old"))
    assert_equal(weights(tmp_path / "same"), weights(tmp_path / "uninterrupted"))
    served = dense_weights(read_snapshot(tmp_path / "old").weights)
    warm_start(whole, change(), tmp_path / "without", InitFrom(tmp_path / "old"))
    found, before = weights(tmp_path / "without"), weights(tmp_path / "old")
    for name, weight in served.items():
        np.testing.assert_array_equal(found[name], weight.numpy())
    assert any(np.any(found[name] != before[name]) for name in served)


@pytest.mark.slow
def test_a_run_that_begins_from_another_one_goes_on_bit_by_bit(
    old, whole, config, unkilled, logs, tmp_path, read_predictions
):
    uninterrupted, run = tmp_path / "uninterrupted", unkilled
    train(whole, config, uninterrupted)
    summary = json.loads((run / "summary.json").read_text())
    assert_equal(weights(run), weights(uninterrupted))
    begin = logs.rows_before(HALF)
    # Everything else begins at the warm start.
    expected = read_predictions(uninterrupted)[begin:].reset_index(drop=True)
    pd.testing.assert_frame_equal(read_predictions(run), expected)
    assert summary["examples"] == summary["trained_examples"] == len(logs.times) - begin
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["window_examples"] for line in lines) == len(logs.times) - begin
    assert lines[0]["window_begin"] >= HALF
    # The table says so, in the file and as text.
    begun = json.loads((run / "init_from.json").read_text())
    assert (begun["run"], begun["begins_at"]["log"]) == (str(old.resolve()), begin)
    assert {line[0] for line in table_of(run).values()} == {"taken"}
    assert set(statuses(run, "feature").values()) == {("taken", "taken")}
    assert set(statuses(run, "weight").values()) == {("taken", "taken")}
    assert statuses(run, "ramp") == {"alpha2": ("taken", None)}
    reported = (run.parent / "reported").read_text()
    assert f"begins at row {begin} of the log" in reported
    assert "features           taken        user, item, tags, position" in reported


@pytest.mark.soak
def test_it_begins_in_the_middle_of_an_interval(whole, config, change, tmp_path):
    stopped, run = tmp_path / "stopped", tmp_path / "run"
    batches: list[int] = []
    with open_session(whole, config, stopped, lambda position, _: batches.append(position)) as session:
        session.advance(stop=lambda: len(batches) == 9)
        session.save()
    shutil.copytree(stopped, tmp_path / "copy")
    train(whole, config, tmp_path / "copy")
    # The crosses are not wholly switched on there.
    assert 100 < batches[-1] < 600
    train(whole, change(HARMLESS), run, init_from=InitFrom(stopped))
    begins = read_warm_start(run)["begins_at"]
    assert begins["log"] == begins["learned"] == batches[-1]
    assert_equal(weights(run), weights(tmp_path / "copy"))


@pytest.mark.soak
def test_a_run_begun_so_is_begun_from_again(old, whole, change, tmp_path):
    # Each has another loss, whose ramp begins with it.
    ranked = change({"objective": {"ranking": {"weight": 0.3, "ramp": 1000}}})
    train(whole, ranked, tmp_path / "ranked", init_from=InitFrom(old))
    lines = [json.loads(line) for line in (tmp_path / "ranked/metrics.jsonl").read_text().splitlines()]
    trained = json.loads((old / "summary.json").read_text())["trained_examples"]
    own = json.loads((tmp_path / "ranked/summary.json").read_text())["trained_examples"]
    assert [line["alpha2"] for line in lines] == [1.0] * len(lines)
    assert [line["ramp_ranking"] for line in lines] == pytest.approx(
        [(line["examples"] - lines[0]["examples"] + lines[0]["window_examples"]) / 1000 for line in lines]
    )
    assert set(statuses(tmp_path / "ranked", "weight").values()) == {("taken", "taken")}
    assert statuses(tmp_path / "ranked", "ramp") == {"alpha2": ("taken", None), "ranking": ("fresh", None)}
    again = change({"objective": {"ranking": {"weight": 0.2, "ramp": 1000}}, "seed": 3})
    warm_start(whole, again, tmp_path / "again", InitFrom(tmp_path / "ranked"), waits=True)
    ramps = {name: line[2] for (part, name), line in table_of(tmp_path / "again").items() if part == "ramp"}
    assert ramps == {
        "alpha2": f"continues at {trained + own} examples",
        "ranking": f"continues at {own} examples",
    }


def first_logits(run: Path, read_predictions, rows: int = 40) -> np.ndarray:
    return read_predictions(run)["logit"].to_numpy()[:rows]


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    "model",
    [{}, {"factorized": {"ui_units": [4]}}, {"ensemble": {"components": 2, "embeddings": "separate"}}],
)
def test_features_in_another_order_and_new_ones_predict_as_before(
    logs, schema, half, whole, change, tmp_path, read_predictions, model
):
    # What begins fresh begins at 0, and so says nothing yet: the first predictions have to be those of the old run.
    config = change({"model": {**model, "init_scale": 0.05}, "checkpoint": {"every_examples": 10**6}})
    train(half, config, tmp_path / "old")
    launched = tmp_path / "same"
    train(whole, config, launched, init_from=InitFrom(tmp_path / "old"))
    new = schema.features[0].model_copy(update={"name": "hour", "source": "hour", "buckets": 24})
    order = (
        [schema.features[index] for index in (3, 1)] + [new] + [schema.features[index] for index in (2, 0)]
    )
    other = logs.publish(f"ordered-{tmp_path.name}", Schema(features=tuple(order)))
    silent = TrainConfig.model_validate(merged(config.model_dump(mode="json"), {"model": {"init_scale": 0}}))
    train(other, silent, tmp_path / "new", init_from=InitFrom(tmp_path / "old"))
    np.testing.assert_allclose(
        first_logits(tmp_path / "new", read_predictions), first_logits(launched, read_predictions), atol=1e-5
    )
    assert np.ptp(first_logits(launched, read_predictions)) > 0.1
    assert statuses(tmp_path / "new", "feature") == {
        name: ("fresh", "fresh") if name == "hour" else ("taken", "taken")
        for name in ("hour", "user", "item", "tags", "position")
    }
    kernels = {name: line for name, line in statuses(tmp_path / "new", "weight").items() if "cross" in name}
    assert {line[0] for line in kernels.values()} == {"partly"}


def begun(old: Path, log: Path, config: TrainConfig, run: Path) -> dict[str, np.ndarray]:
    warm_start(log, config, run, InitFrom(old))
    return weights(run)


def test_the_same_features_in_another_order_are_not_taken_as_they_lie(old, logs, schema, config, tmp_path):
    user, item, tags, position = schema.features
    log = logs.publish("reordered", Schema(features=(item, user, tags, position)))
    found, before = begun(old, log, config, tmp_path / "run"), weights(old)
    # Table quality-4 has 30 rows of user and 50 of item, then tags.
    for group in ("rows", "rows_accumulator"):
        table, expected = found[f"{group}/quality-4"], before[f"{group}/quality-4"]
        np.testing.assert_array_equal(table, np.concatenate([expected[30:80], expected[:30], expected[80:]]))
    # The first weight is the first cross's U, whose rows are 4 of each feature, and 2 of the last.
    moved = np.r_[4:8, 0:4, 8:14]
    for name in ("dense/000", "shampoo/tensor0/accumulator", "shampoo/tensor0/momentum"):
        np.testing.assert_array_equal(found[name], before[name][moved])
    assert table_of(tmp_path / "run")[("weight", "quality/cross_0/u")] == (
        "taken",
        "partly",
        "in another order",
    )
    # Statistics of blocks would be those of other columns.
    assert not found["shampoo/stack0/axis0/total"].any()
    assert before["shampoo/stack0/axis0/total"].any()


def test_a_feature_of_other_ids_or_width_begins_fresh(old, logs, schema, change, tmp_path):
    user, item, tags, position = schema.features
    hashed = item.model_copy(update={"buckets": 60})
    renamed = user.model_copy(update={"source": "person"})
    wider = position.model_copy(update={"width": 3})
    log = logs.publish("rehashed", Schema(features=(renamed, hashed, tags, wider)))
    config = change({"seed": 5})
    found, before = begun(old, log, config, tmp_path / "run"), weights(old)
    assert table_of(tmp_path / "run")[("feature", "item")] == ("fresh", "fresh", "buckets was 50, is 60")
    assert table_of(tmp_path / "run")[("feature", "user")][2] == "source was 'user', is 'person'"
    assert table_of(tmp_path / "run")[("feature", "position")] == (
        "partly",
        "partly",
        "the linear weights alone: the width was 2, is 3",
    )
    np.testing.assert_array_equal(found["rows/quality-4"][90:], before["rows/quality-4"][80:])
    assert not found["rows/quality-4"][:90, 4].any()
    assert (found["rows_accumulator/quality-4"][:90, :4] == np.float32(0.01)).all()
    np.testing.assert_array_equal(found["rows/ui-3"][:, 3], before["rows/ui-2"][:, 2])
    # Only the rows of tags are known to the crosses; the rest begins as in a fresh run.
    train_log = weights_of_a_fresh_run(log, config, tmp_path / "fresh")
    np.testing.assert_array_equal(found["dense/000"][8:12], before["dense/000"][8:12])
    np.testing.assert_array_equal(found["dense/000"][:8], train_log["dense/000"][:8])
    np.testing.assert_array_equal(found["rows/quality-4"][:90, :4], train_log["rows/quality-4"][:90, :4])


def weights_of_a_fresh_run(log: Path, config: TrainConfig, run: Path) -> dict[str, np.ndarray]:
    """As they are before the first step."""
    with open_session(log, config, run) as session:
        return session.run.state.arrays()


def test_a_feature_that_is_gone_is_left_behind(old, logs, schema, config, tmp_path):
    user, item, _, position = schema.features
    found = begun(
        old, logs.publish("without", Schema(features=(user, item, position))), config, tmp_path / "run"
    )
    before = weights(old)
    np.testing.assert_array_equal(found["rows/quality-4"], before["rows/quality-4"][:80])
    np.testing.assert_array_equal(found["dense/000"], before["dense/000"][np.r_[0:8, 12:14]])
    assert table_of(tmp_path / "run")[("feature", "tags")] == ("left", None, "the new run has none")
    assert table_of(tmp_path / "run")[("weight", "quality/cross_0/u")][0] == "partly"
    assert table_of(tmp_path / "run")[("weight", "quality/deep_0/w_bias")][:2] == ("taken", "taken")


@pytest.mark.slow
def test_a_layer_begins_fresh_where_its_input_does(old, whole, change, tmp_path):
    # The head has the shape that it had, and another input.
    begun(old, whole, change({"model": {"deep": {"units": [6, 8]}}}), tmp_path / "run")
    found = statuses(tmp_path / "run", "weight")
    taken = ("taken", "taken")
    assert {name for name, line in found.items() if line == taken} == {
        f"quality/cross_{layer}/{matrix}" for layer in (0, 1) for matrix in ("u", "v", "v_bias")
    } | {"output_bias"}
    assert {name for name, line in found.items() if line == ("fresh", "fresh")} == {
        "quality/deep_0/w", "quality/deep_0/w_bias", "quality/deep_1/w", "quality/deep_1/w_bias", "quality_head",
    }  # fmt: skip
    begun(old, whole, change({"model": {"deep": {"units": [8, 4]}}}), tmp_path / "deeper")
    assert statuses(tmp_path / "deeper", "weight")["quality/deep_0/w"] == taken
    # Without crosses nothing ramps up.
    begun(old, whole, change({"model": {"crosses": {"layers": 0}}}), tmp_path / "crossless")
    assert statuses(tmp_path / "crossless", "ramp") == {}
    assert statuses(tmp_path / "crossless", "weight")["quality/cross_0/u"] == ("left", None)
    begun(old, whole, change({"model": {"crosses": {"rank": 2}}}), tmp_path / "rank")
    assert statuses(tmp_path / "rank", "ramp") == {"alpha2": ("fresh", None)}


@pytest.mark.parametrize(
    ("shampoo", "status", "why", "kept"),
    [
        ({"block_size": 5}, "partly", "optimizer.dense.shampoo.block_size was 256, is 5",
         {"step", "accumulator", "momentum"}),
        ({"momentum": 0.5}, "partly", "optimizer.dense.shampoo.momentum was 0.9, is 0.5", {"step", "accumulator"}),
        ({"grafting": "rmsprop"}, "fresh", "optimizer.dense.shampoo.grafting.kind was 'adagrad', is 'rmsprop'", set()),
        ({"statistics": {"frequency": 3}, "grafting": {"initial_accumulator": 0.5}}, "taken", "",
         {"step", "accumulator", "momentum"}),
    ],
)  # fmt: skip
def test_what_the_optimizer_knows_goes_with_its_options(
    old, whole, change, tmp_path, shampoo, status, why, kept
):
    config = change({"optimizer": {"dense": {"shampoo": shampoo}}})
    found, before = begun(old, whole, config, tmp_path / "run"), weights(old)
    assert table_of(tmp_path / "run")[("weight", "quality/deep_0/w")] == ("taken", status, why)
    names = {
        "step": "shampoo/step",
        **{kind: f"shampoo/tensor0/{kind}" for kind in ("accumulator", "momentum")},
    }
    assert {kind for kind, name in names.items() if np.array_equal(found[name], before[name])} == kept
    np.testing.assert_array_equal(found["dense/000"], before["dense/000"])


def test_rows_lose_their_accumulators_when_gradients_are_of_another_scale(old, whole, change, tmp_path):
    found = begun(old, whole, change({"optimizer": {"embeddings": {"gradient": "mean"}}}), tmp_path / "run")
    assert table_of(tmp_path / "run")[("feature", "user")] == (
        "taken",
        "fresh",
        "optimizer.embeddings.gradient differs",
    )
    np.testing.assert_array_equal(found["rows/quality-4"], weights(old)["rows/quality-4"])
    assert (found["rows_accumulator/quality-4"][:, :4] == np.float32(0.01)).all()


def test_rows_begin_adafactors_moments_anew_where_the_rule_was_another_one(old, whole, change, tmp_path):
    rule = {"rule": "adafactor", "linear_rule": "adagrad", "learning_rate": 0.01}
    config = change({"optimizer": {"embeddings": rule}})
    found = begun(old, whole, config, tmp_path / "run")
    status = table_of(tmp_path / "run")[("feature", "user")]
    assert status[:2] == ("taken", "fresh")
    assert "optimizer.embeddings.rule differs" in status[2]
    np.testing.assert_array_equal(found["rows/quality-4"], weights(old)["rows/quality-4"])
    assert not found["rows_moment/quality-4"].any()


@pytest.mark.soak
def test_adafactors_moments_of_rows_go_with_those_of_their_columns(
    half, whole, logs, schema, change, tmp_path
):
    rule = {"rule": "adafactor", "linear_rule": "adagrad", "learning_rate": 0.01}
    config = change({"optimizer": {"embeddings": rule}})
    train(half, config, tmp_path / "old")
    found, before = begun(tmp_path / "old", whole, config, tmp_path / "run"), weights(tmp_path / "old")
    names = [name for name in before if name.startswith(("rows_", "columns_moment/", "table_steps/"))]
    assert len({name.partition("/")[0] for name in names}) == 5
    for name in names:
        assert before[name].any(), name
        np.testing.assert_array_equal(found[name], before[name])
    assert table_of(tmp_path / "run")[("feature", "user")] == ("taken", "taken", "")
    user, item, tags, position = schema.features
    wider = Schema(features=(user, item, tags, position.model_copy(update={"width": 3})))
    found = begun(tmp_path / "old", logs.publish("wider", wider), config, tmp_path / "wider")
    assert found["rows_linear_accumulator/ui-3"].any()
    for kind in ("rows_moment", "rows_touched", "columns_moment", "table_steps"):
        assert before[f"{kind}/ui-2"].any()
        assert not found[f"{kind}/ui-3"].any()


@pytest.mark.soak
def test_an_ensemble_goes_on_with_the_network_that_there_was(old, whole, change, tmp_path):
    ensemble = change({"model": {"ensemble": {"components": 3, "embeddings": "separate"}}})
    found, before = begun(old, whole, ensemble, tmp_path / "run"), weights(old)
    lines = statuses(tmp_path / "run", "weight")
    assert {line[0] for name, line in lines.items() if name.startswith("component_0/")} == {"taken"}
    assert {line[0] for name, line in lines.items() if not name.startswith("component_0/")} == {"fresh"}
    # All of them read what was shared.
    np.testing.assert_array_equal(found["rows/quality-4"], np.tile(before["rows/quality-4"], 3))
    again = begun(
        tmp_path / "run", whole, change({"model": {"ensemble": {"components": 2}}}), tmp_path / "two"
    )
    np.testing.assert_array_equal(again["rows/quality-4"], before["rows/quality-4"])
    lines = statuses(tmp_path / "two", "weight")
    assert lines["component_0/quality/deep_0/w"][0] == "taken"
    # The second network learned to read embeddings of its own, which are gone.
    assert lines["component_1/quality/deep_0/w"][0] == "fresh"


def families(*given: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"objective": {"bias_constraints": {"learning_rate": 0.3, "families": list(given), **others}}}


@pytest.mark.soak
def test_dual_variables_go_with_the_definition_of_their_slices(half, whole, logs, schema, change, tmp_path):
    ctr = {"name": "ctr", "estimated_ctr": [0.2, 0.5]}
    places = {"name": "places", "features": {"position": "all"}}
    gone = {"name": "gone"}
    train(half, change(families(ctr, places, gone)), tmp_path / "old")
    before = weights(tmp_path / "old")
    # Another rate and another order are the same slices.
    config = change(
        families({**places, "learning_rate": 0.01}, {**ctr, "estimated_ctr": [0.2, 0.4]}, {"name": "new"})
    )
    found = begun(tmp_path / "old", whole, config, tmp_path / "run")
    for group in ("duals", "slices_seen"):
        np.testing.assert_array_equal(found[f"{group}/places"], before[f"{group}/places"])
    assert found["duals/places"].any()
    assert not found["duals/ctr"].any()
    assert {name: line[0] for name, line in statuses(tmp_path / "run", "slices").items()} == {
        "places": "taken", "ctr": "fresh", "new": "fresh", "gone": "left",
    }  # fmt: skip
    assert statuses(tmp_path / "run", "ramp")["bias_constraints"] == ("taken", None)
    # A feature of other ids has other slices under the same name.
    other = schema.features[3].model_copy(update={"source": "slot"})
    log = logs.publish("slots", Schema(features=(*schema.features[:3], other)))
    found = begun(tmp_path / "old", log, change(families(places)), tmp_path / "slots")
    assert not found["duals/places"].any()
    assert statuses(tmp_path / "slots", "ramp")["bias_constraints"] == ("fresh", None)


# The place in the logs.


@pytest.mark.soak
def test_in_another_log_it_begins_behind_what_was_learned(
    old, logs, schema, config, tmp_path, read_predictions
):
    new = schema.features[0].model_copy(update={"name": "hour", "source": "hour", "buckets": 24})
    log = logs.publish("later", Schema(features=(*schema.features, new)), (30_000, 110_000, 190_000, END))
    train(log, config, tmp_path / "run", init_from=InitFrom(old))
    begin = logs.rows_before(HALF) - logs.rows_before(30_000)
    assert read_warm_start(tmp_path / "run")["begins_at"] == {
        "log": begin,
        "learned": begin,
        "constraint_logs": {},
    }
    known, found = read_predictions(old), read_predictions(tmp_path / "run")
    assert known["query_time"].max() < found["query_time"].min()
    assert len(known) + len(found) == len(logs.times)


@pytest.mark.parametrize("shard_rows", [1, 3, 100])
def test_rows_up_to_a_query_are_counted_in_the_order_of_the_log(examples, schema, tmp_path, shard_rows):
    from ctr.data.log import read_manifests
    from ctr.data.row_order import sort_rows
    from ctr.training.logs import Log
    from ctr.training.warm_start.start import rows_until

    # Three queries at each time, whose ids are not in the order of time.
    table = examples.table().slice(0, 60)
    number = np.repeat(np.arange(20), 3)
    columns = {"query_time": 1000 * (number // 3), "query_id": (number * 7) % 20}
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    table = sort_rows(table)
    create_log(tmp_path / "log", schema)
    for start, end in ((0, 3000), (3000, 4000), (4000, 9000)):
        inside = np.array([start <= time < end for time in table.column("query_time").to_pylist()])
        publish_partition(
            tmp_path / "log",
            schema,
            start,
            end,
            table.take(pa.array(np.flatnonzero(inside))),
            shard_rows=shard_rows,
        )
    log = Log(tmp_path / "log", read_manifests(tmp_path / "log"))
    keys = list(
        zip(table.column("query_time").to_pylist(), table.column("query_id").to_pylist(), strict=True)
    )
    for key in [*set(keys), (-1, 0), (2000, -5), (3500, 0), (10**9, 0)]:
        assert rows_until(log, schema, *key) == sum(other <= key for other in keys)


def test_a_checkpoint_without_the_last_queries_serves_in_its_own_log(
    old, logs, schema, whole, config, copy_run, tmp_path
):
    source = copy_run(old)
    arrays, state = checkpoint.read(source / "checkpoints")
    known = {name: value for name, value in state["position"].items() if not name.endswith("_until")}
    shutil.rmtree(source / "checkpoints")
    checkpoint.save(source / "checkpoints", known["examples"], arrays, {**state, "position": known}, 1)
    warm_start(whole, config, tmp_path / "run", InitFrom(source))
    assert read_warm_start(tmp_path / "run")["begins_at"]["log"] == logs.rows_before(HALF)
    with pytest.raises(InputError, match="does not record how far the run got in any log but its own"):
        warm_start(
            logs.publish("cut", schema, (0, 30_000, END)), config, tmp_path / "other", InitFrom(source)
        )


def test_a_log_that_ends_too_early_is_refused(old, half, whole, logs, schema, config, tmp_path):
    with pytest.raises(
        InputError, match=r"has no row after those that .* was trained on, the first \d+; with --follow"
    ):
        train(half, config, tmp_path / "run", init_from=InitFrom(old))
    log = logs.publish("early", schema, (0, 80_000, 150_000))
    with pytest.raises(
        InputError, match=r"the log is published until query time 150000, but .* is already at"
    ):
        warm_start(log, config, tmp_path / "run", InitFrom(old), waits=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_what_waits_for_its_label_is_learned_by_the_new_run(
    whole, half, change, logs, tmp_path, read_predictions
):
    delayed = change({"label_delay": 0.03, "batch": {"within_partitions": True}})
    train(half, delayed, tmp_path / "old")
    train(whole, delayed, tmp_path / "uninterrupted")
    train(whole, merge_into(delayed, HARMLESS), tmp_path / "run", init_from=InitFrom(tmp_path / "old"))
    begins = read_warm_start(tmp_path / "run")["begins_at"]
    assert logs.rows_before(HALF - 45_000) < begins["learned"] < begins["log"] == logs.rows_before(HALF)
    assert_equal(weights(tmp_path / "run"), weights(tmp_path / "uninterrupted"))
    # Without a delay nothing is learned from that was not scored just before: it goes back to where learning stood.
    warm_start(whole, change(), tmp_path / "prompt", InitFrom(tmp_path / "old"))
    prompt = read_warm_start(tmp_path / "prompt")["begins_at"]
    assert prompt["log"] == prompt["learned"] == begins["learned"]


def merge_into(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    return TrainConfig.model_validate(merged(config.model_dump(mode="json"), changes))


@pytest.mark.soak
def test_constraint_logs_go_on_where_they_stood(half, whole, exposure, change, tmp_path):
    path = exposure.grow(3)
    shown = families({"name": "random", "log": "exposure"}, logs=[{"name": "exposure", "path": str(path)}])
    train(half, change(shown), tmp_path / "old")
    train(whole, change(shown), tmp_path / "uninterrupted")
    train(whole, change(shown, HARMLESS), tmp_path / "run", init_from=InitFrom(tmp_path / "old"))
    assert_equal(weights(tmp_path / "run"), weights(tmp_path / "uninterrupted"))
    begins = read_warm_start(tmp_path / "run")["begins_at"]["constraint_logs"]
    times = exposure.table.column("query_time").to_numpy()
    assert 0 < begins["exposure"] < (times < HALF).sum()
    # One that is new begins with what comes, not with the past.
    renamed = families({"name": "random", "log": "other"}, logs=[{"name": "other", "path": str(path)}])
    warm_start(whole, change(renamed), tmp_path / "renamed", InitFrom(tmp_path / "old"))
    assert (
        read_warm_start(tmp_path / "renamed")["begins_at"]["constraint_logs"]["other"] == begins["exposure"]
    )


# Kills, resumes, and what is refused.


@pytest.fixture(scope="session")
def killed_launch() -> Any:
    """Launches and trains in a process that is killed at a point of ``fault_points.py``; returns its exit status."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ctr.training.loop", "ctr.training.follow"])

    def run(log: Path, config: TrainConfig, folder: Path, source: Path, kill_at: tuple[str, int, str]) -> int:
        given = {"log": str(log), "config": config.model_dump(mode="json"), "run": str(folder)}
        given |= {"source": str(source), "kill_at": kill_at}
        process = context.Process(target=killed_warm_start.main, args=(given,))
        process.start()
        process.join(300)
        assert process.exitcode is not None
        return process.exitcode

    return run


def outcome(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_text())
    return {
        "weights": {name: array.tobytes() for name, array in weights(run).items()},
        "predictions": {path.name: path.read_bytes() for path in run.glob("predictions/*")},
        "launch": read_warm_start(run),
        "results": {name: value for name, value in summary.items() if name not in TIMING},
    }


# Where, and whether the run is begun then.
MOMENTS = [
    (("mkdir.after", 1, ".run.launching"), False),
    (("write.half", 1, "arrays.npz"), False),
    (("rename.after", 1, ".run.launching/checkpoints/"), False),
    (("fsync.before", 1, "init_from.json"), False),
    (("rename.before", 1, "/run"), False),
    (("rename.after", 1, "/run"), True),
    (("learn.after", 2, ""), True),
    (("rename.before", 1, "/run/checkpoints/"), True),
]


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("moment", "is_begun"),
    [
        pytest.param(*given, marks=() if given[0][0] == "rename.after" and given[1] else pytest.mark.slow)
        for given in MOMENTS
    ],
)
def test_killed_at_any_moment_it_is_begun_or_not(
    old, whole, change, unkilled, killed_launch, tmp_path, moment, is_begun
):
    source, run = tmp_path / "source", tmp_path / "run"
    source.symlink_to(old)
    assert killed_launch(whole, change(HARMLESS), run, source, moment) == KILLED
    assert run.exists() == is_begun
    if is_begun:
        # It needs the old run no more.
        source.unlink()
        assert (run / "init_from.json").is_file() and list((run / "checkpoints").iterdir())
        train(whole, change(HARMLESS), run)
    else:
        train(whole, change(HARMLESS), run, init_from=InitFrom(source))
    assert outcome(run) == outcome(unkilled)
    assert [path.name for path in tmp_path.iterdir() if path != source] == ["run"]


def test_begun_once_it_is_resumed_from_then_on(old, unkilled, whole, change, copy_run, tmp_path):
    run, before = copy_run(unkilled), outcome(unkilled)
    reported: list[str] = []
    summary = train(whole, change(HARMLESS), run, init_from=InitFrom(old, reported.append))
    assert summary["init_from"] == before["launch"]
    assert reported == [] and outcome(run) == before
    with pytest.raises(
        InputError, match=r"was started from .*, not from .*other: run without --init-from to resume it"
    ):
        train(whole, change(HARMLESS), run, init_from=InitFrom(tmp_path / "other"))
    with pytest.raises(InputError, match="was started without --init-from"):
        train(whole, change(), copy_run(old), init_from=InitFrom(unkilled))
    with pytest.raises(InputError, match="this is the run directory itself"):
        train(whole, change(), old, init_from=InitFrom(old))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="neither empty nor a run directory"):
        train(whole, change(), tmp_path / "mine", init_from=InitFrom(old))
    shutil.rmtree(run / "checkpoints")
    (run / "summary.json").unlink()
    with pytest.raises(InputError, match="has no checkpoint left, so it would start from scratch"):
        train(whole, change(HARMLESS), run)


def test_a_run_that_gives_nothing_is_refused(old, logs, schema, whole, config, copy_run, tmp_path):
    def refused(source: Path, match: str, log: Path = whole) -> None:
        with pytest.raises(InputError, match=match) as caught:
            train(log, config, tmp_path / "run", init_from=InitFrom(source))
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    refused(tmp_path / "nothing", "not a run directory: it has no config.yaml")
    refused(whole, "not a run directory")
    damaged = copy_run(old)
    for path in damaged.glob("checkpoints/*/arrays.npz"):
        path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    refused(damaged, "the checkpoint is damaged")
    shutil.rmtree(damaged / "checkpoints")
    refused(damaged, "there is no checkpoint")
    swapped = copy_run(old)
    text = (swapped / "config.yaml").read_text()
    (swapped / "config.yaml").write_text(text.replace("units:\n    - 8", "units:\n    - 9"))
    refused(
        swapped,
        r"the checkpoint is not one of its config.yaml: dense/006 has the shape \[14, 8\], not \[14, 9\]",
    )
    edited = copy_run(old)
    content = yaml.safe_load(text)
    content["optimizer"]["dense"]["shampoo"]["gradient"] = {"beta1": 0.5}
    (edited / "config.yaml").write_text(yaml.safe_dump(content))
    same = config.model_dump(mode="json")
    same["optimizer"]["dense"]["shampoo"]["gradient"] = {"beta1": 0.5}
    with pytest.raises(InputError, match=r"not one of its config.yaml: .*tensor0/gradient_average"):
        warm_start(whole, TrainConfig.model_validate(same), tmp_path / "run", InitFrom(edited))
    others = tuple(feature.model_copy(update={"source": f"{feature.source}2"}) for feature in schema.features)
    refused(
        old,
        "no feature of the log is the same as in this run",
        logs.publish("nothing", Schema(features=others)),
    )
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.soak
def test_it_follows_a_log(old, logs, schema, change, unkilled, tmp_path):
    log = logs.publish("followed", schema, (0, 80_000, HALF))
    polling, run = Polling(0.01, 0.1), tmp_path / "run"
    waiting = follow(log, change(HARMLESS), run, lambda: None, polling, init_from=InitFrom(old))
    assert waiting.position == logs.rows_before(HALF)
    assert waiting.init_from == read_warm_start(run)
    logs.grow(log, logs.table, HALF, END)
    follow(log, change(HARMLESS), run, lambda: None, polling, init_from=InitFrom(old))
    assert_equal(weights(run), weights(unkilled))


@pytest.mark.slow
def test_the_command_line(old, whole, change, tmp_path, capsys):
    from ctr.cli import main
    from ctr.config import dump_yaml

    plain = change({"model": {"crosses": {"layers": 0}, "deep": {"units": []}}})
    (tmp_path / "config.yaml").write_text(dump_yaml(plain))
    command = ["train", str(whole), "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]
    assert main([*command, "--init-from", str(tmp_path / "none"), "--json"]) == 1
    assert capsys.readouterr().err.startswith(f"error: --init-from {tmp_path / 'none'}: not a run directory")
    assert main([*command, "--init-from", str(old), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["init_from"] == read_warm_start(tmp_path / "run")
    assert "dense weights      taken        output_bias\n" in captured.err
    assert (
        "features           partly       user, item, tags  (the linear weights alone: the width was 4, is 0)"
        in (captured.err)
    )


def test_a_resume_on_other_features_names_them(old, logs, schema, config, copy_run):
    user, item, _, position = schema.features
    new = user.model_copy(update={"name": "hour"})
    changed = item.model_copy(update={"buckets": 60})
    log = logs.publish("renamed", Schema(features=(position, user, changed, new)))
    with pytest.raises(InputError) as caught:
        train(log, config, copy_run(old))
    for reported in (
        "feature hour was added",
        "feature tags was removed",
        "feature item: buckets was 50, is 60",
        "the order was user, item, tags, position, now position, user, item, hour",
    ):
        assert reported in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("jit", True), ("intra_op_threads", 64), ("inter_op_threads", 64)]
)
def test_a_resume_under_another_jit_or_thread_count_names_it(old, half, config, copy_run, key, value):
    run = copy_run(old)
    (run / "summary.json").unlink()
    environment = json.loads((run / "environment.json").read_text())
    now = environment[key]
    assert now == (False if key == "jit" else len(os.sched_getaffinity(0)))
    (run / "environment.json").write_text(json.dumps({**environment, key: value}))
    with pytest.raises(InputError, match=f"{key} was {value}, is {now}"):
        train(half, config, run)


def test_what_a_calibrator_has_seen_is_taken_with_its_information_or_not_at_all():
    def known(experts: int, value: float) -> dict[str, np.ndarray]:
        names = {"newton/bias/seen": (), "newton/bias/information": ()}
        shapes = {**names, "newton/prediction/seen": (), "newton/prediction/information": (experts, experts)}
        return {name: np.full(shape, value) for name, shape in shapes.items()}

    alone, both = known(1, 3.0), known(2, 0.0)
    take_fitted(both, alone)
    assert both["newton/bias/seen"] == both["newton/bias/information"] == 3
    assert both["newton/prediction/seen"] == 0 and not both["newton/prediction/information"].any()
