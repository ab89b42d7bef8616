"""What is learned besides clicks, through whole runs: what a student, a sample, a delay and a constraint change."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.data.sidecar import read_sidecar_partition, write_sidecar_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.loop import train

RANKING: dict[str, Any] = {"ranking": {"weight": 0.4, "max_pairs": 5, "ramp": [200, 500]}}
CONSTRAINTS: dict[str, Any] = {
    "bias_constraints": {
        "learning_rate": 0.3,
        "families": [
            {"name": "ctr", "estimated_ctr": [0.2, 0.4]},
            {"name": "low", "estimated_ctr": [0.3], "features": {"position": "all"}},
        ],
    }
}


def sidecar(log, name) -> pd.DataFrame:
    tables = [read_sidecar_partition(log, name, manifest) for manifest in read_manifests(log)]
    return pa.concat_tables(tables).to_pandas()


def whole_queries(query: np.ndarray, most: int) -> list[np.ndarray]:
    """Row numbers by batch: as many whole queries as fit."""
    batches: list[list[int]] = [[]]
    for one in np.unique(query):
        rows = np.flatnonzero(query == one).tolist()
        if batches[-1] and len(batches[-1]) + len(rows) > most:
            batches.append([])
        batches[-1] += rows
    return [np.array(rows) for rows in batches]


def train_until(limit: int, log: Path, config: TrainConfig, run: Path) -> None:
    """Trains up to a position of the log, and no further."""

    class StopError(Exception):
        pass

    def stop(position: int, _: dict[str, Any]) -> None:
        if position > limit:
            raise StopError

    with pytest.raises(StopError):
        train(log, config, run, stop)


def copied(log, tmp_path):
    """The log in a folder of the test's own, to write sidecars beside."""
    return shutil.copytree(log, tmp_path / "log")


@pytest.mark.slow
def test_the_sidecar_holds_the_predictions_of_record(log, make_config, tmp_path, read_predictions):
    log = copied(log, tmp_path)
    summary = train(log, make_config(), tmp_path / "run", record="teacher")
    found, expected = sidecar(log, "teacher"), read_predictions(tmp_path / "run")
    assert found["example_id"].tolist() == expected["example_id"].tolist()
    assert np.array_equal(found["logit"], expected["logit"])
    assert summary["recorded"] == {"sidecar": "teacher", "rows": len(found), "without_prediction": 0}
    # A finished run publishes without training again, and a second name tells the same.
    train(log, make_config(), tmp_path / "run", record="again")
    assert sidecar(log, "again").equals(found)


@pytest.mark.slow
def test_no_recorded_prediction_has_seen_its_own_label_or_a_later_one(
    make_examples, make_log, make_config, tmp_path
):
    examples = make_examples(seed=5)
    config = make_config({"batch": {"rows": 20, "max_query_rows": 20}})
    changed_from = 130  # a query
    row = int(np.flatnonzero(examples.query == changed_from)[0])
    logits = []
    for name, flipped in (("one", False), ("other", True)):
        table = examples.table()
        if flipped:
            label = np.where(examples.query >= changed_from, 1 - examples.label, examples.label)
            table = table.set_column(
                table.column_names.index("label"), "label", pa.array(label.astype(np.int8))
            )
        log = make_log(table, name)
        train(log, config, tmp_path / f"run-{name}", record="teacher")
        logits.append(sidecar(log, "teacher")["logit"].to_numpy())
    same = logits[0] == logits[1]
    # To the bit up to the end of the batch in which labels begin to differ, and not a row longer.
    end = next(int(rows[-1]) + 1 for rows in whole_queries(examples.query, 20) if row in rows)
    assert same[:end].all()
    assert not same[end : end + 20].any()


@pytest.mark.soak
def test_a_student_learns_from_its_teacher_and_only_from_its_sidecar(log, make_config, tmp_path):
    log = copied(log, tmp_path)
    train(log, make_config({"seed": 3}), tmp_path / "teacher", record="teacher")
    plain = train(log, make_config(), tmp_path / "plain")
    config = make_config({"objective": {"distillation": {"teacher": "teacher"}}})
    taught = train(log, config, tmp_path / "taught")
    assert taught["logloss"] != plain["logloss"]
    # Before the ramp begins there is no teacher.
    late = make_config({"objective": {"distillation": {"teacher": "teacher", "ramp": [10**6, 10**6]}}})
    assert train(log, late, tmp_path / "late")["logloss"] == plain["logloss"]
    absent = make_config({"objective": {"distillation": {"teacher": "nobody"}}})
    with pytest.raises(InputError, match="has no sidecar nobody; the sidecars beside it: teacher"):
        train(log, absent, tmp_path / "absent")
    with pytest.raises(InputError, match="own teacher"):
        train(log, config, tmp_path / "own", record="teacher")


