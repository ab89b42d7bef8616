"""An experiment from its file to those that its report is made of; mostly with a stand-in for training."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from ctr.cli import main
from ctr.data.log import log_sha256, read_manifests
from ctr.data.sidecar import list_sidecars
from ctr.experiments.measure import measure
from ctr.io.errors import InputError
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from stand_in_runs import EXPERIMENT, read, run


def test_teachers_then_samplings_then_arms_and_nothing_twice(stand_in):
    lines: list[str] = []
    assert run(lines=lines) == {}
    calls = stand_in.read_text().splitlines()
    assert calls[:2] == ["teacher-wide-seed-1", "sample"]
    # The first seeds of all arms come first.
    assert {call[-1] for call in calls[2:4]} == {"1"}
    assert sorted(calls[2:8]) == sorted(
        f"{arm}-seed-{s}" for arm in ("baseline", "smelu", "student") for s in (1, 2)
    )
    assert calls[8:] == ["measure baseline smelu student", "measure teacher wide"]
    assert len(lines) == 8
    assert lines[0].startswith("[1/8, ") and "left] teacher-wide seed 1: PerQueryAUC 0.7000, " in lines[0]
    plan = read("plan.json")
    assert (plan["title"], plan["note"], plan["command"]) == ("Small", "Of the tests.", "ctr replay ...")
    assert plan["log_sha256"] == log_sha256(read_manifests(Path("log")))
    for arm in plan["arms"]:
        for made in arm["runs"]:
            assert (Path("out") / made["folder"] / "summary.json").is_file()
            assert not (Path("out") / made["folder"] / "checkpoints").exists()
    costs = read("costs.json")
    assert costs["arms"]["smelu"]["learned_share"] == 0.25
    assert costs["teacher_flops"] == {"wide": 1.0}
    assert costs["rounds"] > 0
    stand_in.write_text("")
    assert run() == {}
    assert stand_in.read_text() == ""
    assert read("plan.json")["created"] == plan["created"]


@pytest.mark.slow
def test_another_runner_makes_the_same(stand_in, place):
    options = "--runner=FnApiRunner --direct_num_workers=2 --direct_running_mode=multi_threading"
    lines: list[str] = []
    assert run(lines=lines, timing=False, beam_options=options, workers=2) == {}
    assert stand_in.read_text().splitlines()[:2] == ["teacher-wide-seed-1", "sample"]
    assert len(lines) == 8 and lines[-1].startswith("[8/8, ")
    assert len(list((place / "out/runs").glob("*/summary.json"))) == 7
    assert not (place / "out/outcomes").exists()


def test_what_is_there_is_taken_and_what_changed_is_run_again(stand_in, place):
    run(timing=False)
    clear(stand_in)
    arms = {**EXPERIMENT["arms"], "smelu": {"set": {"model.deep.activation": "gelu"}}}
    run({**EXPERIMENT, "arms": arms}, timing=False)
    calls = clear(stand_in)
    assert sorted(calls[:2]) == ["smelu-seed-1", "smelu-seed-2"]
    assert calls[2:] == ["measure baseline smelu student", "measure teacher wide"]
    # A run that was interrupted is not finished, whatever else is there of it.
    (summary,) = (place / "out/runs").glob("baseline-seed-2-*/summary.json")
    summary.unlink()
    run({**EXPERIMENT, "arms": arms}, timing=False)
    assert clear(stand_in) == ["baseline-seed-2"]
    # Another experiment takes the teacher and the sampling that are there, also where they failed before.
    shutil.rmtree(place / "out")
    for name in ("teacher-wide-seed-1", "sampling-low"):
        (place / "out/failures").mkdir(exist_ok=True, parents=True)
        (place / f"out/failures/{name}.txt").write_text("error: it broke\n")
    assert run(timing=False) == {}
    calls = clear(stand_in)
    assert not {"teacher-wide-seed-1", "sample"} & set(calls) and "student-seed-2" in calls
    assert not list((place / "out/failures").iterdir())
    # Another log is passed again: a teacher, a sampling, six runs and two measurements.
    simulate(SimulatorConfig(examples=300, seed=4), place / "other")
    shutil.rmtree(place / "log")
    shutil.move(place / "other", place / "log")
    (place / "sha").write_text(log_sha256(read_manifests(place / "log")))
    run(timing=False)
    assert len(clear(stand_in)) == 10


def clear(stand_in: Path) -> list[str]:
    calls = stand_in.read_text().splitlines()
    stand_in.write_text("")
    return calls


def test_a_failure_is_reported_and_tried_again(stand_in, place):
    arms = {**EXPERIMENT["arms"], "bad": {"set": {"model.prior": 0.666}}}
    lines: list[str] = []
    failures = run({**EXPERIMENT, "arms": arms}, lines, timing=False)
    assert failures == {"bad seed 1": "it broke", "bad seed 2": "it broke"}
    assert sum(line.endswith("bad seed 1: failed: it broke") for line in lines) == 1
    assert (place / "out/failures/bad-seed-1.txt").read_text() == "Traceback ...\nerror: it broke\n\n"
    # The costs of an arm without a run are not known.
    assert set(read("costs.json")["arms"]) == {"baseline", "smelu", "student"}
    stand_in.write_text("")
    (place / "healed").touch()
    assert run({**EXPERIMENT, "arms": arms}, timing=False) == {}
    assert not list((place / "out/failures").iterdir())
    assert sorted(stand_in.read_text().splitlines()[:2]) == ["bad-seed-1", "bad-seed-2"]
    assert set(read("costs.json")["arms"]) == {"baseline", "smelu", "student", "bad"}


def test_a_run_that_learned_nothing_has_failed_and_is_tried_again(stand_in, place):
    content = {**EXPERIMENT, "arms": {"bad": {"set": {"model.prior": 0.555}}}, "seeds": [1]}
    for _ in range(2):
        assert run(content, timing=False) == {"bad seed 1": "nothing was learned"}
    assert stand_in.read_text().splitlines().count("bad-seed-1") == 2
    (place / "healed").touch()
    assert run(content, timing=False) == {}


def test_a_run_of_another_version_is_named(stand_in):
    content = {"config": {**EXPERIMENT["config"], "model": {"prior": 0.777}}, "seeds": [1]}
    assert run(content, timing=False) == {}
    (summary,) = Path("out/runs").glob("*/summary.json")
    made = json.loads(summary.read_text())
    summary.write_text(json.dumps({**made, "config_sha256": "0" * 64}))
    text = (
        f"it succeeded, but its run {summary.parent.relative_to('out')} was made by another version of ctr, "
        "or was changed (other config_sha256): remove it, or use another --out"
    )
    assert run(content, timing=False) == {"baseline seed 1": text}


def test_workers_share_the_processors_and_a_run_goes_on_with_what_it_had(stand_in):
    cores = len(os.sched_getaffinity(0))
    content = {"config": EXPERIMENT["config"], "seeds": [1]}
    run(content, timing=False, workers=1)
    (made,) = Path("out/runs").iterdir()
    assert (made / "threads").read_text() == str(cores)
    (made / "summary.json").unlink()
    run(content, timing=False, workers=2 * cores)
    assert (made / "threads").read_text() == "1"
    (made / "summary.json").unlink()
    (made / "environment.json").write_text('{"variables": {"TF_NUM_INTRAOP_THREADS": "7"}}')
    run(content, timing=False, workers=1)
    assert (made / "threads").read_text() == "7"


def test_what_needs_a_failed_teacher_is_not_run(stand_in):
    teachers = {"wide": {"set": {"model.prior": 0.666}}}
    failures = run({**EXPERIMENT, "teachers": teachers}, timing=False)
    assert failures["teacher-wide seed 1"] == "it broke"
    assert failures["sampling low"] == "not run, because teacher-wide seed 1 failed"
    assert failures["student seed 2"] == "not run, because teacher-wide seed 1 failed"
    assert set(failures) == {"teacher-wide seed 1", "sampling low", "student seed 1", "student seed 2"}
    calls = stand_in.read_text().splitlines()
    assert "sample" not in calls and "smelu-seed-2" in calls


def test_nothing_is_run_when_anything_is_wrong(stand_in, place):
    arms = {"bad": {"set": {"batch.rows": 0}}}
    with pytest.raises(InputError, match=r"arms\.bad\.set\.batch\.rows: 0 is not allowed"):
        run({**EXPERIMENT, "arms": arms})
    with pytest.raises(InputError, match="--workers 0: at least 1 is required"):
        run(workers=0)
    assert stand_in.read_text() == ""
    assert not (place / "out").exists()


@pytest.fixture
def table(monkeypatch):
    """The report's text, whatever the runs are."""
    module = ModuleType("ctr.experiments.report.write")

    def write_experiment(out: Path) -> str:
        (out / "result.json").write_text('{"arms": 1}')
        return "a table"

    module.write_experiment = write_experiment  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ctr.experiments.report.write", module)


