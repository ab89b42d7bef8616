"""A run that begins from another one: what it takes is matched by meaning, and what it cannot take is told."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from ctr.data.log import create_log, read_manifests
from ctr.data.shards import publish_partition, sort_rows
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.logs import Log
from ctr.training.session import open_session, train
from ctr.training.warm_start.start import InitFrom, rows_until, warm_start
from ctr.training.warm_start.weights import take_combination
from warm_starts import (
    FRESH,
    HARMLESS,
    HOUR,
    ITEM,
    POSITION,
    SCHEMA,
    TAGS,
    TAKEN,
    USER,
    Rows,
    begun,
    changed,
    config_of,
    publish,
    table_of,
    weights,
)

# What is taken.


def test_features_that_came_went_or_moved_keep_their_rows(old, tmp_path):
    before, other = Rows(weights(old)), ("fresh", "other embeddings")
    # With features in another order, weights of the same shape would read other embeddings.
    features = (ITEM, TAGS, USER, POSITION)
    rows = Rows(begun(old, publish(tmp_path / "log", features), config_of(), tmp_path / "run"), features)
    rows.assert_equal(before, *SCHEMA.by_name)
    assert rows.columns()["user"] != before.columns()["user"]
    assert rows.arrays["dense/000"].shape == before.arrays["dense/000"].shape
    assert not np.array_equal(rows.arrays["dense/000"], before.arrays["dense/000"])
    assert set(table_of(tmp_path / "run", "weight").values()) == {other}
    assert table_of(tmp_path / "run", "ramp")["alpha2"] == ("fresh", "begins here")
    features, seed = (POSITION, HOUR, TAGS, USER), {"seed": 5}
    log = publish(tmp_path / "more", features)
    rows = Rows(begun(old, log, config_of(seed), tmp_path / "new"), features, seed)
    rows.assert_equal(before, "position", "tags", "user")
    assert rows.by_id("hour") == {}
    kept = dict.fromkeys(("position", "tags", "user"), TAKEN)
    assert table_of(tmp_path / "new", "feature") == {**kept, "hour": FRESH, "item": ("left", "")}
    with open_session(log, config_of(seed), tmp_path / "fresh") as session:
        fresh = session.run.state.arrays()
    for name in ("dense/000", "shampoo/tensor0/accumulator"):
        np.testing.assert_array_equal(rows.arrays[name], fresh[name])


def test_a_feature_of_other_ids_or_of_another_width_begins_fresh(old, tmp_path):
    before = Rows(weights(old))
    features = (changed(USER, source="person"), changed(ITEM, buckets=60), TAGS, changed(POSITION, width=3))
    found = begun(old, publish(tmp_path / "log", features), config_of(), tmp_path / "run")
    rows = Rows(found, features)
    assert table_of(tmp_path / "run", "feature") == {
        "user": ("fresh", "source was 'user', is 'person'"),
        "item": ("fresh", "buckets was 50, is 60"),
        "tags": TAKEN,
        "position": ("fresh", "width was 2, is 3"),
    }
    rows.assert_equal(before, "tags")
    for name in ("item", "position"):
        values, sums = rows.fixed(name)
        assert not values[:, -1].any() and (sums[:, :-1] == np.float32(0.01)).all()
    assert rows.by_id("user") == {}
    # Ids that grow are none of a feature that has buckets; and one that is gone leaves no slots behind.
    features = (USER, changed(ITEM, buckets=None), changed(TAGS, buckets=40))
    rows = Rows(
        begun(old, publish(tmp_path / "other-log", features), config_of(), tmp_path / "other"), features
    )
    assert table_of(tmp_path / "other", "feature") == {
        "user": TAKEN,
        "item": ("fresh", "buckets was 50, is None"),
        "tags": ("fresh", "buckets was None, is 40"),
        "position": ("left", ""),
    }
    assert rows.by_id("item") == {} and rows.by_id("user") == before.by_id("user") != {}


def test_as_many_ids_and_shared_rows_are_taken_as_there_are(old, whole, tmp_path):
    changes = {"ids": {"capacities": {"user": 10}, "eviction": {"policy": "score"}, "shared_rows": 3}}
    rows = Rows(begun(old, whole, config_of(changes), tmp_path / "run"), SCHEMA.features, changes)
    before = Rows(weights(old))
    taken, known = rows.by_id("user"), before.by_id("user")
    assert len(taken) == 10 < len(known) and taken.items() <= known.items()
    assert rows.by_id("tags") == before.by_id("tags")
    # None of those left out was seen later and more often.
    assert max(one[3] for one in taken.values()) == max(one[3] for one in known.values())
    for name in SCHEMA.growing:
        (found, sums), (expected, _) = rows.fixed(name), before.fixed(name)
        # The row of a missing value is what it was; nobody has learned anything from the others yet.
        assert len(found) == 4 and len(expected) == 1 + before.config.ids.shared_rows
        np.testing.assert_array_equal(found[0], expected[0])
        assert not found[1:, -1].any() and (sums[1:, :-1] == np.float32(0.01)).all()


@pytest.mark.parametrize(
    ("shampoo", "why", "embeddings", "rows_why"),
    [
        ({"block_size": 5}, "block_size was 256, is 5", {"gradient": "mean"}, "gradient was sum, is mean"),
        (
            {"momentum": 0.5},
            "momentum was 0.9, is 0.5",
            {"rule": "one_sided"},
            "rule was adagrad, is one_sided",
        ),
        ({}, "", {"learning_rate": 0.2}, ""),
    ],
)
def test_the_optimizers_state_goes_with_its_options(old, whole, tmp_path, shampoo, why, embeddings, rows_why):
    changes = {"dense": {"shampoo": shampoo, "learning_rate": 0.003}, "embeddings": embeddings}
    found, before = begun(old, whole, config_of({"optimizer": changes}), tmp_path / "run"), weights(old)
    assert set(table_of(tmp_path / "run", "weight").values()) == {TAKEN}
    lines = table_of(tmp_path / "run", "optimizer")
    assert lines["dense"] == (("fresh", f"optimizer.dense.shampoo.{why}") if why else TAKEN)
    names = [name for name in before if name.startswith("shampoo/")]
    kept = [name for name in names if name in found and np.array_equal(found[name], before[name])]
    assert "shampoo/stack0/axis0/total" in names and (kept == names) == (not why)
    assert not {"shampoo/step", "shampoo/tensor0/accumulator"} & {*(kept if why else ())}
    np.testing.assert_array_equal(found["dense/000"], before["dense/000"])
    # Rows lose their sums where gradients are of another scale, and begin with those of another rule.
    assert table_of(tmp_path / "run", "feature")["user"] == TAKEN
    assert rows_why in lines["embeddings"][1] and lines["embeddings"][0] == ("fresh" if rows_why else "taken")
    (rows, sums), (known, known_sums) = (
        (arrays["rows/ui-2"], arrays.get("rows_accumulator/ui-2")) for arrays in (found, before)
    )
    np.testing.assert_array_equal(rows, known)
    if rows_why:
        assert (sums[:, :2] == np.float32(0.01)).all()
    else:
        np.testing.assert_array_equal(sums, known_sums)


@pytest.mark.slow
def test_a_layer_of_another_shape_begins_fresh_and_so_does_the_optimizer(old, whole, tmp_path):
    def lines(part: str, **model: Any) -> dict[str, tuple[str, str]]:
        run = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        begun(old, whole, config_of({"model": model}), run)
        return table_of(run, part)

    found = lines("weight", deep={"units": [6, 8]})
    of_crosses = {f"quality/cross_{layer}/{part}" for layer in (0, 1) for part in ("u", "v", "v_bias")}
    assert {name for name, line in found.items() if line == TAKEN} == of_crosses | {
        "output_bias",
        "quality_head",
    }
    assert found["quality/deep_0/w"] == ("fresh", "its shape was [14, 8], is [14, 6]")
    assert found["quality/deep_1/w"] == FRESH
    assert lines("weight", crosses={"layers": 0})["quality/cross_0/u"] == ("left", "")
    assert lines("optimizer", crosses={"layers": 0})["dense"][0] == "fresh"
    # Without crosses nothing ramps up, and other ones begin to.
    assert lines("ramp", crosses={"layers": 0}) == {}
    assert lines("ramp", crosses={"rank": 2}) == {"alpha2": ("fresh", "begins here")}


def test_what_combines_experts_is_taken_with_its_information_where_these_are_the_same():
    def known(names: str, value: float) -> dict[str, np.ndarray]:
        size, combiner = len(names.split("-")), f"newton/experts/{names}"
        shapes = {"experts/linear/bias": (), "newton/linear/seen": (), f"experts/{names}": (size,)}
        shapes |= {f"{combiner}/seen": (), f"{combiner}/information": (size, size)}
        return {name: np.full(shape, value) for name, shape in shapes.items()}

    old, new = known("linear-network", 3.0), known("linear-network-pairs", 0.0)
    take_combination(new, old)
    assert {name for name, array in new.items() if array.any()} == {
        "experts/linear/bias",
        "newton/linear/seen",
    }
    same = known("linear-network", 0.0)
    take_combination(same, old)
    assert all((array == 3).all() for array in same.values())


# The place in the logs.


def test_rows_up_to_a_query_are_counted_in_the_order_of_the_log(examples, schema, tmp_path):
    # Three queries at each time, whose ids are not in the order of time.
    table, number = examples.table().slice(0, 60), np.repeat(np.arange(20), 3)
    for name, values in (("query_time", 1000 * (number // 3)), ("query_id", (number * 7) % 20)):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    table = sort_rows(table)
    times, ids = (table.column(name).to_pylist() for name in ("query_time", "query_id"))
    keys = list(zip(times, ids, strict=True))
    for shard_rows in (1, 3, 100):
        folder = tmp_path / str(shard_rows)
        create_log(folder, schema)
        for start, end in ((0, 3000), (3000, 4000), (4000, 9000)):
            inside = np.flatnonzero([start <= time < end for time in times])
            publish_partition(folder, schema, start, end, table.take(pa.array(inside)), shard_rows=shard_rows)
        log = Log(folder, read_manifests(folder))
        for key in [*set(keys), (-1, 0), (2000, -5), (3500, 0), (10**9, 0)]:
            assert rows_until(log, schema, *key) == sum(other <= key for other in keys)


def test_a_log_in_which_the_old_run_has_no_place_is_refused(old, half, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(
        InputError, match=r"has no row after those that .* was trained on, the first \d+; with --follow"
    ):
        train(half, config_of(), run, init_from=InitFrom(old))
    early = publish(tmp_path / "early", ends=(0, 80_000, 150_000))
    with pytest.raises(
        InputError, match=r"the log is published until query time 150000, but .* is already at"
    ):
        warm_start(early, config_of(), run, InitFrom(old), waits=True)
    assert not run.exists()


# What is refused.


def test_begun_once_it_is_resumed_from_then_on(old, whole, tmp_path):
    run, config = tmp_path / "run", config_of(HARMLESS)
    reported: list[str] = []
    for _ in range(2):
        warm_start(whole, config, run, InitFrom(old, reported.append))
    assert len(reported) == 1
    with pytest.raises(
        InputError, match=r"was started from .*, not from .*other: run without --init-from to resume it"
    ):
        train(whole, config, run, init_from=InitFrom(tmp_path / "other"))
    with pytest.raises(InputError, match="was started without --init-from"):
        train(whole, config_of(), old, init_from=InitFrom(run))
    with pytest.raises(InputError, match="this is the run directory itself"):
        train(whole, config_of(), old, init_from=InitFrom(old))
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(InputError, match="has no checkpoint left, so it would start from scratch"):
        train(whole, config, run)
    # And a resume on other features names them.
    log = publish(tmp_path / "log", (POSITION, USER, changed(ITEM, buckets=60), HOUR))
    with pytest.raises(InputError) as caught:
        train(log, config_of(), old)
    for words in (
        "feature hour was added",
        "feature tags was removed",
        "feature item: buckets was 50, is 60",
        "the order was user, item, tags, position, now position, user, item, hour",
    ):
        assert words in str(caught.value)


def test_a_run_that_gives_nothing_is_refused(old, whole, copy_run, tmp_path):
    def refused(source: Path, match: str, log: Path = whole, config: TrainConfig | None = None) -> None:
        with pytest.raises(InputError, match=match) as caught:
            train(log, config or config_of(), tmp_path / "run", init_from=InitFrom(source))
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
    swapped, text = copy_run(old), (old / "config.yaml").read_text()
    (swapped / "config.yaml").write_text(text.replace("units:\n    - 8", "units:\n    - 9"))
    another = "the checkpoint is not one of its config.yaml: "
    refused(swapped, rf"{another}quality/deep_0/w has the shape \[14, 8\], not \[14, 9\]")
    content = yaml.safe_load(text)
    content["optimizer"]["dense"]["shampoo"]["beta1"] = 0.5
    (swapped / "config.yaml").write_text(yaml.safe_dump(content))
    averaging = config_of({"optimizer": {"dense": {"shampoo": {"beta1": 0.5}}}})
    refused(swapped, f"{another}.*tensor0/gradient_average", config=averaging)
    others = [changed(feature, source=f"{feature.source}2") for feature in SCHEMA.features]
    refused(old, "no feature of the log is the same as in this run", publish(tmp_path / "log", others))
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
