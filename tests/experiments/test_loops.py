"""Loops of an experiment: when they run, begin anew, fail alone, and what is kept; with a stand-in for the commands."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctr.data.log import log_sha256, read_manifests
from ctr.eval.ads_churn import compare_loops
from ctr.experiments.run import Options, run_experiment
from ctr.io.errors import InputError
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from stand_in_runs import EXPERIMENT, read, run


def looped(days: int, **changes: Any) -> dict[str, Any]:
    content = {key: EXPERIMENT[key] for key in ("title", "config", "seeds")}
    arms = {"smelu": EXPERIMENT["arms"]["smelu"]}
    return {**content, "arms": arms, "loop": {"days": days}, **changes}


def calls(stand_in: Path) -> list[str]:
    lines = stand_in.read_text().splitlines()
    stand_in.write_text("")
    return lines


def loops(days: int) -> set[str]:
    return {f"{days} days of {arm}-seed-{seed}" for arm in ("baseline", "smelu") for seed in (1, 2)}


def test_each_run_serves_once_and_then_its_checkpoints_go(stand_in):
    lines: list[str] = []
    assert run(looped(3), lines, timing=False) == {}
    found = calls(stand_in)
    # The last call counts the costs.
    assert set(found[4:8]) == loops(3) and len(found) == 9
    assert lines[7].startswith("[8/8, ") and " loop: 1.500 ads per query, " in lines[7]
    plan = read("plan.json")
    assert plan["loop_days"] == 3
    for arm in plan["arms"]:
        for one in arm["runs"]:
            assert one["loop"] == one["folder"].replace("runs/", "loops/")
            assert (Path("out") / one["loop"] / "loop.json").is_file()
            for folder in (one["folder"], f"{one['loop']}/run"):
                assert (Path("out") / folder / "summary.json").is_file()
                assert not (Path("out") / folder / "checkpoints").exists()
    assert run(looped(3), timing=False) == {}
    assert calls(stand_in) == []


def test_a_loop_that_fails_is_reported_alone_and_goes_on_from_where_it_was(stand_in, place):
    failures = run(looped(5), timing=False)
    assert failures["smelu seed 2 loop"] == "it was tired" and len(failures) == 4
    assert (place / "out/failures/smelu-seed-2-loop.txt").read_text() == "error: it was tired\n\n"
    assert len(list((place / "out/runs").glob("*/checkpoints/7/state.json"))) == 4
    calls(stand_in)
    (place / "healed").touch()
    mark = next((place / "out/loops").iterdir()) / "mark"
    mark.touch()
    assert run(looped(5), timing=False) == {}
    assert set(calls(stand_in)) == loops(5)
    assert mark.exists()
    assert not list((place / "out/failures").iterdir())
    assert not list((place / "out").glob("*/*/checkpoints"))


@pytest.mark.slow
def test_other_days_or_another_log_begin_anew(stand_in, place):
    run({key: value for key, value in looped(3).items() if key != "loop"}, timing=False)
    calls(stand_in)
    for days in (3, 2):
        assert run(looped(days), timing=False) == {}
        found = calls(stand_in)
        assert sorted(found[:4]) == ["baseline-seed-1", "baseline-seed-2", "smelu-seed-1", "smelu-seed-2"]
        assert set(found[4:]) == loops(days)
    simulate(SimulatorConfig(examples=300, seed=4), place / "other")
    shutil.rmtree(place / "log")
    shutil.move(place / "other", place / "log")
    (place / "sha").write_text(log_sha256(read_manifests(place / "log")))
    assert run(looped(2), timing=False) == {}
    assert set(calls(stand_in)[4:8]) == loops(2)
    # An interrupted loop that began after the other log is not gone on with, either.
    for origin in (place / "out/loops").glob("*/origin.json"):
        origin.write_text('{"log_sha256": "of another"}')
    assert run(looped(2), timing=False) == {}
    assert set(calls(stand_in)[4:8]) == loops(2)


def test_the_loop_of_a_failed_run_is_not_begun(stand_in):
    arms = {"bad": {"set": {"model.prior": 0.666}}}
    failures = run(looped(3, arms=arms, loop={"days": 3, "arms": ["bad"]}, seeds=[1]), timing=False)
    assert failures == {"bad seed 1": "it broke", "bad seed 1 loop": "not run, because bad seed 1 failed"}
    assert sorted(calls(stand_in)[:2]) == ["bad-seed-1", "baseline-seed-1"]
    (baseline,) = Path("out/runs").glob("baseline-*")
    assert not (baseline / "checkpoints").exists()


def test_a_loop_goes_on_with_the_threads_of_its_run(stand_in):
    cores = len(os.sched_getaffinity(0))
    run(looped(5, seeds=[1]), timing=False, workers=1)
    threads = [path.read_text() for path in Path("out/loops").glob("*/threads")]
    assert threads == [str(cores)] * 2


@pytest.mark.parametrize(
    ("changes", "log", "wanted"),
    [
        ({}, "plain", r"loop: baseline: .*no world\.json|loop: baseline: .*not a simulated log"),
        (
            {"samplings": {"half": {"non_click_rate": 0.5}}, "arms": {"half": {"sampling": "half"}}},
            "log",
            r"loop: half: sampling: the sample has no decisions for the days that the loop adds",
        ),
        ({"loop": {"days": 0}}, "log", r"loop\.days: 0 is not allowed"),
        ({"loop": {"days": 1, "arms": ["none"]}}, "log", r"loop\.arms: there is no none; allowed: baseline, smelu"),
        (
            {"slices": {"S1": {"family": "low", "index": 0}}},
            "log",
            r"slices\.S1\.family: there is no low .*none is measured",
        ),
    ],
)  # fmt: skip
def test_what_cannot_serve_is_refused_before_the_first_run(stand_in, place, changes, log, wanted):
    shutil.copytree(place / "log", place / "plain")
    for name in ("world.yaml", "world.json"):
        (place / "plain" / name).unlink(missing_ok=True)
    file = place / "experiment.yaml"
    file.write_text(yaml.safe_dump(looped(3, **changes)))
    with pytest.raises(InputError, match=wanted) as refused:
        run_experiment(file, Path(log), Path("out"), Options("ctr replay ...", timing=False))
    assert "\n" not in str(refused.value)
    assert calls(stand_in) == []


@pytest.mark.soak
def test_real_loops(place):
    # With embeddings that begin large, so that two seeds show other ads.
    config = {**EXPERIMENT["config"], "model": {**EXPERIMENT["config"]["model"], "init_scale": 0.5}}
    content = looped(1, arms={}, loop={"days": 1}, config=config)
    small = {"users": 300, "ads": 100, "advertisers": 20, "words": 100, "topics": 5}
    simulate(SimulatorConfig(days=2, queries_per_day=200, **small), place / "small")
    (place / "experiment.yaml").write_text(yaml.safe_dump(content))
    options = Options("ctr replay ...", timing=False)
    arguments = (place / "experiment.yaml", Path("small"), Path("out"), options)
    assert run_experiment(*arguments) == {}
    one, other = (place / "out" / made["loop"] for made in read("plan.json")["arms"][0]["runs"])
    compared = compare_loops(one, other)
    assert compared.whole.estimates()["query_churn"].point > 0
    # Days that are added begin with the runs, which are trained to the same bits.
    first = {path.parent.parent.name: path.read_bytes() for path in Path("out/loops").glob("*/shown.parquet")}
    served = [json.loads((folder / "loop.json").read_text())["days"] for folder in (one, other)]
    (place / "experiment.yaml").write_text(yaml.safe_dump({**content, "loop": {"days": 2}}))
    assert run_experiment(*arguments) == {} and first
    for folder, days in zip((one, other), served, strict=True):
        assert json.loads((folder / "loop.json").read_text())["days"][:1] == days
