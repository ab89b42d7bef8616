"""A run that serves and learns from what it served: what is logged is what it predicted, whenever it is killed."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import ctr.data.log
import ctr.simulator.simulate
from ctr.cli import main
from ctr.config import parse_model
from ctr.data.log import create_log, list_partitions, read_manifests
from ctr.data.sidecar import read_sidecar_partition
from ctr.io.errors import InputError
from ctr.simulator import closed_loop
from ctr.simulator.closed_loop import run_closed_loop
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.features import SCHEMA
from ctr.simulator.simulate import AUCTION, TRUTH, simulate
from ctr.training.config import TrainConfig
from ctr.training.loop import TIMING, train
from ctr.training.run import checkpoint
from ctr.training.run.run import Run
from log_files import digests, rows_of
from numerical_faults import fill, injected

pytestmark = pytest.mark.slow

WORLD: dict[str, Any] = {
    "days": 3,
    "queries_per_day": 200,
    "users": 300,
    "ads": 100,
    "advertisers": 20,
    "words": 100,
    "topics": 5,
    "randomized_share": 0.1,
}
FIRST = 3
MODEL: dict[str, Any] = {
    "batch": {"rows": 256},
    "compute_dtype": "float32",
    "model": {
        "prior": 0.08,
        "crosses": {"layers": 0},
        "deep": {"units": [4]},
        "widths": {feature.name: 2 for feature in SCHEMA.features},
    },
    # Once in the middle of a day, too.
    "checkpoint": {"every_examples": 400},
    "metrics": {"window_examples": 500},
}


def world(**changes: Any) -> SimulatorConfig:
    return parse_model(SimulatorConfig, {**WORLD, **changes}, "test")


def constrained(log: Path) -> dict[str, Any]:
    constraints = {
        "families": [{"name": "random", "log": "random"}],
        "logs": [{"name": "random", "path": str(log), "own_loss": True}],
    }
    return {**MODEL, "objective": {"bias_constraints": constraints}}


def learn(log: Path, run: Path, config: dict[str, Any]) -> Path:
    train(log, parse_model(TrainConfig, config, "test"), run)
    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a simulated log, one of its randomized traffic, and a run."""
    folder = tmp_path_factory.mktemp("loop")
    simulate(world(), folder / "log", randomized=folder / "random")
    learn(folder / "log", folder / "run", constrained(folder / "random"))
    return folder


@pytest.fixture(scope="module")
def loop(place):
    """A loop of two days, never interrupted."""
    before = digests(place)
    served: list[int] = []
    run_closed_loop(place / "run", place / "log", 2, place / "loop", served.append)
    assert served == [1, 2]
    after = digests(place)
    assert {name: after[name] for name in before} == before
    assert {Path(name).parts[0] for name in after.keys() - before.keys()} == {"loop"}
    return place / "loop"


