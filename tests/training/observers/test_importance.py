"""Importance of features: measured on rows that nothing was learned from yet, and without a trace in the run itself."""

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import growing_logs
from ctr.config import parse_model
from ctr.data.features import Category
from ctr.data.log import create_log, read_manifests
from ctr.data.query_size import with_query_size
from ctr.data.reader import join_rows, read_rows
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.eval.importance import importance_of
from ctr.eval.states import query_bucket
from ctr.eval.windows import Sums
from ctr.io.signals import Interrupted
from ctr.training.config import TrainConfig
from ctr.training.follow import Polling, follow
from ctr.training.session import Process, open_session, train
from fingerprint_logs import SCHEMA as GROWING
from fingerprint_logs import table_with
from small_runs import draw_examples, make_config, publish

UNKNOWN = 4711
"""The id of no row: any such id has the only shared row of its feature."""
EXPERTS: dict[str, Any] = {
    "batch": {"rows": 50, "max_query_rows": 64},
    "model": {"experts": ["linear", "network", "pairs"], "query_size": True, "prior": 0.3},
    "ids": {"shared_rows": 1},
    "max_rejected_share": 0.02,
}
SHUFFLED_TAGS = Schema(
    features=tuple(
        one.model_copy(update={"buckets": 40}) if one.name == "tags" else one for one in GROWING.features
    )
)


def measured(run: Path) -> dict[str, np.ndarray]:
    """The arrays of ``ctr.eval.importance``."""
    return Sums.of(pd.read_parquet(run / "windows.parquet")).importance()


def assert_measured_as(run: Path, other: Path) -> None:
    found, expected = measured(run), measured(other)
    assert found.keys() == expected.keys() and len(expected["position"])
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def log_of(folder: Path, schema: Schema, seed: int = 0) -> Path:
    """A log of 1,200 rows with features whose ids grow and others, and a few faulty rows."""
    rows = draw_examples(seed=seed)
    label = rows.label.copy()
    label[[3, 700, 901, 902]] = 5
    return publish(folder, table_with(schema, replace(rows, label=label)), schema=schema)


@pytest.fixture(scope="module")
def growing_log(tmp_path_factory) -> Path:
    return log_of(tmp_path_factory.mktemp("growing") / "log", GROWING)