@pytest.mark.slow
def test_rows_without_a_teacher_are_refused_with_count_and_place_or_trained_without(
    log, examples, make_config, tmp_path
):
    log = copied(log, tmp_path)
    gaps = np.flatnonzero(examples.train_weight > 0)[[4, 90, 200]]
    logit = np.zeros(len(examples), np.float32)
    logit[gaps] = np.nan
    begin = 0
    for manifest in read_manifests(log):
        rows = slice(begin, begin + manifest.rows)
        ids = np.arange(len(examples))[rows] + 10_000
        for name, values in (("gaps", logit), ("complete", np.nan_to_num(logit))):
            table = pa.table({"example_id": ids, "logit": values[rows]})
            write_sidecar_partition(log, name, manifest, table)
        begin += manifest.rows
    changes: dict[str, Any] = {"objective": {"distillation": {"teacher": "gaps"}}}
    learned = int((examples.train_weight > 0).sum())
    with pytest.raises(InputError) as caught:
        train(log, make_config(changes, logistic=True), tmp_path / "refused")
    assert f"no value for 3 of {learned} rows" in str(caught.value)
    assert f"example_id {gaps[0] + 10_000} (row {gaps[0]} of the log)" in str(caught.value)
    changes["objective"]["distillation"]["missing"] = "train_without"
    without = train(log, make_config(changes, logistic=True), tmp_path / "without")
    # What is not there has no part in it: with a teacher for all rows the result is another.
    complete = {"objective": {"distillation": {"teacher": "complete"}}}
    config = make_config(complete, logistic=True)
    assert without["logloss"] != train(log, config, tmp_path / "complete")["logloss"]


EVERYTHING: dict[str, Any] = {
    "ranking": {**RANKING["ranking"], "setup": "multi_task"},
    **CONSTRAINTS,
    "distillation": {"teacher": "teacher", "ramp": 400},
}


STRUCTURE: dict[str, Any] = {
    "deep": {"ranks": [3], "activation": "smelu", "smelu_beta": 0.5},
    "factorized": {"width": 3, "ui_units": [4], "transfer": "piecewise_linear"},
    "ensemble": {"components": 2, "embeddings": "separate"},
}
PUSHED: dict[str, Any] = {**EVERYTHING, "anti_distillation": {"weight": 0.1, "ramp": [300, 300]}}


def with_exposure(objective: dict[str, Any], path: Path) -> dict[str, Any]:
    """The same with a constraint log, whose rows also teach by themselves."""
    constraints = objective["bias_constraints"]
    families = [*constraints["families"], {"name": "random", "log": "exposure"}]
    logs = [{"name": "exposure", "path": str(path), "own_loss": True}]
    return {**objective, "bias_constraints": {**constraints, "families": families, "logs": logs}}


