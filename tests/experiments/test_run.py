"""An experiment from its file to those that its report is made of; mostly with training stood in for."""

import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ctr.cli import main
from ctr.config import parse_model
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.data.sidecar import list_sidecars
from ctr.experiments.jobs import Job, Outcome
from ctr.experiments.measure import first_batches, measure
from ctr.experiments.run import Options, run_experiment
from ctr.io.errors import InputError
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig

EXPERIMENT: dict[str, Any] = {
    "title": "Small",
    "note": "Of the tests.",
    "config": {
        "batch": {"rows": 256},
        "compute_dtype": "float32",
        "model": {"crosses": {"layers": 1, "rank": 4}, "deep": {"units": [8]}},
    },
    "seeds": [1, 2],
    "teachers": {"wide": {"set": {"model.deep.units": [16]}}},
    "samplings": {"low": {"uninformative": {"rate": 0.5, "low_loss": {"teacher": "wide", "max_loss": 0.05}}}},
    "arms": {
        "smelu": {"set": {"model.deep.activation": "smelu"}},
        "student": {"teacher": "wide", "sampling": "low"},
    },
}


def run(
    content: dict[str, Any] | None = None, lines: list[str] | None = None, **options: Any
) -> dict[str, str]:
    """Runs an experiment; ``lines`` gets those of its progress."""
    file = Path("experiment.yaml")
    file.write_text(yaml.safe_dump(content or EXPERIMENT, sort_keys=False))
    progress = lines.append if lines is not None else None
    given = Options("ctr replay ...", progress=progress, **options)
    failures = run_experiment(file, Path("log"), Path("out"), given)
    return {name: outcome.error for name, outcome in failures.items()}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path("out") / name).read_text())
    return content


def clear(calls: list[str]) -> list[str]:
    found = [*calls]
    calls.clear()
    return found


@pytest.fixture(scope="module")
def made_log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "log"
    simulate(SimulatorConfig(examples=3000), folder)
    return folder


