"""What runs say of ids that grow, against the rows of their logs."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import small_runs
from ctr.training.loop import train
from fingerprint_logs import prints_of, publish_growing, values_of
from growing_logs import lines_of
from small_runs import LOGISTIC, draw_examples

CROWDED = {"ids": {"capacity": 100, "capacities": {"user": 12}, "eviction": {"policy": "none"}}}


def config_of(*changes):
    shown = {"max_rejected_share": 1, "metrics": {"slices": ["user", "item"]}}
    return small_runs.config_of(LOGISTIC, shown, *changes)


@pytest.fixture(scope="module")
def rows():
    return draw_examples()


@pytest.fixture(scope="module")
def log(rows, tmp_path_factory) -> Path:
    return publish_growing(tmp_path_factory.mktemp("slots") / "log", rows)


@pytest.fixture(scope="module")
def run(log, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("slots") / "run"
    train(log, config_of(), folder)
    return folder


def test_where_there_is_room_each_id_is_admitted_once(run, rows):
    lines, summary = lines_of(run), json.loads((run / "summary.json").read_text())
    assert len(lines) > 3
    total = 0
    for name in ("user", "tags", "position"):
        distinct = len(np.unique(values_of(rows, name)))
        ids = summary["ids"]["features"][name]
        assert ids == {
            "occupancy": distinct,
            "capacity": 2**22,
            "admitted": distinct,
            "evicted": 0,
            "refused": 0,
            "shared_share": 0,
        }
        assert sum(line["ids"]["features"][name]["admitted"] for line in lines) == distinct
        assert lines[-1]["ids"]["features"][name]["occupancy"] == distinct
        total += distinct
    assert set(summary["ids"]["features"]) == {"user", "tags", "position"}
    assert summary["ids"]["occupancy"] == summary["ids"]["admitted"] == total
    assert summary["ids"]["capacity"] == 3 * 2**22
    levels = [line["ids"]["occupancy"] for line in lines]
    assert levels == np.cumsum([line["ids"]["admitted"] for line in lines]).tolist()


@pytest.mark.slow
def test_a_full_feature_shares_rows_and_is_warned_of(log, rows, tmp_path, caplog):
    summary = train(log, config_of(CROWDED), tmp_path / "run")
    user = summary["ids"]["features"]["user"]
    values = values_of(rows, "user")
    # The first twelve that come stay.
    own = list(dict.fromkeys(values.tolist()))[:12]
    others = int(np.isin(values, own, invert=True).sum())
    assert (user["occupancy"], user["capacity"], user["admitted"], user["evicted"]) == (12, 12, 12, 0)
    assert user["refused"] == others and user["shared_share"] == others / len(values)
    assert summary["ids"]["refused"] == others
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    share = f"{others / len(values):.1%}"
    assert [text for text in warnings if "no room was left" in text] == [
        f"{tmp_path / 'run'}: no room was left for ids of user (12 ids; {share} of its occurrences were of others), "
        "which then shared rows: raise ids.capacity, or ids.capacities.user, or let old ids go with "
        "ids.eviction.policy"
    ]
    # Many ids come, and what they push out goes: nothing is refused.
    families = [{"name": "some", "features": {"user": ["a", 7], "position": [None, "b"]}}]
    constraints = {"objective": {"bias_constraints": {"families": families, "learning_rate": 0.1}}}
    evicting = config_of(CROWDED, constraints, {"ids": {"eviction": {"policy": "score"}}})
    evicting = train(log, evicting, tmp_path / "other")
    user = evicting["ids"]["features"]["user"]
    assert user["evicted"] > 0 and user["occupancy"] == user["admitted"] - user["evicted"] <= 12
    # Slices of constraints have the values of the configuration. No row has these users: all are in no slice.
    values = json.loads((tmp_path / "other/data_health.json").read_text())["slice_values"]["constraint:some"]
    assert set(values) <= {"-1", "0", "1", "2", "3"} and values["-1"] == "no slice"


def test_data_health_has_the_ids_of_the_maps_with_their_values(run, rows):
    health = json.loads((run / "data_health.json").read_text())
    features = {feature["name"]: feature for feature in health["features"]}
    for name in ("user", "tags", "position"):
        feature, values = features[name], values_of(rows, name)
        ids, counts = np.unique(values, return_counts=True)
        assert feature["buckets"] is None and feature["distinct_ids"] == feature["new"] == len(ids)
        assert feature["counted"] == len(values) == feature["slots"]["occurrences"]
        assert [one["count"] for one in feature["top"]] == sorted(counts.tolist(), reverse=True)[:10]
        known = dict(
            zip(prints_of(ids).tolist(), zip(ids.tolist(), counts.tolist(), strict=True), strict=True)
        )
        for one in feature["top"]:
            number, count = known[one["id"]]
            assert one["count"] == count
            assert one["value"] == (f"user-{number}" if name == "user" else None)
    assert features["item"]["buckets"] == 50 and "slots" not in features["item"]
    # A slice for each user, each under its value; hashed ids have none.
    slices = json.loads((run / "summary.json").read_text())["calibration_slices"]["user"]
    names = health["slice_values"]["user"]
    assert slices["slices"] == len(np.unique(rows.ids[rows.metric_weight > 0, 0]))
    known = {str(one): f"user-{number}" for number, one in enumerate(prints_of(np.arange(1, 30)).tolist(), 1)}
    assert names == {str(row["id"]): {**known, "0": "missing"}[str(row["id"])] for row in slices["heaviest"]}
    assert set(health["slice_values"]["item"].values()) <= {None, "missing"}


def test_scalars_for_tensorboard(run):
    found = {}
    for path in (run / "tensorboard").glob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag.startswith("ids"):
                    found.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
    lines = lines_of(run)
    assert found["ids/occupancy"] == [line["ids"]["occupancy"] for line in lines]
    assert found["ids_admitted/user"] == [line["ids"]["features"]["user"]["admitted"] for line in lines]
    assert found["ids/occupied_share"][-1] == pytest.approx(lines[-1]["ids"]["occupancy"] / (3 * 2**22))
    assert {"ids/shared_share", "ids/evicted", "ids/refused", "ids_occupancy/tags"} <= set(found)
    assert "ids/capacity" not in found