def outcome(loop: Path) -> dict[str, Any]:
    """All that a loop computed. The configuration of its run names its own constraint log."""
    run = loop / "run"
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    arrays = {path.parent.name: path.read_bytes() for path in run.glob("checkpoints/*/arrays.npz")}
    with np.load(run / "metric_states.npz") as states:
        metric_states = {name: states[name].tobytes() for name in states}
    return {
        "log": digests(loop / "log"),
        "constraints": digests(loop / "constraints"),
        "shown": (loop / "shown.parquet").read_bytes(),
        "reported": json.loads((loop / "loop.json").read_text()),
        "origin": json.loads((loop / "origin.json").read_text()),
        "files": sorted(path.name for path in loop.iterdir()),
        "predictions": digests(run / "predictions"),
        "summary": {name: value for name, value in summary.items() if name not in (*TIMING, "config_sha256")},
        "metrics": [{name: value for name, value in line.items() if name not in TIMING} for line in lines],
        "metric states": metric_states,
        "arrays": arrays,
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in expected:
        assert found[name] == expected[name], name


def test_each_day_is_served_by_the_weights_from_before_it(loop):
    """The first batch of a day is scored before anything of the day is learned from: that is what was served."""
    parts = [pq.read_table(path) for path in sorted((loop / "run" / "predictions").iterdir())]
    predictions = pa.concat_tables(parts)
    logit = dict(zip(*predictions.select(["example_id", "logit"]).to_pydict().values(), strict=True))
    for manifest in read_manifests(loop / "log")[FIRST:]:
        auction = read_sidecar_partition(loop / "log", AUCTION, manifest)
        own = np.array([logit[example] for example in auction.column("example_id").to_pylist()])
        served = auction.column("predicted").to_numpy()
        batch = rows_of(loop / "log", manifest).column("query_id").to_numpy()
        # Whole queries, up to 256 rows.
        ends = np.flatnonzero(np.diff(batch)) + 1
        first = slice(0, ends[ends <= 256][-1])
        np.testing.assert_allclose(served[first], 1 / (1 + np.exp(-own[first])), rtol=1e-5)
        # Of what came later the weights had learned more by then.
        later = slice(first.stop, None)
        assert np.abs(served[later] * (1 + np.exp(-own[later])) - 1).max() > 1e-3
        # The crude policy and the days before had nothing to do with it.
        assert len(np.unique(served)) > 100


def test_what_was_served_is_logged_and_learned(place, loop):
    manifests = read_manifests(loop / "log")
    assert manifests[:FIRST] == read_manifests(place / "log")
    assert len(manifests) == FIRST + 2
    summary = json.loads((loop / "run" / "summary.json").read_text())
    assert summary["log_rows"] == summary["trained_examples"] == sum(manifest.rows for manifest in manifests)
    drawn = read_manifests(loop / "constraints" / "random")
    assert drawn[:FIRST] == read_manifests(place / "random")
    assert summary["constraint_logs"]["random"]["examples"] > sum(manifest.rows for manifest in drawn[:FIRST])
    for whole, some in zip(manifests, drawn, strict=True):
        flags = read_sidecar_partition(loop / "log", AUCTION, whole).column("randomized").combine_chunks()
        assert 0 < some.rows < whole.rows
        copied = rows_of(loop / "constraints" / "random", some)
        assert rows_of(loop / "log", whole).filter(flags).equals(copied)
        for name in (TRUTH, AUCTION):
            own = read_sidecar_partition(loop / "constraints" / "random", name, some)
            assert own.equals(read_sidecar_partition(loop / "log", name, whole).filter(flags))


def test_what_each_query_showed(loop):
    reported = json.loads((loop / "loop.json").read_text())
    assert reported["first_day"] == FIRST
    table = pq.read_table(loop / "shown.parquet").to_pydict()
    manifests = read_manifests(loop / "log")[FIRST:]
    assert [day["day"] for day in reported["days"]] == [FIRST, FIRST + 1] == sorted(set(table["day"]))
    ads: dict[int, int] = {}
    for manifest, day in zip(manifests, reported["days"], strict=True):
        rows, auction = (
            rows_of(loop / "log", manifest).to_pydict(),
            read_sidecar_partition(loop / "log", AUCTION, manifest).to_pydict(),
        )
        for query in rows["query_id"]:
            ads[query] = ads.get(query, 0) + 1
        prices = [price for price, label in zip(auction["price"], rows["label"], strict=True) if label]
        assert day["revenue"] == pytest.approx(sum(prices), abs=0.01)
        assert day["clicks"] == sum(rows["label"]) > 0
        assert day["examples"] == len(rows["label"])
        assert day["answered"] == len(set(rows["query_id"])) <= day["queries"] == 200
        assert day["ads_per_query"] == pytest.approx(len(rows["label"]) / 200)
        drawn = {query for query, flag in zip(rows["query_id"], auction["randomized"], strict=True) if flag}
        flagged = [query for query, flag in zip(table["query_id"], table["randomized"], strict=True) if flag]
        assert drawn <= set(flagged)
    assert len(set(table["query_id"])) == len(table["query_id"]) == 400
    assert table["ads"] == [ads.get(query, 0) for query in table["query_id"]]


def test_the_same_call_again_changes_nothing(place, loop):
    before, reported = outcome(loop), json.loads((loop / "loop.json").read_text())
    for days in (2, 1):
        assert run_closed_loop(place / "run", place / "log", days, loop) == reported
        assert_same(outcome(loop), before)


class KilledError(Exception):
    """Stands for a signal that nothing survives."""


def kill_after(
    patch: pytest.MonkeyPatch, killed: set[str], where: Any, name: str, key: Callable[..., str]
) -> None:
    """Lets each call of ``where.name`` be the last one of its process; one that was so before is not again."""
    original = getattr(where, name)

    def last(*arguments: Any, **more: Any) -> Any:
        result = original(*arguments, **more)
        if key(*arguments) not in killed:
            killed.add(key(*arguments))
            raise KilledError
        return result

    patch.setattr(where, name, last)


@pytest.mark.soak
def test_a_loop_that_is_killed_wherever_it_can_be_ends_the_same(place, loop):
    out, killed = place / "killed", set[str]()
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, killed, ctr.data.log, "create_exclusively", lambda path, content: str(path))
        kill_after(
            patch, killed, checkpoint, "save", lambda folder, examples, *rest: f"checkpoint {examples}"
        )
        kill_after(patch, killed, Run, "record", lambda run, feed, *rest: f"batch {feed.batch.begin}")
        kill_after(patch, killed, closed_loop, "_copy_log", lambda log, copy: f"copy {copy.name}")
        kill_after(patch, killed, closed_loop, "write_json", lambda path, content: path.name)
        kill_after(patch, killed, closed_loop, "write_atomic", lambda path, write: path.name)
        deaths = 0
        while True:
            try:
                run_closed_loop(place / "run", place / "log", 1, out)
                break
            except KilledError:
                deaths += 1
                # A process may die of two of them: a checkpoint is written beside the batches.
                assert deaths <= len(killed) < 40
    names = [Path(what).name.split(" ")[0] for what in killed]
    # A manifest and two sidecars in each of two logs, and what a run and a loop write by themselves.
    assert sum(name.endswith(".json") and name[0].isdigit() for name in names) == 6
    assert names.count("batch") > 1 < names.count("checkpoint")
    assert names.count("copy") == 2
    assert {"origin.json", "loop.json", "shown.parquet"} <= set(names)
    run_closed_loop(place / "run", place / "log", 2, out)
    assert_same(outcome(out), outcome(loop))