@pytest.mark.parametrize(
    ("objective", "model", "delay"),
    [
        pytest.param({}, {}, 0.03, id="delay", marks=pytest.mark.soak),
        pytest.param(RANKING, {}, 0, id="ranking", marks=pytest.mark.soak),
        pytest.param(CONSTRAINTS, {}, 0.03, id="constraints and delay", marks=pytest.mark.soak),
        pytest.param(EVERYTHING, {}, 0, id="everything without delay", marks=pytest.mark.soak),
        pytest.param(EVERYTHING, {}, 0.03, id="everything", marks=pytest.mark.soak),
        pytest.param(PUSHED, STRUCTURE, 0, id="and every structure without delay", marks=pytest.mark.soak),
        pytest.param(PUSHED, STRUCTURE, 0.03, id="and every structure", marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed_with_any_of_it_the_bits_are_the_same(
    log, make_examples, make_log, make_config, tmp_path, objective, model, delay
):
    log = copied(log, tmp_path)
    train(log, make_config({"seed": 3}), tmp_path / "teacher", record="teacher")
    write_decisions(log, "half", parse_model(SamplingConfig, {"non_click_rate": 0.5}, "test"))
    if "bias_constraints" in objective:
        objective = with_exposure(objective, make_log(make_examples(queries=220, seed=9).table(), "exposure"))
    config = make_config(
        {"objective": objective, "model": model, "label_delay": delay, "sampling": {"name": "half"}}
    )
    train(log, config, tmp_path / "whole")

    train_until(700, log, config, tmp_path / "resumed")
    summary = train(log, config, tmp_path / "resumed")
    found, expected = (outcome(tmp_path / run) for run in ("resumed", "whole"))
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for name, array in found[1].items():
        assert np.array_equal(array, expected[1][name]), name
    if "bias_constraints" in objective:
        assert all(any(summary["duals"][name]) for name in ("ctr", "low", "random"))
        assert summary["constraint_logs"]["exposure"]["examples"] > 300


def outcome(run: Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The lines of the metrics without what is timed, and the arrays of the last checkpoint."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("examples_per_second", "shampoo_seconds_waited", "shampoo_seconds_computing")
    with np.load(max((run / "checkpoints").iterdir()) / "arrays.npz") as content:
        arrays = dict(content.items())
    return [{key: line[key] for key in line.keys() - set(timed)} for line in lines], arrays


@pytest.mark.slow
def test_ramps_and_duals_are_in_every_line_of_the_metrics(log, make_config, tmp_path):
    train(log, make_config({"objective": {**RANKING, **CONSTRAINTS}}, logistic=True), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["ramp_ranking"] == pytest.approx((lines[0]["examples"] - 200) / 300, abs=0.01)
    assert [line["ramp_bias_constraints"] for line in lines] == [1.0] * len(lines)
    assert all(line["dual_ctr_0"] != 0 for line in lines)
    assert "ramp_distillation" not in lines[0]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("objective", "model"),
    [pytest.param(EVERYTHING, {}, marks=pytest.mark.soak), (PUSHED, STRUCTURE)],
)
def test_a_run_of_compiled_steps_agrees_with_all_of_it(log, make_config, tmp_path, objective, model):
    log = copied(log, tmp_path)
    train(log, make_config({"seed": 3}), tmp_path / "teacher", record="teacher")
    summaries = {}
    for jit in (False, True):
        # AdaGrad, since compiled steps use each of Shampoo's roots one step later.
        shampoo = {"start_preconditioning_step": None}
        optimizer = {"dense": {"shampoo": shampoo}}
        changes = {"objective": objective, "model": model, "jit": jit, "optimizer": optimizer}
        summaries[jit] = train(log, make_config(changes), tmp_path / f"run-{jit}")
    for name in ("logloss", "auc", "calibration_bias"):
        assert summaries[True][name] == pytest.approx(summaries[False][name], abs=1e-4)
    for family, duals in summaries[True]["duals"].items():
        assert duals == pytest.approx(summaries[False]["duals"][family], abs=1e-3)


@pytest.mark.soak
def test_what_a_run_did_not_score_is_recorded_as_missing(log, examples, make_config, tmp_path):
    log = copied(log, tmp_path)
    config = make_config({"time_range": {"start": "1970-01-01T00:00:00.100"}}, logistic=True)
    summary = train(log, config, tmp_path / "run", record="late")
    found = sidecar(log, "late")
    assert found["logit"].isna().tolist() == (examples.query < 100).tolist()
    assert summary["recorded"]["without_prediction"] == int((examples.query < 100).sum())


@pytest.mark.soak
def test_recording_needs_predictions_and_a_name_of_its_own(log, make_config, tmp_path):
    log = copied(log, tmp_path)
    with pytest.raises(InputError, match="record_predictions is false"):
        train(log, make_config({"record_predictions": False}), tmp_path / "run", record="teacher")
    with pytest.raises(InputError, match="letters, digits"):
        train(log, make_config(), tmp_path / "run", record="a/b")
    train(log, make_config(logistic=True), tmp_path / "run", record="teacher")
    with pytest.raises(InputError, match="already exists, from another run"):
        train(log, make_config({"seed": 2}, logistic=True), tmp_path / "other", record="teacher")
    assert not (tmp_path / "other").exists()


@pytest.mark.soak
def test_a_resume_with_another_teacher_is_refused(log, make_config, tmp_path):
    log = copied(log, tmp_path)
    train(log, make_config({"seed": 3}), tmp_path / "teacher", record="teacher")
    config = make_config({"objective": {"distillation": {"teacher": "teacher"}}})

    train_until(700, log, config, tmp_path / "run")
    shutil.rmtree(log / "sidecars" / "teacher")
    train(log, make_config({"seed": 4}), tmp_path / "other", record="teacher")
    with pytest.raises(InputError, match="the sidecars teacher are not those that this run has read so far"):
        train(log, config, tmp_path / "run")


@pytest.mark.slow
def test_a_large_family_is_constrained_but_not_shown_slice_by_slice(log, make_config, tmp_path):
    family = {"name": "crossed", "features": {"user": "all", "item": "all"}}
    constraints = {"learning_rate": 0.3, "families": [family]}
    config = make_config({"objective": {"bias_constraints": constraints}}, logistic=True)
    summary = train(log, config, tmp_path / "run")
    assert summary["duals"]["crossed"]["min"] < 0 < summary["duals"]["crossed"]["max"]
    assert "constraint:crossed" not in summary["calibration_slices"]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {"dual_crossed_min", "dual_crossed_max"} <= json.loads(lines[-1]).keys()
