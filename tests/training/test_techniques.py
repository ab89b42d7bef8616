"""What is learned besides clicks, through whole runs: what a student, a delay and a constraint change."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests, read_schema
from ctr.data.reader import join_rows, read_rows
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.data.sidecar import read_sidecar_partition
from ctr.experiments.config import merged
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.session import train
from growing_logs import lines_of, read_predictions, train_part, whole_and_in_parts
from reference_loop import cut
from small_runs import draw_examples, make_config, write_teacher

RANKING: dict[str, Any] = {"ranking": {"weight": 0.4, "max_pairs": 5, "ramp": [200, 500]}}
CONSTRAINTS: dict[str, Any] = {
    "bias_constraints": {
        "learning_rate": 0.3,
        "regularization": 0.1,
        "families": [
            {"name": "ctr", "estimated_ctr": [0.2, 0.4]},
            {"name": "low", "estimated_ctr": [0.3], "features": {"position": "all"}},
        ],
    }
}


def sidecar(log: Path, name: str) -> pd.DataFrame:
    tables = [read_sidecar_partition(log, name, manifest) for manifest in read_manifests(log)]
    return pa.concat_tables(tables).to_pandas()


@pytest.fixture
def own_log(log, tmp_path) -> Path:
    """The log in a folder of the test's own, to write sidecars beside."""
    return shutil.copytree(log, tmp_path / "log")


# Constraints.


def dual_steps(batches: list[pd.DataFrame], rates: list[float], regularization: float) -> np.ndarray:
    """lambda += eta c (mean of y - p over the slice - alpha3 lambda), c its weight over the running mean of that."""
    slices = 1 + max(batch["slice"].max() for batch in batches)
    duals, usual, number = np.zeros((3, slices))
    for batch, rate in zip(batches, rates, strict=True):
        for one, rows in batch[batch["train_weight"] > 0].groupby("slice"):
            weight = rows["train_weight"].to_numpy(float)
            error = rows["label"] - 1 / (1 + np.exp(-rows["logit"].to_numpy(float)))
            number[one] += 1
            usual[one] += max(1 / number[one], 0.01) * (weight.sum() - usual[one])
            mean = (weight * error).sum() / weight.sum()
            duals[one] += rate * weight.sum() / usual[one] * (mean - regularization * duals[one])
    return duals


def ranking_ramp(examples: int) -> float:
    return min(max((examples - 200) / 300, 0), 1)


def test_duals_losses_and_ramps_are_those_of_the_recorded_predictions(log, examples, tmp_path):
    """Also of a run that is stopped within a window and goes on: it forgets neither of them."""
    decaying = merged(CONSTRAINTS, {"bias_constraints": {"schedule": "polynomial 800 to 0.1"}})
    linear = {"model": {"experts": ["linear"]}}
    config = make_config({"objective": {**RANKING, **decaying}, **linear}, logistic=True)
    stopped_at = train_part(log, config, tmp_path / "run", 600)
    summary = train(log, config, tmp_path / "run")
    rows, found = (
        join_rows(list(read_rows(log, read_schema(log), read_manifests(log)))),
        (read_predictions(tmp_path / "run")),
    )
    p = 1 / (1 + np.exp(-found["logit"].to_numpy(np.float32)))
    slices = {"ctr": np.digitize(p, [0.2, 0.4]), "low": examples.ids[:, 2] * 2 + np.digitize(p, [0.3])}
    parts = list(cut(rows, config.batch))
    for name, slice_of in slices.items():
        labeled = found.assign(slice=slice_of)
        batches = [labeled.iloc[part.position] for part in parts]
        rates = [0.3 * max(1 - 0.9 * part.position[0] / 800, 0.1) for part in parts]
        expected = dual_steps(batches, rates, 0.1)
        np.testing.assert_allclose(summary["duals"][name], expected, rtol=0, atol=2e-4)
        assert np.abs(expected).max() > 0.05
    # Windows have the mean of the steps' losses, each for its rows; ramps count what was learned before.
    losses = np.logaddexp(0, np.where(found["label"] == 1, -1, 1) * found["logit"].to_numpy(float))
    weight, lines, begin = found["train_weight"].to_numpy(float), lines_of(tmp_path / "run"), 0
    for line in lines:
        total = 0.0
        for own in (part.position for part in parts if begin <= part.position[0] < line["examples"]):
            share = 1 - RANKING["ranking"]["weight"] * ranking_ramp(own[0])
            total += share * len(own) * (weight[own] @ losses[own]) / weight[own].sum()
        assert line["loss_logistic"] == pytest.approx(total / (line["examples"] - begin), rel=1e-4)
        begin = line["examples"]
        assert line["ramp_ranking"] == pytest.approx(ranking_ramp(begin))
        assert line["ramp_bias_constraints"] == 1
        assert line["rate_duals"] == pytest.approx(max(1 - 0.9 * begin / 800, 0.1))
        assert "ramp_distillation" not in line
    assert stopped_at not in [line["examples"] for line in lines]
    last = [lines[-1][f"dual_ctr_{number}"] for number in range(3)]
    assert last == pytest.approx(summary["duals"]["ctr"])