@pytest.mark.soak
def test_days_on_which_nothing_is_shown(tmp_path):
    """A model that expects no click finds nothing worth the reserve; of such days there is nothing to learn."""
    simulate(world(days=1, randomized_share=0), tmp_path / "log")
    model = {**MODEL["model"], "prior": 1e-9}
    rates = {"learning_rate": 1e-9, "linear_learning_rate": 1e-9}
    config = {**MODEL, "model": model, "optimizer": {"embeddings": rates, "dense": {"learning_rate": 1e-9}}}
    learn(tmp_path / "log", tmp_path / "run", config)
    for days in (1, 3):
        reported = run_closed_loop(tmp_path / "run", tmp_path / "log", days, tmp_path / "loop")
        assert [day["day"] for day in reported["days"]] == list(range(1, 1 + days))
        assert {day["examples"] for day in reported["days"]} == {0}
    shown = pq.read_table(tmp_path / "loop" / "shown.parquet").to_pandas()
    assert len(shown) == 600
    assert not shown["ads"].any()


@pytest.mark.soak
def test_randomized_queries_that_the_log_does_not_have_are_not_told(tmp_path):
    """They show ads, of which the log knows nothing: they are not queries without ads."""
    simulate(world(days=1, randomized_share=0.5, randomized_in_log=False), tmp_path / "log")
    learn(tmp_path / "log", tmp_path / "run", MODEL)
    (day,) = run_closed_loop(tmp_path / "run", tmp_path / "log", 1, tmp_path / "loop")["days"]
    shown = pq.read_table(tmp_path / "loop" / "shown.parquet").to_pandas()
    assert day["queries"] == len(shown) < 150
    assert not shown["randomized"].any()
    assert shown["ads"].sum() == day["examples"] == pytest.approx(day["ads_per_query"] * len(shown))


