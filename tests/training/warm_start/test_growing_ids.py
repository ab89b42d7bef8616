"""A run that begins from another one with ids that grow: they are matched by fingerprint, wherever their slots are."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import create_log
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.hashing import splitmix64
from ctr.models.embeddings import new_rows
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run.directory import read_warm_start
from ctr.training.warm_start.start import InitFrom, warm_start
from small_runs import SMALL, draw_examples, merged

HALF, END = 160_000, 240_000
USER = Category(name="user", source="user", width=4)
ITEM = Category(name="item", source="item", buckets=50, width=4)
TAGS = Category(name="tags", source="tags", width=4, multivalent=True)
POSITION = Category(name="position", source="position", width=2, tower="ui")
SCHEMA = Schema(features=(USER, ITEM, TAGS, POSITION))
GROUPS = ("rows", "rows_accumulator")


def config_of(*changes: dict[str, Any]) -> TrainConfig:
    # Batches end with partitions, so that a pass over half of the log and the rest is a pass over all of it.
    content = merged(SMALL, {"batch": {"within_partitions": True}, "metrics": {"slices": []}})
    for change in changes:
        content = merged(content, change)
    return parse_model(TrainConfig, content, "test")


def fingerprints(ids: np.ndarray) -> np.ndarray:
    """Another number for each id; 0 stays 0."""
    return np.where(ids == 0, 0, splitmix64(ids.astype(np.uint64)).view(np.int64))


def publish(folder: Path, schema: Schema = SCHEMA, ends: tuple[int, ...] = (0, 80_000, HALF, END)) -> Path:
    """The same examples as a log of any features; of those with no buckets the ids are ``fingerprints``."""
    create_log(folder, schema)
    examples = draw_examples()
    table = examples.table()
    columns = dict(zip(("user", "item", "position"), examples.ids.T, strict=True))
    columns["hour"] = np.arange(len(examples)) % 24

    def ids_of(name: str, values: np.ndarray) -> np.ndarray:
        return fingerprints(values) if name in schema.growing else values

    ids = np.stack([ids_of(name, columns[name]) for name in schema.single_valued], axis=1)
    tags = [ids_of("tags", np.array(row, np.int64)).tolist() for row in examples.tags]
    columns = {
        **{name: table.column(name) for name in table.column_names if name not in ("ids", "tags")},
        "ids": pack_ids(ids.astype(schema.id_type)),
    }
    if "tags" in schema.by_name:
        columns["tags"] = pa.array(tags, pa.list_(pa.from_numpy_dtype(schema.id_type)))
    table, times = pa.table(columns), table.column("query_time").to_numpy()
    for start, end in pairwise(ends):
        inside = pa.array(np.flatnonzero((times >= start) & (times < end)))
        publish_partition(folder, schema, start, end, table.take(inside), shard_rows=170)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("whole") / "log")


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """A run that has passed the first half of the log."""
    folder = tmp_path_factory.mktemp("old")
    train(publish(folder / "log", ends=(0, 80_000, HALF)), config_of(), folder / "run")
    return folder / "run"


def weights(run: Path) -> dict[str, np.ndarray]:
    """Of the newest checkpoint; the counters alone begin anew with each run."""
    with np.load(max((run / "checkpoints").iterdir()) / "arrays.npz") as arrays:
        names = [name for name in arrays if name.startswith("weights|") and "counters" not in name]
        return {name.removeprefix("weights|"): arrays[name] for name in names}


def layout_of(config: TrainConfig, schema: Schema, name: str) -> Any:
    (layout,) = [
        one for one in config.table_layouts(schema) if name in (feature.name for feature in one.features)
    ]
    return layout


def by_id(
    arrays: dict[str, np.ndarray], config: TrainConfig, schema: Schema, name: str
) -> dict[int, tuple[bytes, bytes]]:
    """By fingerprint of a feature's ids that have slots, the row and its sums of squares."""
    layout = layout_of(config, schema, name)
    number = [feature.name for feature in layout.growing].index(name)
    slots = f"ids/{layout.name}/slots"
    return {
        int(one): tuple(arrays[f"{group}/{layout.name}"][layout.rows + place].tobytes() for group in GROUPS)
        for place, (feature, one) in enumerate(
            zip(arrays[f"{slots}/feature"], arrays[f"{slots}/fingerprint"], strict=True)
        )
        if feature == number
    }


