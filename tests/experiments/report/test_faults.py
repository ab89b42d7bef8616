"""An experiment some of whose runs, costs or files are missing, damaged or of another log."""

import re
import shutil

import pytest

from ctr.eval.run_comparison import NotComparableError
from ctr.experiments.report.runs import COST_KINDS
from ctr.experiments.report.write import write_experiment
from ctr.io.errors import InputError
from experiment_folders import ARMS, cost, edit, logits, message, page_of, write_costs, write_small
from report_pages import Html, words_of
from run_directories import make_rows, predict, run_folder, write_plan


def test_failed_missing_and_damaged_runs_are_told_and_the_rest_too(copy):
    folder = copy / run_folder("dcn", 2)
    shutil.rmtree(folder)
    shutil.rmtree(copy / run_folder("optimizer", 3))
    (copy / run_folder("base", 3) / "windows.parquet").write_bytes(b"no")
    (copy / "failures").mkdir()
    (copy / "failures" / "dcn-seed-2.txt").write_text("Traceback\n  somewhere\nerror: out of <memory>\n\n")
    (copy / "failures" / "teacher-big-seed-1.txt").write_text("no such column\n")
    # A run that learned nothing is no result.
    summary = copy / run_folder("dcn@wide", 1) / "summary.json"
    edit(summary, lambda content: content.update(learning_failure="nothing was learned"))
    text, result = message(copy)
    assert "- dcn seed 2 failed: out of <memory>" in text
    assert "- teacher big failed: no such column" in text
    assert "- dcn@wide seed 1 failed: nothing was learned" in text
    assert re.search(r"- optimizer seed 3 missing: runs/optimizer-seed-3-\w+: not run, or not finished", text)
    assert re.search(r"- base seed 3 unreadable: .*windows.parquet: not readable", text)
    # A mean and a difference are of the seeds that both sides have, each once.
    for name, reference in (("dcn", "base"), ("optimizer", "dcn")):
        assert list(result.by_seed("auc_difference", name)) == ["1"]
        own, theirs = (result("auc", arm, seed=1) for arm in (name, reference))
        assert result("auc_difference", name) == pytest.approx(own - theirs, abs=1e-12)
        values = [*result.by_seed("auc", name).values()]
        assert result("auc", name) == pytest.approx(sum(values) / len(values)) and len(values) == 2
    assert [run["state"] for run in result["dcn"]["runs"]] == ["finished", "failed", "finished"]
    # The sweep is read at the seeds that both sides should have: one point is left.
    narrow = result("per_query_auc_change_percent", "dcn@narrow") / 100
    assert result("accuracy_change_at_neutral_flops", "dcn") == pytest.approx(narrow)
    assert "out of <memory>" in words_of(page_of(copy))


def test_without_a_finished_baseline_or_any_run_the_arms_are_told(copy, tmp_path):
    for seed in (1, 2, 3):
        shutil.rmtree(copy / run_folder("base", seed))
    text, result = message(copy)
    assert "- dcn not compared: no seed was finished by both dcn and base" in text
    assert result("auc_difference", "optimizer") and result("auc_difference", "dcn") is None
    assert "dcn has no tuning points by flops: base has not finished a seed of the sweep" in text
    write_plan(tmp_path / "empty", {"base": {}, "arm": {}})
    text, result = message(tmp_path / "empty")
    assert text.count("not run, or not finished") == 4
    assert result[""]["results"] == []


def test_a_log_without_a_click_leaves_accuracy_undefined(tmp_path):
    quiet = make_rows(2, queries=1, click_rate=0.0)
    write_plan(tmp_path, {**{name: arm for name, arm in ARMS.items() if "dcn" in name}, "base": {}})
    for name in ("base", "dcn", "dcn@narrow", "dcn@wide"):
        for seed in (1, 2):
            write_small(tmp_path / run_folder(name, seed), quiet, predict(quiet, seed, 1.0))
    write_costs(tmp_path, {name: cost(name) for name in ARMS})
    write_experiment(tmp_path)
    assert "nan" not in "".join(Html((tmp_path / "report.html").read_text()).images()).lower()
    text, result = message(tmp_path)
    numbers = [one for one in result[""]["results"] if one["arm"] == "dcn"]
    changes = [one for one in numbers if "per_query_auc_d" in one["metric"]]
    assert len(changes) == 3 and {one["value"] for one in changes} == {None}
    assert result("per_query_auc_significant", "dcn") is None
    assert "dcn has no tuning points by flops: its accuracy is undefined" in text
    # Its predictions are those of the baseline.
    assert result("prediction_difference_ratio", "dcn") == 1