def edited(run: Path, **changes: Any) -> None:
    """Changes keys of a run's configuration, given with ``__`` for the dots in their names."""
    content = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        place = content
        for name in path:
            place = place[name]
        place[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(content))


def constrained_to(path: str) -> dict[str, Any]:
    logs = [{"name": "random", "path": path, "own_loss": True}]
    return {"objective__bias_constraints__logs": logs}


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Path("run/summary.json").unlink(), "run: no summary.json: a finished run of ctr train"),
    (lambda: Path("run/config.yaml").unlink(), "run: no config.yaml: a finished run of ctr train"),
    (lambda: Path("log/world.yaml").unlink(), "log: no world.yaml: not a simulated log"),
    (lambda: simulate(world(days=4), Path("log")), "log: is not the log that the run was trained on"),
    (lambda: Path("out/mine").mkdir(parents=True), "out is neither empty nor a loop"),
    (lambda: Path("out").write_text(""), "out is neither empty nor a loop"),
    (lambda: create_log(Path("out/log"), SCHEMA), "out is neither empty nor a loop"),
    (lambda: edited(Path("run"), sampling={"name": "half"}), "config: sampling: the sample has no decisions"),
    (lambda: edited(Path("run"), time_range={"end": "2026-01-08T12:00"}), "config: time_range.end: 2026-01-"),
    (lambda: edited(Path("run"), model__query_size=True), "config: model.query_size: true"),
    (
        lambda: edited(Path("run"), objective__distillation={"teacher": "teacher"}),
        "config: objective.distillation.missing: refuse",
    ),
    (lambda: edited(Path("run"), **constrained_to("log")), "random, log: not of randomized traffic only"),
    (lambda: simulate(world(days=4), Path("x"), None, Path("random")), "random: its days are not those"),
    (
        lambda: [
            simulate(world(seed=1), Path("x"), None, Path("y")),
            edited(Path("run"), **constrained_to("y")),
        ],
        "random, y: its world is not that of log",
    ),
]


def test_what_cannot_go_round_is_refused_before_anything_is_written(place, tmp_path, monkeypatch):
    for number, (change, message) in enumerate(REFUSED):
        folder = tmp_path / str(number)
        for name in ("log", "random", "run"):
            shutil.copytree(place / name, folder / name)
        monkeypatch.chdir(folder)
        edited(Path("run"), **constrained_to("random"))
        change()
        before = digests(folder)
        with pytest.raises(InputError) as refusal:
            run_closed_loop(Path("run"), Path("log"), 1, Path("out"))
        assert message in str(refusal.value)
        assert digests(folder) == before
    with pytest.raises(InputError, match="days: 0 is not allowed; allowed: at least 1"):
        run_closed_loop(place / "run", place / "log", 0, place / "none")


@pytest.mark.soak
def test_a_loop_of_another_run_is_refused(place, loop, tmp_path):
    simulate(world(days=2), tmp_path / "log")
    learn(tmp_path / "log", tmp_path / "run", MODEL)
    intervals = list_partitions(loop / "log")
    with pytest.raises(InputError, match=r"another run or log \(first_day was 3, is 2; and 2 more\)"):
        run_closed_loop(tmp_path / "run", tmp_path / "log", 9, loop)
    assert list_partitions(loop / "log") == intervals


