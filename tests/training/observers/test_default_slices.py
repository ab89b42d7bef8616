"""The slices of a run that names none."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.data.features import Category
from ctr.data.log import create_log, read_manifests
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.eval.report.runs import reported_runs
from ctr.eval.run_files import read_default_slices, read_run
from ctr.training.observers.slices import default_slices, heaviest_ids
from ctr.training.session import train
from growing_logs import read_predictions
from small_runs import make_config

NAMES = ("plain", "many", "worst", "bad", "one", "worse")
SCHEMA = Schema(features=tuple(Category(name=name, source=name, buckets=5000) for name in NAMES))


def test_the_features_that_differ_most_are_found_and_shown(tmp_path):
    rng, count = np.random.default_rng(3), 4000
    ids, number = rng.integers(1, 4, (count, len(NAMES))), np.arange(count)
    ids[:, 1], ids[:, 4] = number + 1, 1
    # Clicks that the predictions know nothing of, by the values of three features.
    logit = 2.0 * (ids[:, 2] - 2) + 1.0 * (ids[:, 5] - 2) + 0.6 * (ids[:, 3] - 2)
    label = rng.random(count) < 1 / (1 + np.exp(-logit))
    table = pa.table(
        {
            **{name: number * 1000 for name in ("query_time", "timestamp")},
            **{name: number for name in ("query_id", "example_id")},
            "label": label.astype(np.int8),
            **{name: np.ones(count, np.float32) for name in ("train_weight", "metric_weight")},
            "ids": pack_ids(ids.astype(np.int32)),
        }
    )
    log, run = tmp_path / "log", tmp_path / "run"
    create_log(log, SCHEMA)
    publish_partition(log, SCHEMA, 0, 10**9, table)
    # One batch: all is predicted before anything is learned.
    changes = {"batch": {"rows": count, "max_query_rows": count}, "metrics": {"slices": []}}
    train(log, make_config({**changes, "model": {"prior": 0.5}}, logistic=True), run)
    manifests, found = read_manifests(log), read_default_slices(read_run(run))
    assert list(found) == ["worst", "worse", "bad"]
    slices = found["worst"].result().set_index("id")
    for one, part in read_predictions(run).groupby(ids[:, 2]):
        probability = 1 / (1 + np.exp(-part["logit"].to_numpy(np.float64)))
        assert slices.loc[one, "weight"] == len(part)
        assert slices.loc[one, "calibration_ratio"] == pytest.approx(probability.sum() / part["label"].sum())
    assert heaviest_ids(found["worst"]) == list(slices.sort_values("weight", ascending=False).index)
    again = default_slices(run, log, manifests, SCHEMA)
    pd.testing.assert_frame_equal(again["bad"].result(), found["bad"].result())
    [reported] = reported_runs([run])
    assert reported.has_default_slices and list(found) == [
        name for name in reported.results.metrics.slices if name in NAMES
    ]
    json.dumps(reported.summary, allow_nan=False)
    # Without predictions or the log there are none.
    assert default_slices(tmp_path, log, manifests, SCHEMA) == {}
    assert default_slices(run, tmp_path / "gone", manifests, SCHEMA) == {}