def test_runs_over_another_log_or_of_other_examples(rows, copy):
    folder = copy / run_folder("optimizer", 2)
    fewer = rows[rows["query_id"].isin(rows["query_id"].unique()[:200])]
    shutil.rmtree(folder)
    write_small(folder, fewer, logits(rows, "optimizer", 2)[: len(fewer)])
    text, result = message(copy)
    line = next(line for line in text.splitlines() if line.startswith("- optimizer not compared"))
    assert f"({len(fewer)} and {len(rows)}" in line and "allowed: runs that scored the same" in line
    assert result("auc_difference", "optimizer") is None and result("auc", "optimizer")
    assert result("auc_difference", "dcn")
    shutil.rmtree(folder)
    write_small(folder, rows, logits(rows, "optimizer", 2), log_sha256="b" * 64)
    for log in ("a" * 64, None):
        edit(copy / "plan.json", lambda plan, log=log: plan.update(log_sha256=log))
        with pytest.raises(NotComparableError, match=r"optimizer-seed-2.*read another log .*bbb") as error:
            write_experiment(copy)
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_absent_costs_and_predictions_are_absent(copy):
    costs = {name: cost(name) for name in ARMS}
    costs["dcn"] = {"train_flops": 1100.0, "learned_share": None, "step_ms": None}
    del costs["optimizer"]
    write_costs(copy, costs)
    edit(copy / "costs.json", lambda content: content.update(teacher_flops={"big": 123456.78901234567}))
    words = words_of(page_of(copy))
    assert "FLOPs of teacher big\n123,457" in words and "123456.789" not in words
    shutil.rmtree(copy / run_folder("dcn", 1) / "predictions")
    next((copy / run_folder("optimizer", 2)).glob("predictions/*.parquet")).write_bytes(b"PAR1")
    text, result = message(copy)
    metrics = {one["metric"] for one in result[""]["results"] if one["arm"] == "dcn"}
    assert "train_flops" in metrics
    assert not {f"{kind}_ratio" for kind in COST_KINDS} & metrics
    assert result("train_flops", "optimizer") is None
    assert result("train_flops_ratio", "dcn@wide") == pytest.approx(1.5)
    assert "dcn has no prediction difference by seed: no predictions were recorded" in text
    assert re.search("optimizer has no prediction difference by seed: .*not readable as predictions", text)
    assert result("prediction_difference_ratio", "optimizer", window="last half") is None
    assert result("auc_difference", "dcn")
    assert result("prediction_difference", "base", window="last half")
    (copy / "costs.json").unlink()
    text, result = message(copy)
    assert "Costs" not in text
    assert "dcn has no tuning points by time: the cost of base is not known" in text


def test_wrong_plans_and_costs_are_one_line(tmp_path):
    def refused(reported):
        with pytest.raises(InputError, match=reported) as error:
            write_experiment(tmp_path)
        assert "\n" not in str(error.value)

    refused(r"no plan\.json, so this is not an experiment")
    for change, reported in (
        (lambda plan: plan.pop("baseline"), r"baseline: Field required"),
        (lambda plan: plan.update(baseline="other"), r".*'other' must be the name of an arm: base, arm"),
        (lambda plan: plan["arms"][1].update(name="../x"), r"arms.1.name: String should match.*got '../x'"),
        (lambda plan: plan["arms"][1].update(name="base"), r".*distinct names, got base, base"),
    ):
        write_plan(tmp_path, {"base": {}, "arm": {}})
        edit(tmp_path / "plan.json", change)
        refused(rf"plan\.json: {reported}")
    write_plan(tmp_path, {"base": {}})
    for costs in ('{"arms": {"base": {"step_ratio": [1, 2]}}}', '{"arms": {"base": {"step_ms": NaN}}}', "{"):
        (tmp_path / "costs.json").write_text(costs)
        refused(r"costs\.json: ")