def test_the_command_serves_and_compares(place, loop, tmp_path, capfd):
    serve = ["simulate", "--policy", str(place / "run"), "--log", str(place / "log"), "--days", "2"]
    assert main([*serve, "--out", str(loop), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == json.loads((loop / "loop.json").read_text())
    assert main([*serve, "--out", str(loop)]) == 0
    assert [line.split("  ")[0] for line in capfd.readouterr().out.splitlines()] == ["day: 3", "day: 4"]
    assert main(["compare", str(loop), str(loop), "--json"]) == 0
    reported = json.loads(capfd.readouterr().out)
    shown = pq.read_table(loop / "shown.parquet").to_pandas().query("not randomized")
    assert reported["queries"] == len(shown) and reported["query_churn"]["value"] == 0
    assert [*reported["ads_per_query"].values()] == pytest.approx([shown["ads"].mean()] * 2)
    assert main(["compare", str(loop), str(place / "run")]) == 1
    assert "run/shown.parquet: no such file" in capfd.readouterr().err


def test_the_command_refuses(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    policy = ("--policy", "run", "--log", "log")
    for arguments, message in (
        (("--log", "log", "--days", "2"), "--policy RUN, --log LOG and --days N go together"),
        ((*policy, "--examples", "2"), "--policy RUN, --log LOG and --days N go together"),
        ((*policy, "--days", "2", "--randomized", "x"), "--randomized does not go with --policy"),
        ((*policy, "--days", "2"), "run: no summary.json"),
        ((*policy, "--days", "-2"), "days: -2 is not allowed"),
    ):
        assert main(["simulate", *arguments, "--out", "out"]) == 1
        assert capfd.readouterr().err.startswith(f"error: {message}")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- weights that break while a day is learned

# A checkpoint is where a day ends.
BREAKING = {**MODEL, "checkpoint": {"every_examples": 10**6}, "rollback": {"after_skipped_steps": 2}}


def aside(loop: Path) -> list[dict[str, Any]]:
    return json.loads((loop / "run" / "summary.json").read_text())["quarantined"]


def begins(loop: Path) -> np.ndarray:
    return np.cumsum([0, *(manifest.rows for manifest in read_manifests(loop / "log"))])


@pytest.fixture(scope="module")
def sound(place, tmp_path_factory):
    """A run, a loop of one day of it, and the last row of that day."""
    folder = tmp_path_factory.mktemp("sound")
    run = learn(place / "log", folder / "run", BREAKING)
    run_closed_loop(run, place / "log", 1, folder / "loop")
    return run, folder / "loop", begins(folder / "loop")[-1] - 1


def test_a_day_is_learned_before_the_next_one_is_served(place, sound, tmp_path, monkeypatch):
    run, alone, row = sound
    known, original = [], closed_loop.model_policy

    def served(session, ids):
        session.refresh()
        known.append((session.run.position.examples, session.inputs.log.rows))
        return original(session, ids)

    monkeypatch.setattr(closed_loop, "model_policy", served)
    with injected(poison={row: fill("dense/000", math.nan)}):
        run_closed_loop(run, place / "log", 2, tmp_path / "loop")
    assert len(known) == 2 and known[1][0] == row + 1
    assert all(passed == published for passed, published in known)
    (entry,) = aside(tmp_path / "loop")
    assert entry["checkpoint"] == begins(tmp_path / "loop")[FIRST]
    assert entry["rows"][0] <= row < entry["rows"][1]
    # The first day was served before anything broke.
    assert read_manifests(tmp_path / "loop" / "log")[: FIRST + 1] == read_manifests(alone / "log")


@pytest.mark.soak
def test_a_loop_that_is_killed_after_it_went_back_by_days_that_it_has_served_goes_on(place, sound, tmp_path):
    """Steps are skipped from the end of a day into the next one: no checkpoint between the two is one to go back to."""
    run, _, row = sound
    whole, out = tmp_path / "whole", tmp_path / "killed"
    with injected(dict.fromkeys(range(row, row + 200), math.inf)), pytest.MonkeyPatch.context() as patch:
        run_closed_loop(run, place / "log", 3, whole)
        kill_after(patch, set(), Run, "roll_back", lambda *_: "")
        with pytest.raises(KilledError):
            run_closed_loop(run, place / "log", 3, out)
        run_closed_loop(run, place / "log", 3, out)
    assert aside(whole)[0]["checkpoint"] == begins(whole)[FIRST]
    assert aside(whole)[0]["rows"][1] > begins(whole)[FIRST + 1]
    for name in ("log", "run/predictions"):
        assert digests(out / name) == digests(whole / name)
    assert (out / "shown.parquet").read_bytes() == (whole / "shown.parquet").read_bytes()
    assert aside(out) == aside(whole)
