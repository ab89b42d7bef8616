"""Experiments as they are written: what runs they come down to, and which ones are refused with what line."""

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
import yaml

from ctr.experiments.calls import Call
from ctr.experiments.config import read_experiment
from ctr.experiments.plan import Plan, read_plan
from ctr.experiments.planning import Calls, make_plan
from ctr.io.errors import InputError
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate


def teacher_of(calls: Calls) -> Call:
    """The only teacher."""
    (teacher,) = calls.teachers.values()
    return teacher


BASE = {"batch": {"rows": 256}, "model": {"crosses": {"layers": 1, "rank": 4}, "deep": {"units": [16]}}}
WHOLE: dict[str, Any] = {
    "title": "All of it",
    "base": "base.yaml",
    "config": {"compute_dtype": "float32", "model": {"prior": 0.1}},
    "seeds": [3, 5],
    "teachers": {"wide": {"set": {"model.deep.units": [32]}, "seed": 9}, "unused": {}},
    "samplings": {
        "half": {"non_click_rate": 0.5},
        "low": {"uninformative": {"rate": 0.3, "low_loss": {"teacher": "wide", "max_loss": 0.05}}},
        "unused": {},
    },
    "baseline": {"title": "DCNv2", "set": {"batch.rows": 128}},
    "arms": {
        "smelu": {"title": "SmeLU", "set": {"model.deep.activation": "smelu"}, "paper": {"pd": "-10%"}},
        "student": {"teacher": "wide", "set": {"objective.distillation.weight": 0.25}},
        "low": {"sampling": "low", "score": "kept", "against": "student"},
        "half": {"sampling": "half"},
    },
    "sweep": {"points": {"narrow": {"model.deep.units": [8]}}, "arms": ["baseline", "low"], "seeds": [5]},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "log"
    simulate(SimulatorConfig(examples=300), folder)
    return folder


@pytest.fixture
def plan_of(log, tmp_path):
    """Writes an experiment and plans it."""

    def plan(content: Any, base: Any = BASE) -> tuple[Plan, Calls]:
        (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
        file = tmp_path / "experiment.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        return make_plan(*read_experiment(file), log, f"experiment {file}")

    return plan


def test_every_arm_has_its_changes_over_the_baseline(plan_of):
    plan, calls = plan_of(WHOLE)
    arms = calls.arms
    assert list(arms) == ["baseline", "smelu", "student", "low", "half", "baseline@narrow", "low@narrow"]
    for arm in plan.arms:
        assert arm.seeds == [run.seed for run in arm.runs] == ([5] if arm.point else [3, 5])
        assert [run.folder for run in arm.runs] == [run.folder for run in arms[arm.name]]
        for run in arms[arm.name]:
            assert run.config.seed == run.seed
            assert run.config.batch.rows == 128
            assert run.config.model.prior == 0.1
            assert run.config.model.deep.units == ((8,) if arm.point else (16,))
            assert run.config.model.deep.activation == ("smelu" if arm.name == "smelu" else "relu")
    student = arms["student"][0].config.objective.distillation
    assert student is not None
    assert (student.teacher, student.weight) == (teacher_of(calls).sidecar, 0.25)
    low = arms["low@narrow"][0].config.sampling
    assert low is not None
    assert (low.name, low.score) == (calls.samplings["low"].sidecar, "kept")
    # Only the teachers and samplings that are needed.
    assert [*calls.samplings] == ["low", "half"] and teacher_of(calls).owner == "teacher-wide"
    teacher = teacher_of(calls).config
    assert (teacher.seed, teacher.model.deep.units, teacher.batch.rows) == (9, (32,), 128)
    assert calls.samplings["low"].config.uninformative.low_loss.teacher == teacher_of(calls).sidecar
    assert calls.samplings["low"].needs == [teacher_of(calls)] and calls.samplings["half"].needs == []
    samplings = {"hard": {"gradient": {"teacher": "wide", "threshold": 0.2}}}
    # YAML reads 2026-01-05 as a date, which is text in the plan.
    changes = {"set": {"time_range.start": date(2026, 1, 5)}, "sampling": "hard"}
    late = {"samplings": samplings, "arms": {"late": changes}, "sweep": None}
    plan, calls = plan_of({**WHOLE, **late, "scored": {"start": date(2026, 1, 5)}})
    assert calls.samplings["hard"].config.gradient.teacher == teacher_of(calls).sidecar
    assert calls.samplings["hard"].needs == [teacher_of(calls)]
    written = json.loads(json.dumps(plan.as_json()))["arms"][1]
    assert (written["name"], written["set"]) == ("late", {"time_range.start": "2026-01-05"})
    assert calls.arms["late"][0].config.time_range.start == datetime(2026, 1, 5, tzinfo=UTC)
    # Arms with other techniques have the same batches, and the experts of a run without a configuration.
    arms = {"late": {"set": {"label_delay": 60}}, "rows": {"set": {"batch.rows": 64}}}
    arms["network"] = {"set": {"model.experts": ["network"]}}
    _, calls = plan_of({"title": "Two", "arms": arms}, {"model": {"deep": {"units": [4]}}})
    batches = {name: one.config.batch for name, (one, *_) in calls.arms.items()}
    assert [(one.rows, one.growth, one.least) for one in (batches["baseline"], batches["late"])] == [
        (4096, 1 / 1024, 8)
    ] * 2
    assert (batches["rows"].rows, batches["rows"].growth) == (64, None)
    experts = {name: one.config.model.experts for name, (one, *_) in calls.arms.items()}
    every = ("linear", "network", "pairs")
    assert experts == {"baseline": every, "late": every, "rows": every, "network": ("network",)}
    # What no table of an experiment shows is not measured, unless that was asked for.
    assert not any(run.config.metrics.importance_rows for runs in calls.arms.values() for run in runs)
    base = {"metrics": {"importance_rows": 9}}
    _, calls = plan_of({"title": "Two", "base": "base.yaml", "arms": arms}, base)
    assert all(run.config.metrics.importance_rows == 9 for runs in calls.arms.values() for run in runs)
    # Retrains have the seed and the teacher of the run that they are compared with.
    retrain = {"rounding": {"retrain.kind": "rounding"}, "batch": {"batch.rows": 96}}
    plan, calls = plan_of({**WHOLE, "retrain": retrain})
    by_folder = {run.folder: run for run in calls.retrains}
    assert len(by_folder) == 5 * 2 * 2
    for arm in plan.arms:
        assert list(arm.retrains) == ([] if arm.point else ["rounding", "batch"])
        for kind, runs in arm.retrains.items():
            for planned, original in zip(runs, calls.arms[arm.name], strict=True):
                again = by_folder[planned.folder]
                assert planned.seed == again.seed == original.seed
                assert (again.owner, again.needs) == (f"{arm.name}~{kind}", original.needs)
                found, same = again.config.model_dump(), original.config.model_dump()
                if kind == "batch":
                    assert found["batch"].pop("rows") == 96 and same["batch"].pop("rows") == 128
                else:
                    assert found.pop("retrain")["kind"] == "rounding" and same.pop("retrain") is None
                assert found == same
    # The first seed of everything comes before the next one.
    assert [run.seed for run in calls.stages()[2]] == sorted(run.seed for run in calls.stages()[2])
    # A baseline may have a teacher and a sampling, which arms do not inherit.
    alone = {"baseline": {"teacher": "wide", "sampling": "low"}, "arms": {"plain": {}}, "sweep": None}
    _, calls = plan_of({**WHOLE, **alone})
    (taught, _), (plain, _) = calls.arms["baseline"], calls.arms["plain"]
    assert taught.needs == [teacher_of(calls), calls.samplings["low"]] and plain.needs == []
    assert plain.config.objective.distillation is None and plain.config.sampling is None
    # A baseline alone is an experiment.
    (arm,) = plan_of({"seeds": [1]})[0].arms
    assert arm.name == "baseline"


def test_the_report_reads_the_plan_that_was_written(plan_of, tmp_path):
    plan, _ = plan_of(WHOLE)
    written = plan.as_json()
    later = {**written, "of_a_later_version": 1, "arms": [{**arm, "later": 2} for arm in written["arms"]]}
    for content in (written, later):
        (tmp_path / "plan.json").write_text(json.dumps(content))
        assert json.dumps(read_plan(tmp_path).as_json()) == json.dumps(written)
    arms = {arm["name"]: arm for arm in written["arms"]}
    against = [arms[name]["against"] for name in ("baseline", "smelu", "low", "baseline@narrow")]
    assert against == [None, "baseline", "student", "baseline"]
    assert (arms["baseline"]["title"], arms["student"]["title"]) == ("DCNv2", "student")
    assert (arms["low@narrow"]["of"], arms["low@narrow"]["point"]) == ("low", "narrow")
    folders = [run["folder"] for arm in written["arms"] for run in arm["runs"]]
    assert len(set(folders)) == len(folders) == 12
    assert arms["smelu"]["runs"][0]["folder"].startswith("runs/smelu-seed-3-")


def test_only_what_changed_gets_other_folders(plan_of, monkeypatch):
    before, calls = plan_of(WHOLE)
    arms = {**WHOLE["arms"], "smelu": {"set": {"model.deep.activation": "smelu", "model.deep.smelu_beta": 2}}}
    after, _ = plan_of({**WHOLE, "arms": arms})
    pairs = zip(before.arms, after.arms, strict=True)
    assert [old.name for old, new in pairs if old.runs != new.runs] == ["smelu"]
    # A new teacher gives its students others.
    _, other = plan_of({**WHOLE, "teachers": {"wide": {"set": {"model.deep.units": [64]}}}})
    assert teacher_of(calls).sidecar != teacher_of(other).sidecar
    assert calls.samplings["low"].sidecar != other.samplings["low"].sidecar
    assert calls.samplings["half"].sidecar == other.samplings["half"].sidecar
    assert calls.arms["student"][0].folder != other.arms["student"][0].folder
    # Two names of one teacher are one call.
    twins = {**WHOLE["teachers"], "twin": WHOLE["teachers"]["wide"]}
    arms = {**WHOLE["arms"], "other": {"teacher": "twin"}}
    _, same = plan_of({**WHOLE, "teachers": twins, "arms": arms})
    assert [call.label for call in same.stages()[0]] == ["teacher-wide seed 9"]
    # A log that has grown: what a teacher recorded is of the log.
    monkeypatch.setattr("ctr.experiments.planning.log_sha256", lambda manifests: "another")
    _, grown = plan_of(WHOLE)
    assert teacher_of(calls).sidecar != teacher_of(grown).sidecar
    assert calls.arms["student"][0].folder != grown.arms["student"][0].folder
    assert calls.arms["smelu"][0].folder == grown.arms["smelu"][0].folder


SWEEP = {"points": {"p": {}}, "arms": ["baseline"]}
UNCHANGED = {"plain": {}, "dcn": {"set": {"optimizer.embeddings.rule": "adagrad"}}}
REFUSED = [
    ({"arms": {"dcn": {"set": {"model.deep.width": 3}}}}, "arms.dcn.set.model.deep.width: unknown key; allo"),
    ({"arms": {"dcn": {"set": {"metrics.slices": ["x"]}}}}, "arms.dcn.set: metrics.slices names x, which is"),
    ({"arms": {"dcn": {"set": {"seed": 2}}}}, "{'seed': 2} is not allowed: seed is not allowed"),
    ({"arms": UNCHANGED}, "arms.dcn.set: optimizer.embeddings.rule changes nothing: the arm dcn would be"),
    ({"arms": {"a@b": {}}}, "arms.a@b: 'a@b' is not allowed: String should match pattern"),
    ({"arms": {"baseline": {}}}, "arms.baseline: this name is reserved for the arm that the others"),
    ({"arms": {"dcn": {"teacher": "nobody"}}}, "arms.dcn.teacher: there is no nobody; allowed: none is defi"),
    ({"sweep": {**SWEEP, "seeds": [7]}}, "sweep.seeds: 7 is not allowed"),
    ({"sweep": {**SWEEP, "points": {"p": {"model.deep.units": [0]}}}}, "baseline@p: sweep.points.p.model.de"),
    ({"seeds": [1, 1]}, "seeds: [1, 1] is not allowed: 1 appears twice"),
    ({"base": "base.yaml"}, "base.yaml: batch.row: unknown key"),
    ({"scored": {"start": "2036-01-05"}}, "baseline: scored: no partition of the log overlaps it"),
    (
        {"scored": {"start": "2026-01-05"}, "config": {"record_predictions": False}},
        "baseline: record_predictions: ",
    ),
    (["arms"], "a mapping of keys to values is expected, received list"),
]


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_refused_in_one_line_that_names_the_key(plan_of, tmp_path, changes, line):
    with pytest.raises(InputError) as refused:
        plan_of(changes, {"batch": {"row": 3}})
    text = str(refused.value)
    assert text.startswith(f"experiment {tmp_path / 'experiment.yaml'}: ")
    assert line in text
    assert "\n" not in text


def test_slices_are_described_in_words(plan_of):
    features = {"position": ["6", "7"], "device": ["phone", None]}
    families = [
        {"name": "low", "features": features, "estimated_ctr": [0.1]},
        {"name": "all"},
        {"name": "devices", "features": {"age_group": "all"}},
        {"name": "users", "features": {"user_id": "all"}},
    ]
    arms = {"bound": {"set": {"objective.bias_constraints.families": families}}}
    base = {"config": WHOLE["config"], "base": "base.yaml", "arms": arms}
    slices = {"S1": {"title": "good ads low on the page", "family": "low", "index": 1}}
    plan = plan_of({**base, "slices": slices})[0].model_dump()
    assert plan["slices"] == slices
    assert plan["arms"][0]["families"] == []
    found = {family["name"]: family["slices"] for family in plan["arms"][1]["families"]}
    # A family of more slices than are measured is left out.
    assert list(found) == ["low", "all", "devices"]
    assert found["all"] == ["all examples"] and found["devices"][1] == "age_group id 1"
    assert len(found["low"]) == 8 and found["low"][5] == "device missing, position 6, estimated CTR >= 0.1"
    for family, index, wanted in (
        ("low", 8, r"slices\.S1\.index: 8 is not allowed; the family low has the slices 0 to 7"),
        ("users", 0, r"slices\.S1\.family: there is no users of at most 1000 slices; allowed: low, all, dev"),
    ):
        with pytest.raises(InputError, match=wanted):
            plan_of({**base, "slices": {"S1": {"family": family, "index": index}}})