@pytest.fixture(scope="module")
def whole(growing_log, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(growing_log, make_config({"max_rejected_share": 0.02}, logistic=True), run)
    return run


def logloss(session: Any, rows: Any) -> np.ndarray:
    probability = 1 / (1 + np.exp(-session.score(rows).astype(np.float64)))
    return -np.log(np.where(rows.label == 1, probability, 1 - probability))


def by_hand(session: Any, schema: Schema, most: int) -> dict[str, np.ndarray]:
    """What is measured where a session stands, row by row: the arrays of one position."""
    log = session.inputs.log
    coming = join_rows(list(read_rows(log.path, schema, log.manifests, session.run.position.examples)))
    ends = np.append(coming.query_begins()[1:], len(coming))
    coming = coming.slice(0, int(ends[ends <= most].max()))
    rows = coming.keep(coming.fault == 0)
    loss, bucket = logloss(session, rows), query_bucket(rows.query_id)
    order = [*range(len(rows) - len(rows) // 2, len(rows)), *range(len(rows) - len(rows) // 2)]

    def sums(values: np.ndarray) -> np.ndarray:
        found = np.zeros(256)
        for place, value in zip(bucket, rows.metric_weight * values, strict=True):
            found[place] += value
        return found

    found = {"rows": np.array(len(rows)), "weight": sums(np.ones(len(rows))), "loss": sums(loss)}
    for feature in schema.features:
        name, grows = feature.name, feature.buckets is None
        if name in rows.multivalent:
            values, offsets = rows.multivalent[name]
            lists = np.split(values, offsets[1:-1])
            changed = [np.full(len(one), UNKNOWN) for one in lists] if grows else [lists[at] for at in order]
            lengths = [len(one) for one in changed]
            column = np.concatenate(changed).astype(values.dtype), np.cumsum([0, *lengths])
            without = replace(rows, multivalent={**rows.multivalent, name: column})
        else:
            ids, place = rows.ids.copy(), schema.single_valued.index(name)
            ids[:, place] = UNKNOWN if grows else [ids[at, place] for at in order]
            without = replace(rows, ids=ids)
        found[f"{'shared' if grows else 'shuffled'}/{name}"] = sums(logloss(session, without) - loss)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "config"),
    [
        (GROWING, make_config({"ids": {"shared_rows": 1}, "max_rejected_share": 0.02})),
        (SHUFFLED_TAGS, parse_model(TrainConfig, EXPERTS, "test")),
    ],
    ids=["network", "experts"],
)
def test_the_sums_are_those_of_the_next_rows_scored_where_the_pass_stood(schema, config, tmp_path):
    log = log_of(tmp_path / "log", schema)
    total = sum(one.rows for one in read_manifests(log))
    config = config.model_copy(update={"metrics": config.metrics.model_copy(update={"importance_rows": 280})})
    train(log, config, tmp_path / "run")
    found = measured(tmp_path / "run")
    whole = with_query_size(schema) if config.model.query_size is True else schema
    assert {name.split("/")[1] for name in found if "/" in name} == set(whole.by_name)
    with open_session(log, config, tmp_path / "other") as session:
        for place, position in enumerate(found["position"].tolist()):
            target = total // 2 + place * total // 16

            def is_there(target: int = target) -> bool:
                return bool(session.run.position.examples >= target)

            session.advance(partial=True, stop=is_there)
            # The end of the first group of batches from there on, and nothing of these rows was learned from.
            assert session.run.position.examples == session.run.position.learned == position
            expected = by_hand(session, whole, 35)
            assert 0 < expected["rows"] <= 35
            for name, sums in expected.items():
                np.testing.assert_allclose(found[name][place], sums, rtol=0, atol=1e-5, err_msg=name)
    assert all(np.abs(found[name]).max() > 1e-4 for name in found if name.startswith(("shared", "shuffled")))


def test_it_changes_nothing_of_the_run_and_can_be_off(growing_log, whole, tmp_path):
    off = make_config({"metrics": {"importance_rows": 0}, "max_rejected_share": 0.02}, logistic=True)
    train(growing_log, off, tmp_path / "off")
    growing_logs.assert_same(tmp_path / "off", whole, "summary", "arrays", "newest")
    found, expected = growing_logs.outcome(tmp_path / "off"), growing_logs.outcome(whole)
    for one in (found, expected):
        del one["summary"]["config_sha256"]
    assert found["summary"] == expected["summary"]
    assert len(measured(whole)["position"]) == 8 and not measured(tmp_path / "off")
    # At most a quarter of the rows of the log.
    rows = sum(manifest.rows for manifest in read_manifests(growing_log))
    assert rows / 8 < measured(whole)["rows"].sum() <= rows / 4
    on = make_config({"max_rejected_share": 0.02}, logistic=True)
    follow(growing_log, on, tmp_path / "followed", Polling(0.001, 0.01))
    assert not (tmp_path / "followed/windows.parquet").exists()


@pytest.mark.slow
def test_a_run_that_is_stopped_again_and_again_measures_the_same(growing_log, whole, tmp_path):
    config, run, stopped = make_config({"max_rejected_share": 0.02}, logistic=True), tmp_path / "run", 0
    while not (run / "summary.json").exists():
        left = iter([None] * 3)
        with contextlib.suppress(Interrupted):
            train(growing_log, config, run, process=Process(stop=partial(next, left, "SIGTERM")))
        stopped += 1
    assert stopped > 5
    growing_logs.assert_same(run, whole, *growing_logs.FILES)
    assert_measured_as(run, whole)


def test_what_decides_clicks_is_important_and_noise_is_not(tmp_path):
    rng, rows = np.random.default_rng(5), 6000
    schema = Schema(features=tuple(Category(name=name, source=name) for name in ("noise", "cause", "alike")))
    cause, noise = rng.integers(1, 5, rows), rng.integers(1, 5, rows)
    label = rng.random(rows) < np.where(cause <= 2, 0.1, 0.6)
    create_log(tmp_path / "log", schema)
    query = np.arange(rows)
    table = pa.table(
        {
            **{name: query * 1000 for name in ("query_time", "timestamp")},
            **{name: query for name in ("query_id", "example_id")},
            "label": label.astype(np.int8),
            **{name: np.ones(rows, np.float32) for name in ("train_weight", "metric_weight")},
            "ids": pack_ids(np.stack([noise, cause, np.full(rows, 9)], axis=1).astype(np.int64)),
        }
    )
    publish_partition(tmp_path / "log", schema, 0, 10**9, table)
    train(
        tmp_path / "log",
        make_config({"model": {"prior": 0.35}, "metrics": {"slices": []}}, logistic=True),
        tmp_path / "run",
    )
    found = {one.name: one for one in importance_of(measured(tmp_path / "run")).features}
    entropy = float(-(0.35 * np.log(0.35) + 0.65 * np.log(0.65)))
    conditional = float(np.mean([-(p * np.log(p) + (1 - p) * np.log(1 - p)) for p in (0.1, 0.6)]))
    # Without its cause a click is as uncertain as by the click rate alone.
    assert found["cause"].increase.value == pytest.approx(entropy - conditional, abs=0.05)
    assert found["cause"].matters and found["cause"].increase.low > 0.08
    low, high = found["noise"].increase.low, found["noise"].increase.high
    assert low < 0 < high < 0.01 and not found["noise"].matters