def test_command_line(stand_in, table, capfd):
    arms = {"bad": {"set": {"model.prior": 0.666}}}
    Path("experiment.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "arms": arms, "seeds": [1, 2]}))
    arguments = ["replay", "experiment.yaml", "--log", "log", "--out", "out", "--workers", "1", "--no-timing"]
    arguments += ["--set", "seeds=[1]"]
    assert main(arguments) == 1
    out, err = capfd.readouterr()
    assert out.startswith("a table\n")
    assert err == "error: 1 failed: bad seed 1: it broke; rerun the same command to try again\n"
    assert read("plan.json")["command"] == shlex.join(["ctr", *arguments])
    assert read("costs.json")["rounds"] == 0
    calls = stand_in.read_text()
    assert main(["replay", "--out", "out", "--report", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"arms": 1}
    assert stand_in.read_text() == calls
    assert main(["replay", "--out", "out"]) == 1
    assert "EXPERIMENT and --log are required" in capfd.readouterr().err


@pytest.mark.soak
def test_costs_of_real_models(made_log):
    content = EXPERIMENT["config"]
    wide = {**content, "model": {**content["model"], "deep": {"units": [256]}}}
    found = measure(made_log, {"narrow": content, "wide": wide}, "narrow", 2)
    for cost in found.values():
        assert 0 < cost["inference_flops"] < cost["train_flops"]
        assert cost["step_ms"] > 0 and cost["inference_ms"] > 0 and len(cost["step_ratio"]) == 3
    assert found["narrow"]["step_ratio"] == [1, 1, 1]
    assert found["wide"]["inference_flops"] > 5 * found["narrow"]["inference_flops"]
    assert 128 < found["narrow"]["batch_rows"] <= 256


@pytest.mark.slow
def test_real_runs(place):
    assert run({**EXPERIMENT, "seeds": [1]}, timing=False) == {}
    assert len(list_sidecars(place / "log")) == 4
    costs = read("costs.json")["arms"]
    assert costs["baseline"]["learned_share"] == 1
    assert 0.4 < costs["student"]["learned_share"] < 1
    summary = json.loads(next(Path("out/runs").glob("student-*/summary.json")).read_text())
    for count in ("dense", "embedding"):
        assert costs["student"][f"{count}_parameters"] == summary[f"parameters_{count}"]
    times = {path: path.stat().st_mtime_ns for path in Path("out/runs").rglob("*")}
    assert run({**EXPERIMENT, "seeds": [1]}, timing=False) == {}
    assert {path: path.stat().st_mtime_ns for path in Path("out/runs").rglob("*")} == times
