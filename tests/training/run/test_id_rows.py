"""What runs say of ids that grow, against the rows of their logs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import small_runs
from ctr.data.kept_values import values_path
from ctr.data.log import read_manifests, read_schema
from ctr.eval.display import fingerprint
from ctr.eval.report import report_context
from ctr.training.observers.slices import slice_names
from ctr.training.session import train
from fingerprint_logs import prints_of, publish_growing, values_of
from report_pages import section_of, words_of
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
    summary = json.loads((run / "summary.json").read_text())
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
        total += distinct
    assert set(summary["ids"]["features"]) == {"user", "tags", "position"}
    assert summary["ids"]["occupancy"] == summary["ids"]["admitted"] == total
    assert summary["ids"]["capacity"] == 3 * 2**22


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
    evicting_run = train(log, evicting, tmp_path / "other")
    user = evicting_run["ids"]["features"]["user"]
    assert user["evicted"] > 0 and user["occupancy"] == user["admitted"] - user["evicted"] <= 12
    # Slices of constraints have the values of the configuration. No row has these users: all are in no slice.
    names = evicting_run["slice_names"]["constraint:some"]
    assert set(names) <= {"-1", "0", "1", "2", "3"} and names["-1"] == "no slice"


def test_slices_of_a_log_that_cannot_be_read_are_named_by_their_ids(log, tmp_path, caplog):
    schema, [manifest, *_] = read_schema(log), read_manifests(log)
    one = int(prints_of(np.array([3]))[0])
    wanted = {"user": [one, 0], "item": [4]}
    shown = {"user": {str(one): "user-3", "0": "missing"}, "item": {"4": "id 4"}}
    assert slice_names(schema, log, wanted, {}) == shown and not caplog.records
    damaged = shutil.copytree(log, tmp_path / "damaged")
    values_path(damaged, manifest.name, manifest.values).write_bytes(b"PAR1")
    for folder in (damaged, tmp_path / "nowhere"):
        names = slice_names(schema, folder, wanted, {})
        assert names == {**shown, "user": {str(one): fingerprint(one), "0": "missing"}}
        assert "slices are named by their ids: " in caplog.messages.pop()


def test_slices_have_the_names_of_their_values(run, rows):
    summary = json.loads((run / "summary.json").read_text())
    # A slice for each user, each under its value; other values have the numbers of their ids.
    slices, names = summary["calibration_slices"]["user"], summary["slice_names"]["user"]
    assert slices["slices"] == len(np.unique(rows.ids[rows.metric_weight > 0, 0]))
    known = {str(one): f"user-{number}" for number, one in enumerate(prints_of(np.arange(1, 30)).tolist(), 1)}
    assert names == {str(row["id"]): {**known, "0": "missing"}[str(row["id"])] for row in slices["heaviest"]}
    for one, name in summary["slice_names"]["item"].items():
        assert name == ("missing" if one == "0" else f"id {one}")
    words = words_of(section_of(report_context([run]), "Slices"))
    assert all(name in words for name in names.values()) and fingerprint(int(next(iter(known)))) not in words