def fixed_rows(
    arrays: dict[str, np.ndarray], config: TrainConfig, schema: Schema, name: str
) -> list[np.ndarray]:
    """A feature's fixed rows: where ids grow those of a missing value and of ids without a slot."""
    layout = layout_of(config, schema, name)
    begin = layout.offsets()[name]
    count = next(feature.buckets for feature in layout.features if feature.name == name)
    return [arrays[f"{group}/{layout.name}"][begin : begin + count] for group in GROUPS]


def begun(old: Path, log: Path, config: TrainConfig, run: Path) -> dict[str, np.ndarray]:
    warm_start(log, config, run, InitFrom(old))
    return weights(run)


def statuses(run: Path) -> dict[str, tuple[str, str, str]]:
    content = read_warm_start(run)
    assert content is not None
    return {
        line["name"]: (line["status"], line["optimizer"], line["why"])
        for line in content["table"]
        if line["part"] == "feature"
    }


@pytest.mark.slow
def test_a_run_that_begins_from_another_one_goes_on_bit_by_bit(old, whole, tmp_path, read_predictions):
    config = config_of({"metrics": {"window_examples": 100}})
    train(whole, config_of(), tmp_path / "uninterrupted")
    train(whole, config, tmp_path / "run", init_from=InitFrom(old))
    found, expected = weights(tmp_path / "run"), weights(tmp_path / "uninterrupted")
    for name in SCHEMA.growing:
        assert by_id(found, config, SCHEMA, name) == by_id(expected, config, SCHEMA, name)
    for name in SCHEMA.by_name:
        for one, other in zip(*(fixed_rows(w, config, SCHEMA, name) for w in (found, expected)), strict=True):
            np.testing.assert_array_equal(one, other)
    for name, array in expected.items():
        if not name.startswith(("ids/", *GROUPS)):
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    own = read_predictions(tmp_path / "run")
    later = read_predictions(tmp_path / "uninterrupted")[-len(own) :].reset_index(drop=True)
    assert 0 < len(own) < len(draw_examples())
    pd.testing.assert_frame_equal(own, later)
    assert set(statuses(tmp_path / "run").values()) == {("taken", "taken", "")}


def test_ids_keep_what_was_learned_of_them_in_another_order_of_features(old, tmp_path):
    hour = Category(name="hour", source="hour", width=4)
    schema = Schema(features=(POSITION, hour, TAGS, ITEM, USER))
    config = config_of({"seed": 5})
    found = begun(old, publish(tmp_path / "log", schema), config, tmp_path / "run")
    before = weights(old)
    for name in SCHEMA.growing:
        taken = by_id(found, config, schema, name)
        assert taken == by_id(before, config_of(), SCHEMA, name)
        assert len(taken) >= 7
    for name in SCHEMA.by_name:
        pairs = zip(
            fixed_rows(found, config, schema, name),
            fixed_rows(before, config_of(), SCHEMA, name),
            strict=True,
        )
        for one, other in pairs:
            np.testing.assert_array_equal(one, other)
    assert by_id(found, config, schema, "hour") == {}
    assert statuses(tmp_path / "run") == {
        **dict.fromkeys(SCHEMA.by_name, ("taken", "taken", "")),
        "hour": ("fresh", "fresh", "the old run has none"),
    }


def test_a_feature_that_is_gone_leaves_no_slots_behind(old, tmp_path):
    schema = Schema(features=(ITEM, TAGS, POSITION))
    found = begun(old, publish(tmp_path / "log", schema), config_of(), tmp_path / "run")
    before = by_id(weights(old), config_of(), SCHEMA, "tags")
    assert by_id(found, config_of(), schema, "tags") == before
    assert len(found["ids/quality-4/slots/fingerprint"]) == len(before)
    assert statuses(tmp_path / "run")["user"] == ("left", None, "the new run has none")