@pytest.mark.slow
def test_a_large_family_is_constrained_but_not_shown_slice_by_slice(log, tmp_path):
    family = {"name": "crossed", "features": {"user": "all", "item": "all"}}
    constraints = {"learning_rate": 0.3, "families": [family]}
    config = make_config({"objective": {"bias_constraints": constraints}}, logistic=True)
    summary = train(log, config, tmp_path / "run")
    assert summary["duals"]["crossed"]["min"] < 0 < summary["duals"]["crossed"]["max"]
    assert "constraint:crossed" not in summary["calibration_slices"]
    assert {"dual_crossed_min", "dual_crossed_max"} <= lines_of(tmp_path / "run")[-1].keys()


# Teachers.


@pytest.mark.slow
def test_the_sidecar_holds_the_predictions_of_record(own_log, examples, tmp_path):
    """Of a part of the log; the rest is recorded as missing."""
    config = make_config({"time_range": {"start": "1970-01-01T00:00:00.100"}}, logistic=True)
    summary = train(own_log, config, tmp_path / "run", record="teacher")
    found, expected, before = (
        sidecar(own_log, "teacher"),
        read_predictions(tmp_path / "run"),
        examples.query < 100,
    )
    assert found["logit"].isna().tolist() == before.tolist()
    known = found[~before]
    assert known["example_id"].tolist() == expected["example_id"].tolist()
    assert np.array_equal(known["logit"], expected["logit"])
    missing = int(before.sum())
    assert summary["recorded"] == {
        "sidecar": "teacher", "rows": len(found), "without_prediction": missing
    }  # fmt: skip
    # A finished run publishes without training again, and a second name tells the same; another run's stays.
    train(own_log, config, tmp_path / "run", record="again")
    assert sidecar(own_log, "again").equals(found)
    other = make_config({"seed": 2}, logistic=True)
    with pytest.raises(InputError, match="already exists, from another run"):
        train(own_log, other, tmp_path / "other", record="teacher")
    assert not (tmp_path / "other").exists()


def test_teachers_and_records_that_cannot_be_are_refused(own_log, tmp_path):
    taught = make_config({"objective": {"distillation": {"teacher": "nobody"}}})
    with pytest.raises(InputError, match="has no sidecar nobody"):
        train(own_log, taught, tmp_path / "run")
    with pytest.raises(InputError, match="own teacher"):
        train(own_log, taught, tmp_path / "run", record="nobody")
    with pytest.raises(InputError, match="record_predictions is false"):
        train(own_log, make_config({"record_predictions": False}), tmp_path / "run", record="teacher")
    with pytest.raises(InputError, match="letters, digits"):
        train(own_log, make_config(), tmp_path / "run", record="a/b")
    with pytest.raises(InputError, match="has no sidecar part"):
        train(own_log, make_config({"sampling": {"name": "part"}}), tmp_path / "run")


@pytest.mark.slow
def test_a_student_goes_on_with_no_other_teacher(own_log, tmp_path):
    train(own_log, make_config({"seed": 3}, logistic=True), tmp_path / "teacher", record="teacher")
    config = make_config({"objective": {"distillation": {"teacher": "teacher"}}}, logistic=True)
    train_part(own_log, config, tmp_path / "run", 700)
    shutil.rmtree(own_log / "sidecars" / "teacher")
    train(own_log, make_config({"batch": {"rows": 40}}, True), tmp_path / "other", record="teacher")
    with pytest.raises(InputError, match="the sidecars teacher are not those that this run has read so far"):
        train(own_log, config, tmp_path / "run")


