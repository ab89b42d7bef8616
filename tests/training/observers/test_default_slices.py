"""The slices of a run that names none."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.data.features import Category, Number
from ctr.data.log import create_log, read_manifests
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.eval.report.runs import reported_runs
from ctr.eval.run_files import read_default_slices, read_run
from ctr.eval.windows import SLICES, Sums
from ctr.training.observers.slices import default_slices, heaviest_ids
from run_directories import make_rows, predict, write_run, write_sums

NAMES = ("plain", "many", "worst", "bad", "one", "worse")
SCHEMA = Schema(
    features=(
        *(Category(name=name, source=name) for name in NAMES[:-1]),
        Number(name=NAMES[-1], source="price", boundaries=(1.0, 2.0)),
    )
)


@pytest.fixture(scope="module")
def log_and_run(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("slices"), np.random.default_rng(3)
    rows = make_rows(5, queries=700)
    count = len(rows)
    ids = np.stack([rng.integers(1, 4, count) for _ in NAMES], axis=1)
    ids[:, 1], ids[:, 4] = np.arange(count), 1
    logit = predict(rows, 1, 0.0)
    # Clicks that the predictions know nothing of, by the values of three features.
    shift = 2.0 * (ids[:, 2] - 2) + 1.0 * (ids[:, 5] - 2) + 0.6 * (ids[:, 3] - 2)
    rows["label"] = (rng.random(count) < 1 / (1 + np.exp(-(logit + shift)))).astype(np.int8)
    rows["metric_weight"] = np.float32(1)
    run = write_run(folder / "run", rows, logit)
    create_log(folder / "log", SCHEMA)
    table = pa.table(
        {
            **{name: rows["query_time"] for name in ("query_time", "timestamp")},
            **{
                name: rows[name]
                for name in ("query_id", "example_id", "label", "train_weight", "metric_weight")
            },
            "ids": pack_ids(ids.astype(np.int64)),
        }
    ).sort_by([("query_time", "ascending"), ("query_id", "ascending"), ("example_id", "ascending")])
    publish_partition(folder / "log", SCHEMA, 0, 2_000_000_000_000_000, table)
    return folder / "log", run, rows.assign(logit=logit, worst=ids[:, 2])


def test_the_features_that_differ_most_are_found_and_shown(log_and_run):
    log, run, rows = log_and_run
    found = default_slices(run, log, read_manifests(log), SCHEMA)
    assert list(found) == ["worst", "worse", "bad"]
    table = found["worst"].result().set_index("id")
    for one, part in rows.groupby("worst"):
        probability = 1 / (1 + np.exp(-part["logit"].to_numpy(np.float64)))
        assert table.loc[one, "weight"] == len(part)
        assert table.loc[one, "calibration_ratio"] == pytest.approx(probability.sum() / part["label"].sum())
    assert heaviest_ids(found["worst"]) == list(table.sort_values("weight", ascending=False).index)
    assert not reported_runs([run])[0].has_default_slices
    sums = Sums()
    sums.add_slices(SLICES, found)
    write_sums(run, sums)
    read = read_default_slices(read_run(run))
    assert list(read) == list(found)
    pd.testing.assert_frame_equal(read["bad"].result(), found["bad"].result())
    [reported] = reported_runs([run])
    assert reported.has_default_slices and list(reported.results.metrics.slices) == list(found)
    json.dumps(reported.summary, allow_nan=False)


def test_without_predictions_or_the_log_there_are_none(log_and_run, tmp_path):
    log, run, _ = log_and_run
    assert default_slices(tmp_path, log, read_manifests(log), SCHEMA) == {}
    assert default_slices(run, tmp_path / "gone", read_manifests(log), SCHEMA) == {}
