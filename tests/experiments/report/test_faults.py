import re
import shutil

import pytest

from ctr.eval.run_comparison import NotComparableError
from ctr.experiments.report.write import write_experiment
from ctr.io.errors import InputError
from experiment_folders import ARMS, cost, edit, logits, page_of, result_of, write_costs, write_small
from report_pages import Html
from run_directories import make_rows, predict, run_folder, write_plan


def test_failed_missing_and_damaged_runs_are_told_and_the_rest_too(copy):
    folder = copy / run_folder("dcn", 2)
    shutil.rmtree(folder)
    shutil.rmtree(copy / run_folder("optimizer", 3))
    (copy / run_folder("base", 3) / "metric_states.npz").write_bytes(b"no")
    (copy / "failures").mkdir()
    (copy / "failures" / "dcn-seed-2.txt").write_text("Traceback\n  somewhere\nerror: out of <memory>\n\n")
    (copy / "failures" / "teacher-big-seed-1.txt").write_text("no such column\n")
    text = write_experiment(copy)
    assert "- dcn seed 2 failed: out of <memory>" in text
    assert "- teacher big failed: no such column" in text
    assert re.search(r"- optimizer seed 3 missing: runs/optimizer-seed-3-\w+: not run, or not finished", text)
    assert re.search(r"- base seed 3 unreadable: .*metric_states.npz: damaged", text)
    result = result_of(copy)
    assert list(result["dcn"]["changes"]["auc"]["by_seed"]) == ["1"]
    assert list(result["optimizer"]["changes"]["auc"]["by_seed"]) == ["1"]
    assert [run["state"] for run in result["dcn"]["runs"]] == ["finished", "failed", "finished"]
    # The sweep is read at the seed that both sides still have.
    assert result["dcn"]["tuning"]["flops"]["left_out"] == ["dcn"]
    assert "out of &lt;memory&gt;" in (copy / "report.html").read_text()


def test_a_run_that_learned_nothing_is_no_result(copy):
    edit(
        copy / run_folder("dcn", 2) / "summary.json",
        lambda summary: summary.update(learning_failure="nothing was learned"),
    )
    text = write_experiment(copy)
    assert "- dcn seed 2 failed: nothing was learned" in text
    assert list(result_of(copy)["dcn"]["changes"]["auc"]["by_seed"]) == ["1", "3"]


def test_without_a_finished_baseline_the_arms_are_told(copy):
    for seed in (1, 2, 3):
        shutil.rmtree(copy / run_folder("base", seed))
    text = write_experiment(copy)
    assert "- dcn not compared: no seed was finished by both dcn and base" in text
    result = result_of(copy)
    assert result["optimizer"]["changes"] and not result["dcn"]["changes"]
    assert result["dcn"]["tuning"]["flops"]["unavailable"] == "base has not finished a seed of the sweep"
    page_of(copy)


def test_no_run_at_all(tmp_path):
    write_plan(tmp_path, {"base": {}, "arm": {}})
    text = write_experiment(tmp_path)
    assert text.count("not run, or not finished") == 4
    page_of(tmp_path)
    assert result_of(tmp_path)["arm"]["metrics"]["auc"] is None


@pytest.mark.parametrize("queries", [1, 40])
def test_a_log_without_a_click_leaves_accuracy_undefined(tmp_path, queries):
    quiet = make_rows(2, queries=queries, click_rate=0.0)
    write_plan(tmp_path, {**{name: arm for name, arm in ARMS.items() if "dcn" in name}, "base": {}})
    for name in ("base", "dcn", "dcn@narrow", "dcn@wide"):
        for seed in (1, 2):
            write_small(tmp_path / run_folder(name, seed), quiet, predict(quiet, seed, 1.0))
    write_costs(tmp_path, {name: cost(name) for name in ARMS})
    write_experiment(tmp_path)
    page_of(tmp_path)
    assert "nan" not in "".join(Html((tmp_path / "report.html").read_text()).images()).lower()
    arm = result_of(tmp_path)["dcn"]
    change = arm["changes"]["per_query_auc"]
    assert change["difference"] == {"value": None, "ci95": [None, None]} and not change["significant"]
    assert arm["tuning"]["flops"]["unavailable"] == "its accuracy is undefined"
    # Its predictions are those of the baseline.
    assert arm["prediction_difference"]["whole"]["ratio"]["value"] == 1