def test_ids_of_another_width_keep_their_linear_weights_alone(old, tmp_path):
    schema = Schema(features=(USER.model_copy(update={"width": 7}), ITEM, TAGS, POSITION))
    config = config_of()
    found = begun(old, publish(tmp_path / "log", schema), config, tmp_path / "run")
    before = weights(old)
    assert statuses(tmp_path / "run")["user"] == (
        "partly",
        "partly",
        "the linear weights alone: the width was 4, is 7",
    )
    rows, earlier = (
        {one: np.frombuffer(row, np.float32) for one, (row, _) in by_id(*what, "user").items()}
        for what in ((found, config, schema), (before, config, SCHEMA))
    )
    sums, earlier_sums = (
        {one: np.frombuffer(row, np.float32) for one, (_, row) in by_id(*what, "user").items()}
        for what in ((found, config, schema), (before, config, SCHEMA))
    )
    assert rows.keys() == earlier.keys()
    layout = layout_of(config, schema, "user")
    assert layout.growing[0].name == "user"
    prints = np.array(list(rows), np.int64)
    # As in a run in which they are new.
    fresh = new_rows(layout, np.zeros(len(prints), np.int16), prints, config.model.init_scale, config.seed)
    for (one, row), new in zip(rows.items(), fresh, strict=True):
        assert row[-1] == earlier[one][-1] and sums[one][-1] == earlier_sums[one][-1]
        np.testing.assert_array_equal(row[:-1], new[:-1])
        assert (sums[one][:-1] == np.float32(0.01)).all()
    assert by_id(found, config, schema, "tags") == by_id(before, config, SCHEMA, "tags")


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("policy", ["score", "none"])
def test_as_many_ids_as_fit_are_taken(old, whole, tmp_path, policy):
    config = config_of(
        {"ids": {"capacities": {"user": 10}, "eviction": {"policy": policy}, "shared_rows": 8}}
    )
    found = begun(old, whole, config, tmp_path / "run")
    before = weights(old)
    taken, known = (by_id(w, config_of(), SCHEMA, "user") for w in (found, before))
    assert len(taken) == 10 < len(known)
    assert taken.items() <= known.items()
    assert by_id(found, config, SCHEMA, "tags") == by_id(before, config_of(), SCHEMA, "tags")
    if policy == "score":
        # None of those left out was seen later and more often.
        slots = {name: before[f"ids/quality-4/slots/{name}"] for name in ("last_seen", "uses", "fingerprint")}
        last = dict(zip(slots["fingerprint"].tolist(), slots["last_seen"].tolist(), strict=True))
        assert max(last[one] for one in taken) == max(last[one] for one in known)
    # It goes on with what it has.
    train(whole, config, tmp_path / "run")
    assert len(by_id(weights(tmp_path / "run"), config, SCHEMA, "user")) == 10


def test_rows_that_ids_share_are_taken_where_there_are_as_many(old, whole, tmp_path):
    config = config_of({"ids": {"shared_rows": 3}})
    found, before = begun(old, whole, config, tmp_path / "run"), weights(old)
    for name in SCHEMA.growing:
        assert by_id(found, config, SCHEMA, name) == by_id(before, config_of(), SCHEMA, name)
        pairs = zip(
            fixed_rows(found, config, SCHEMA, name),
            fixed_rows(before, config_of(), SCHEMA, name),
            strict=True,
        )
        for one, other in pairs:
            assert len(one) == 4 and len(other) == 1 + config_of().ids.shared_rows
            np.testing.assert_array_equal(one[0], other[0])
        # Nobody has learned anything from the others yet.
        rows, sums = fixed_rows(found, config, SCHEMA, name)
        assert not rows[1:, -1].any()
        assert (sums[1:, :-1] == np.float32(0.01)).all()


@pytest.mark.slow
def test_ids_that_grow_are_none_of_a_feature_that_had_buckets(tmp_path, old):
    bucketed = Schema(features=(USER, ITEM, TAGS.model_copy(update={"buckets": 40}), POSITION))
    grown = Schema(features=(USER, ITEM.model_copy(update={"buckets": None}), TAGS, POSITION))
    for name, schema, why in (
        ("tags", bucketed, "buckets was None, is 40"),
        ("item", grown, "buckets was 50, is None"),
    ):
        log = publish(tmp_path / f"{name}-log", schema)
        found = begun(old, log, config_of(), tmp_path / name)
        assert statuses(tmp_path / name)[name] == ("fresh", "fresh", why)
        assert by_id(found, config_of(), schema, "user") == by_id(weights(old), config_of(), SCHEMA, "user")
        if name in schema.growing:
            assert by_id(found, config_of(), schema, name) == {}


def test_the_uses_of_ids_are_taken_with_them(old, whole, tmp_path):
    """What decides which ids are evicted next."""
    found, before = begun(old, whole, config_of({"seed": 9}), tmp_path / "run"), weights(old)
    for table in ("quality-4", "ui-2"):
        by_print = [
            {
                (int(feature), int(one)): (int(first), int(last), int(uses))
                for feature, one, first, last, uses in zip(
                    *(
                        arrays[f"ids/{table}/slots/{name}"]
                        for name in ("feature", "fingerprint", "first_seen", "last_seen", "uses")
                    ),
                    strict=True,
                )
            }
            for arrays in (found, before)
        ]
        assert by_print[0] == by_print[1] != {}
    assert json.loads((tmp_path / "run" / "init_from.json").read_text())["run"] == str(old.resolve())