@pytest.mark.slow
def test_rows_without_a_teacher_are_refused_with_count_and_place_or_trained_without(
    own_log, examples, tmp_path
):
    gaps = np.flatnonzero(examples.train_weight > 0)[[4, 90, 200]]
    logit = np.zeros(len(examples), np.float32)
    logit[gaps] = np.nan
    write_teacher(own_log, "gaps", lambda ids: logit[ids - 10_000])
    write_teacher(own_log, "complete", lambda ids: np.nan_to_num(logit[ids - 10_000]))
    learned = int((examples.train_weight > 0).sum())

    def config(**distillation: str) -> TrainConfig:
        return make_config({"objective": {"distillation": distillation}}, logistic=True)

    with pytest.raises(InputError) as caught:
        train(own_log, config(teacher="gaps"), tmp_path / "refused")
    assert f"no value for 3 of {learned} rows" in str(caught.value)
    assert f"example_id {gaps[0] + 10_000} (row {gaps[0]} of the log)" in str(caught.value)
    without = train(own_log, config(teacher="gaps", missing="train_without"), tmp_path / "without")
    # What is not there has no part in it: with a teacher for all rows the result is another.
    complete = train(own_log, config(teacher="complete"), tmp_path / "complete")
    assert without["logloss"] != complete["logloss"]


# All of it together.

EVERYTHING: dict[str, Any] = {
    "ranking": {**RANKING["ranking"], "setup": "multi_task"},
    **CONSTRAINTS,
    "distillation": {"teacher": "teacher", "ramp": 400},
}
OUTSIDE: dict[str, Any] = {"ranking": {**RANKING["ranking"], "trains": "outside_embeddings"}}
PUSHED: dict[str, Any] = {**EVERYTHING, "anti_distillation": {"weight": 0.1, "ramp": [300, 300]}}
STRUCTURE: dict[str, Any] = {
    "deep": {"ranks": [3], "activation": "smelu", "smelu_beta": 0.5},
    "factorized": {"width": 3, "ui_units": [4], "transfer": "piecewise_linear"},
    "ensemble": {"components": 2, "embeddings": "separate"},
}


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("objective", "model", "delay"),
    [
        (PUSHED, STRUCTURE, 0.03),
        (EVERYTHING, {}, 0),
        (CONSTRAINTS, {}, 0.03),
        (RANKING, {}, 0),
        (OUTSIDE, {}, 0),
    ],
    ids=["all with a delay", "without a delay", "constraints and a delay", "ranking", "outside embeddings"],
)
def test_stopped_and_resumed_with_any_of_it_the_bits_are_the_same(
    own_log, make_log, tmp_path, objective, model, delay
):
    train(own_log, make_config({"seed": 3}, logistic=True), tmp_path / "teacher", record="teacher")
    write_decisions(own_log, "half", parse_model(SamplingConfig, {"non_click_rate": 0.5}, "test"))
    if "bias_constraints" in objective:
        # And a constraint log, whose rows also teach by themselves.
        constraints = objective["bias_constraints"]
        path = make_log(draw_examples(queries=220, seed=9).table(), "exposure")
        families = [*constraints["families"], {"name": "random", "log": "exposure"}]
        logs = [{"name": "exposure", "path": str(path), "own_loss": True}]
        objective = merged(objective, {"bias_constraints": {"families": families, "logs": logs}})
    config = make_config(
        {"objective": objective, "model": model, "label_delay": delay, "sampling": {"name": "half"}}
    )
    summary = whole_and_in_parts(own_log, config, tmp_path, 700)
    if "bias_constraints" in objective:
        assert all(any(summary["duals"][name]) for name in ("ctr", "low", "random"))
        assert summary["constraint_logs"]["exposure"]["examples"] > 300


@pytest.mark.soak
def test_a_run_of_compiled_steps_agrees_with_all_of_it(own_log, tmp_path):
    train(own_log, make_config({"seed": 3}), tmp_path / "teacher", record="teacher")
    summaries = {}
    for jit in (False, True):
        # AdaGrad, since compiled steps use each of Shampoo's roots one step later.
        shampoo = {"start_preconditioning_step": None}
        optimizer = {"dense": {"shampoo": shampoo}}
        changes = {"objective": PUSHED, "model": STRUCTURE, "jit": jit, "optimizer": optimizer}
        summaries[jit] = train(own_log, make_config(changes), tmp_path / f"run-{jit}")
    for name in ("logloss", "auc", "calibration_bias"):
        assert summaries[True][name] == pytest.approx(summaries[False][name], abs=1e-4)
    for family, duals in summaries[True]["duals"].items():
        assert duals == pytest.approx(summaries[False]["duals"][family], abs=1e-3)