def test_runs_over_another_log_are_refused(rows, copy):
    folder = copy / run_folder("dcn", 2)
    shutil.rmtree(folder)
    write_small(folder, rows, logits(rows, "dcn", 2), log_sha256="b" * 64)
    with pytest.raises(NotComparableError, match=r"dcn-seed-2.*read another log .*bbbbbbbbbbbb") as error:
        write_experiment(copy)
    assert "\n" not in str(error.value)
    edit(copy / "plan.json", lambda plan: plan.update(log_sha256=None))
    with pytest.raises(NotComparableError, match=r"dcn-seed-2.*read another log"):
        write_experiment(copy)


@pytest.mark.soak
def test_an_arm_that_scored_other_examples_is_told_but_not_compared(rows, copy):
    fewer = rows[rows["query_id"].isin(rows["query_id"].unique()[:200])]
    for seed in (1, 2, 3):
        folder = copy / run_folder("optimizer", seed)
        shutil.rmtree(folder)
        write_small(folder, fewer, logits(rows, "optimizer", seed)[: len(fewer)])
    text = write_experiment(copy)
    line = next(line for line in text.splitlines() if line.startswith("- optimizer not compared"))
    assert f"({len(fewer)} and {len(rows)}" in line and "allowed: runs that scored the same" in line
    result = result_of(copy)
    assert result["optimizer"]["changes"] == {} and result["optimizer"]["metrics"]["auc"]
    assert result["dcn"]["changes"]


@pytest.mark.slow
def test_absent_costs_are_absent(copy):
    costs = {name: cost(name) for name in ARMS}
    costs["dcn"] = {"train_flops": 1100.0, "learned_share": None, "step_ms": None}
    del costs["optimizer"]
    write_costs(copy, costs)
    text = write_experiment(copy)
    result = result_of(copy)
    assert set(result["dcn"]["cost_ratio"].values()) == {None}
    assert result["optimizer"]["costs"] is None
    assert result["dcn@wide"]["cost_ratio"]["train_flops"]["value"] == pytest.approx(1.5)
    assert result["dcn"]["tuning"]["flops"]["left_out"] == ["dcn"]
    assert "2 of 3" in text
    (copy / "costs.json").unlink()
    text = write_experiment(copy)
    assert "Costs" not in text
    assert result_of(copy)["dcn"]["tuning"]["time"]["unavailable"] == "the cost of base is not known"
    page_of(copy)


def test_predictions_that_were_not_recorded_or_are_damaged_leave_out_pd_alone(copy):
    shutil.rmtree(copy / run_folder("dcn", 1) / "predictions")
    next((copy / run_folder("optimizer", 2)).glob("predictions/*.parquet")).write_bytes(b"PAR1")
    write_experiment(copy)
    result = result_of(copy)
    assert "no predictions were recorded" in result["dcn"]["prediction_difference_unavailable"]
    assert "not readable as predictions" in result["optimizer"]["prediction_difference_unavailable"]
    assert result["optimizer"]["prediction_difference"]["late"]["ratio"] is None
    assert result["dcn"]["changes"]
    assert result["base"]["prediction_difference"]["late"]["mean"]


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda plan: plan.pop("baseline"), r"baseline: Field required"),
        (lambda plan: plan.update(baseline="other"), r"baseline must be the name of an arm, got 'other'"),
        (
            lambda plan: plan["arms"][1].update(against="x"),
            r"arms.1.against must be the name of an arm, got 'x'",
        ),
        (lambda plan: plan["arms"][1].update(name="../x"), r"arms.1.name must be letters.*got '../x'"),
        (lambda plan: plan["arms"][1].update(name="base"), r"arms.1.name must differ.*'base' twice"),
        (lambda plan: plan["arms"][0]["runs"][0].update(seed="1"), r"arms.0.runs.0.seed: .*integer, got '1'"),
    ],
)
def test_a_wrong_plan_is_one_line(tmp_path, change, reported):
    write_plan(tmp_path, {"base": {}, "arm": {}})
    edit(tmp_path / "plan.json", change)
    with pytest.raises(InputError, match=rf"plan\.json: {reported}") as error:
        write_experiment(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"arms": {"base": {"step_ratio": [1, 2]}}}',
        '{"arms": {"base": {"train_flops": -1}}}',
        '{"arms": {"base": {"step_ms": NaN}}}',
    ],
)
def test_damaged_costs_are_one_line(tmp_path, content):
    write_plan(tmp_path, {"base": {}})
    (tmp_path / "costs.json").write_text(content)
    with pytest.raises(InputError, match=r"costs\.json: ") as error:
        write_experiment(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_plan(tmp_path):
    with pytest.raises(InputError, match=r"no plan\.json, so this is not an experiment"):
        write_experiment(tmp_path)