@pytest.fixture
def place(made_log, tmp_path, monkeypatch):
    """A folder with a log of one's own."""
    shutil.copytree(made_log, tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stand_in_for(job: Job, calls: list[str]) -> Outcome:
    """Writes what ``ctr train``, ``ctr sample`` and the measurement would; fails as a prior or a file asks."""
    given = dict(zip(job.arguments, job.arguments[1:], strict=False))

    def publish(sidecar: str) -> None:
        for manifest in Path("log/manifests").glob("*.json"):
            path = Path("log/sidecars", sidecar, manifest.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")

    if job.module != "ctr":
        wanted, found = map(Path, job.arguments)
        configs = json.loads(wanted.read_text())["configs"]
        calls.append(" ".join(["measure", *configs]))
        ratios = {"step_ratio": [1, 3, 4], "inference_ratio": [1, 3, 4]}
        cost = {"train_flops": 1.0, "step_ms": 2.0, "inference_ms": 1.0, **ratios}
        found.write_text(json.dumps(dict.fromkeys(configs, cost)))
        return Outcome(1.0)
    if job.arguments[0] == "sample":
        calls.append("sample")
        publish(given["--name"])
        return Outcome(1.0)
    config, run = yaml.safe_load(Path(given["--config"]).read_text()), Path(given["--out"])
    calls.append(run.name.rsplit("-", 1)[0])
    prior, is_healed = config["model"]["prior"], Path("healed").exists()
    if prior == 0.666 and not is_healed:
        return Outcome(1.0, "it broke", "Traceback ...\nerror: it broke\n", status=1)
    if prior == 0.888:
        return Outcome(1.0, "a: No space left on device")
    if prior == 0.777 and (run / "summary.json").exists():
        return Outcome(1.0)  # A finished run stays as it is.
    (run / "checkpoints/7").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints/7/state.json").touch()
    (run / "threads").write_text(dict(job.environment)["TF_NUM_INTRAOP_THREADS"])
    meaning = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    failure = "nothing was learned" if prior == 0.555 and not is_healed else None
    summary = {
        **{"config_sha256": meaning, "log_sha256": log_sha256(read_manifests(Path("log")))},
        **{"constraint_logs_sha256": {}, "per_query_auc": 0.7, "log_rows": 200, "trained_rows": 50},
        "learning_failure": failure,
    }
    (run / "summary.json").write_text(json.dumps(summary))
    if "--record" in given and not failure:
        publish(given["--record"])
    return Outcome(1.0, failure or "", status=1)


@pytest.fixture
def stand_in(place, monkeypatch) -> list[str]:
    """No process is started; what was called is in the list that is returned."""
    calls: list[str] = []

    def run_jobs(jobs: Sequence[Job], workers: int, report: Any, beam_options: str, outcomes: Path) -> None:
        for job in jobs:
            report(job, None)
            report(job, stand_in_for(job, calls))

    monkeypatch.setattr("ctr.experiments.run.run_jobs", run_jobs)
    monkeypatch.setattr("ctr.experiments.costs.run_jobs", run_jobs)
    return calls


def test_teachers_then_samplings_then_arms_and_nothing_twice(stand_in):
    lines: list[str] = []
    assert run(lines=lines) == {}
    calls = clear(stand_in)
    assert calls[:2] == ["teacher-wide-seed-1", "sample"]
    # The first seeds of all arms come first.
    assert {call[-1] for call in calls[2:4]} == {"1"}
    arms = ("baseline", "smelu", "student")
    assert sorted(calls[2:8]) == sorted(f"{arm}-seed-{s}" for arm in arms for s in (1, 2))
    assert calls[8:] == ["measure baseline smelu student", "measure teacher wide"]
    # Each run has a line when it begins and another one when it ends.
    assert len(lines) == 16 and lines[0] == "[0/8] teacher-wide seed 1: begun"
    assert lines[1].startswith("[1/8, ") and "left] teacher-wide seed 1: PerQueryAUC 0.7000, " in lines[1]
    assert sum(line.endswith(": begun") for line in lines) == 8
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
    assert run() == {} and clear(stand_in) == []
    assert read("plan.json")["created"] == plan["created"]


def test_what_is_there_is_taken_and_what_changed_is_run_again(stand_in, place):
    one_seed = {**EXPERIMENT, "seeds": [1]}
    run(one_seed, timing=False)
    clear(stand_in)
    arms = {**EXPERIMENT["arms"], "smelu": {"set": {"model.deep.activation": "gelu"}}}
    run({**one_seed, "arms": arms}, timing=False)
    assert clear(stand_in) == ["smelu-seed-1", "measure baseline smelu student", "measure teacher wide"]
    # A run that was interrupted is not finished, whatever else is there of it.
    (summary,) = (place / "out/runs").glob("baseline-seed-1-*/summary.json")
    summary.unlink()
    run({**one_seed, "arms": arms}, timing=False)
    assert clear(stand_in) == ["baseline-seed-1"]
    # Another experiment takes the teacher and the sampling that are there.
    shutil.rmtree(place / "out")
    assert run(one_seed, timing=False) == {}
    calls = clear(stand_in)
    assert not {"teacher-wide-seed-1", "sample"} & set(calls) and "student-seed-1" in calls
    # What failed here and was made elsewhere has not failed.
    (place / "out/failures").mkdir(exist_ok=True)
    for name in ("teacher-wide-seed-1", "sampling-low"):
        (place / f"out/failures/{name}.txt").write_text("error: it broke\n")
    assert run(one_seed, timing=False) == {} and clear(stand_in) == []
    assert not list((place / "out/failures").iterdir())
    # Another log is passed again: a teacher, a sampling, three runs and two measurements.
    shutil.rmtree(place / "log")
    simulate(SimulatorConfig(examples=300, seed=4), place / "log")
    run(one_seed, timing=False)
    assert len(clear(stand_in)) == 7


def test_a_failure_is_reported_and_tried_again_and_what_needs_it_is_not_run(stand_in, place):
    arms = {name: {"set": {"model.prior": prior}} for name, prior in (("bad", 0.666), ("dull", 0.555))}
    content = {**EXPERIMENT, "arms": {**EXPERIMENT["arms"], **arms}, "seeds": [1]}
    lines: list[str] = []
    for _ in range(2):
        failures = run(content, lines, timing=False)
        # A run that learned nothing has failed.
        assert failures == {"bad seed 1": "it broke", "dull seed 1": "nothing was learned"}
    assert sum(line.endswith("bad seed 1: failed: it broke") for line in lines) == 2
    assert (place / "out/failures/bad-seed-1.txt").read_text() == "Traceback ...\nerror: it broke\n\n"
    assert clear(stand_in).count("dull-seed-1") == 2
    # The costs of an arm without a run are not known.
    assert "bad" not in read("costs.json")["arms"]
    teachers = {"wide": {"set": {"model.prior": 0.666}}}
    failures = run({**EXPERIMENT, "teachers": teachers, "seeds": [1]}, timing=False)
    skipped = ("sampling low", "student seed 1")
    told = dict.fromkeys(skipped, "not run, because teacher-wide seed 1 failed")
    assert failures == {"teacher-wide seed 1": "it broke", **told}
    calls = clear(stand_in)
    assert not {"sample", "student-seed-1"} & set(calls)
    (place / "healed").touch()
    assert run(content, timing=False) == {}
    assert not list((place / "out/failures").iterdir())
    assert sorted(clear(stand_in)[:2]) == ["bad-seed-1", "dull-seed-1"]
    assert set(read("costs.json")["arms"]) == {"baseline", "smelu", "student", "bad", "dull"}


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


def test_command_line(stand_in, monkeypatch, capfd):
    def write_experiment(out):
        (out / "result.json").write_text('{"arms": 1}')
        return "a table"

    # Whatever the runs are.
    module = SimpleNamespace(write_experiment=write_experiment)
    monkeypatch.setitem(sys.modules, "ctr.experiments.report.write", module)
    arms = {"bad": {"set": {"model.prior": 0.666}}}
    Path("experiment.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "arms": arms, "seeds": [1, 2]}))
    arguments = ["replay", "experiment.yaml", "--log", "log", "--out", "out", "--workers", "1", "--no-timing"]
    arguments += ["--set", "seeds=[1]"]
    assert main(arguments) == 1
    out, err = capfd.readouterr()
    assert out.startswith("a table\n")
    # Without a terminal, too, each run that begins, ends or fails has a line.
    *lines, error = err.splitlines()
    ended = [line for line in lines if not line.endswith(": begun")]
    assert len(lines) == 2 * len(ended)
    assert error == "error: 1 failed: bad seed 1: it broke; rerun the same command to try again"
    names = sorted(re.sub(r"\[.*?\] ", "", line).partition(":")[0] for line in ended)
    assert names == ["bad seed 1", "baseline seed 1"]
    assert any(line.endswith("bad seed 1: failed: it broke") for line in ended)
    assert read("plan.json")["command"] == shlex.join(["ctr", *arguments])
    assert read("costs.json")["rounds"] == 0
    # What may pass in one of the runs is worth another try.
    full = [*arguments[:5], "full", *arguments[6:], "--set", "arms.full.set={model.prior: 0.888}"]
    assert main(full) == 75
    err = capfd.readouterr().err
    assert "error: 2 failed: bad seed 1: it broke; full seed 1: a: No space left on device; rerun" in err
    clear(stand_in)
    assert main(["replay", "--out", "out", "--report", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"arms": 1} and clear(stand_in) == []
    assert main(["replay", "--out", "out"]) == 1
    assert "EXPERIMENT and --log are required" in capfd.readouterr().err


def test_rows_of_pairs_are_counted(made_log):
    """Their table has the rows of all features, and one for each two ids that are together in a row."""
    sets = {"linear": ["linear"], "both": ["linear", "pairs"]}
    contents = {name: {"batch": {"rows": 64}, "model": {"experts": one}} for name, one in sets.items()}
    found = measure(made_log, contents, "linear", 0)
    schema = read_schema(made_log)
    config = parse_model(TrainConfig, contents["linear"], "test")
    own = together = 0
    for batch in first_batches(made_log, schema, config):
        columns = batch.rows.ids.T.tolist()
        lists = [values.tolist() for values, _ in batch.rows.multivalent.values()]
        own += sum(len(set(one)) for one in [*columns, *lists])
        together += sum(len(set(zip(*two, strict=True))) for two in itertools.combinations(columns, 2))
    ratio = found["both"]["flops"]["rows"] / found["linear"]["flops"]["rows"]
    assert ratio == pytest.approx((2 * own + together) / own) and together > own


@pytest.mark.slow
def test_real_runs(place):
    content = {**EXPERIMENT, "seeds": [1], "arms": {"student": EXPERIMENT["arms"]["student"]}}
    assert run(content, timing=False) == {}
    assert len(list_sidecars(place / "log")) == 4
    costs = read("costs.json")["arms"]
    assert costs["baseline"]["learned_share"] == 1
    assert 0.4 < costs["student"]["learned_share"] < 1
    summary = json.loads(next(Path("out/runs").glob("student-*/summary.json")).read_text())
    assert costs["student"]["dense_parameters"] == summary["parameters_dense"]
    # Pairs of ids get their rows as a run goes on.
    assert costs["student"]["embedding_parameters"] < summary["parameters_embedding"]
    times = {path: path.stat().st_mtime_ns for path in Path("out/runs").rglob("*")}
    assert run(content, timing=False) == {}
    assert {path: path.stat().st_mtime_ns for path in Path("out/runs").rglob("*")} == times


def test_what_is_not_possible_is_refused_before_the_first_run(stand_in, place):
    wrong = {**EXPERIMENT, "slices": {"S1": {"family": "low", "index": 0}}}
    with pytest.raises(InputError, match=r"slices\.S1\.family: there is no low .*none is measured"):
        run(wrong)
    with pytest.raises(InputError, match="--workers 0: at least 1 is required"):
        run(workers=0)
    assert clear(stand_in) == [] and not (place / "out").exists()
