"""A run that begins from another one goes on bit by bit as that one would have, wherever it is killed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import growing_logs
import small_runs
from ctr.cli import main
from ctr.config import dump_yaml
from ctr.training.follow import Polling, follow
from ctr.training.run.directory import read_warm_start
from ctr.training.session import train
from ctr.training.warm_start.start import InitFrom, warm_start
from growing_logs import read_predictions
from killed_run import run_killed
from small_runs import draw_examples, labeled
from warm_starts import (
    END,
    HALF,
    HARMLESS,
    HOUR,
    ITEM,
    POSITION,
    SCHEMA,
    TAGS,
    TAKEN,
    USER,
    assert_same,
    begun,
    changed,
    config_of,
    publish,
    rows_before,
    table_of,
    table_with,
    weights,
)

KILLED = -9


@pytest.fixture(scope="module")
def uninterrupted(whole, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(whole, config_of(), run)
    return run


@pytest.fixture(scope="module")
def launched(old, whole, tmp_path_factory) -> Path:
    """A run over the second half that began from ``old``."""
    run = tmp_path_factory.mktemp("launched") / "run"
    summary = train(
        whole, config_of(HARMLESS), run, init_from=InitFrom(old, (run.parent / "told").write_text)
    )
    assert summary["init_from"] == read_warm_start(run)
    return run


@pytest.mark.slow
def test_a_run_that_begins_from_another_one_goes_on_bit_by_bit(old, uninterrupted, launched):
    assert_same(launched, uninterrupted)
    begin = rows_before(HALF)
    # Everything else begins at the warm start.
    expected = read_predictions(uninterrupted)[begin:].reset_index(drop=True)
    pd.testing.assert_frame_equal(read_predictions(launched), expected)
    summary = json.loads((launched / "summary.json").read_text())
    assert summary["examples"] == summary["trained_examples"] == len(expected)
    lines = [json.loads(line) for line in (launched / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["window_examples"] for line in lines) == len(expected)
    assert lines[0]["window_begin"] >= HALF
    # The table says so, in the file and as text.
    content = json.loads((launched / "init_from.json").read_text())
    assert (content["run"], content["begins_at"]["log"]) == (str(old.resolve()), begin)
    assert set(table_of(launched, "feature").values()) == {TAKEN}
    assert set(table_of(launched, "weight").values()) == {TAKEN}
    assert set(table_of(launched, "optimizer").values()) == {TAKEN}
    assert table_of(launched, "ramp")["alpha2"][0] == "taken"
    trained = json.loads((old / "summary.json").read_text())["trained_examples"]
    continued = ("taken", f"continues at {trained} examples")
    assert table_of(launched, "schedule")["rate_embeddings"] == continued
    message = (launched.parent / "told").read_text()
    assert f"begins at row {begin} of the log" in message
    assert "features           taken        user, item, tags, position" in message


@pytest.mark.slow
def test_the_command_line(old, whole, tmp_path, capsys):
    plain = config_of({"model": {"crosses": {"layers": 0}}})
    (tmp_path / "config.yaml").write_text(dump_yaml(plain))
    command = ["train", str(whole), "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]
    assert main([*command, "--init-from", str(tmp_path / "none"), "--json"]) == 1
    assert capsys.readouterr().err.startswith(f"error: --init-from {tmp_path / 'none'}: not a run directory")
    assert main([*command, "--init-from", str(old), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["init_from"] == read_warm_start(tmp_path / "run")
    assert "features           taken        user, item, tags, position\n" in captured.err
    assert "dense weights      left behind  quality/cross_0/u, " in captured.err
    why = "(it knows all weights, and some were not taken)"
    assert f"optimizer state    fresh        dense  {why}" in captured.err


# Where, and whether the run is begun then.
MOMENTS = [
    (("rename.after", 1, "/run"), True),
    (("mkdir.after", 1, ".run.launching"), False),
    (("write.half", 1, "arrays.npz"), False),
    (("rename.after", 1, ".run.launching/checkpoints/"), False),
    (("fsync.before", 1, "init_from.json"), False),
    (("rename.before", 1, "/run"), False),
    (("learn.after", 2, ""), True),
    (("rename.before", 1, "/run/checkpoints/"), True),
]


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(("moment", "is_begun"), MOMENTS)
def test_killed_at_any_moment_it_is_begun_or_not(old, whole, launched, tmp_path, moment, is_begun):
    source, run, config = tmp_path / "source", tmp_path / "run", config_of(HARMLESS)
    source.symlink_to(old)
    assert run_killed(whole, config, run, kill_at=moment, source=source) == KILLED
    assert run.exists() == is_begun
    if is_begun:
        # It needs the old run no more.
        source.unlink()
        assert (run / "init_from.json").is_file() and list((run / "checkpoints").iterdir())
        train(whole, config, run)
    else:
        train(whole, config, run, init_from=InitFrom(source))
    growing_logs.assert_same(run, launched, "arrays")
    assert read_warm_start(run) == read_warm_start(launched)
    assert [path.name for path in tmp_path.iterdir() if path != source] == ["run"]


# Each state that a run may have, once: a run of two halves is a run over the whole.


def families(*given: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"objective": {"bias_constraints": {"learning_rate": 0.3, "families": list(given), **others}}}


def halves(half: Path, whole: Path, folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Compares the run of two halves, ``run``, which begins from ``old``; returns where it begins."""
    train(half, config_of(changes), folder / "old")
    train(whole, config_of(changes), folder / "uninterrupted")
    train(whole, config_of(changes, HARMLESS), folder / "run", init_from=InitFrom(folder / "old"))
    assert_same(folder / "run", folder / "uninterrupted")
    return dict(read_warm_start(folder / "run")["begins_at"])


@pytest.mark.soak
def test_what_waits_for_its_label_is_learned_by_the_new_run(half, whole, tmp_path):
    begins = halves(half, whole, tmp_path, {"label_delay": 0.03})
    assert rows_before(HALF - 45_000) < begins["learned"] < begins["log"] == rows_before(HALF)
    # Without a delay nothing is learned from that was not scored just before: it goes back to where learning stood.
    warm_start(whole, config_of(), tmp_path / "prompt", InitFrom(tmp_path / "old"))
    prompt = read_warm_start(tmp_path / "prompt")["begins_at"]
    assert prompt["log"] == prompt["learned"] == begins["learned"]


@pytest.mark.soak
def test_outputs_of_further_labels_go_on(tmp_path):
    table = table_with(SCHEMA, draw_examples())
    drawn = np.random.default_rng(5).random((2, table.num_rows))
    sale, lead = np.where(drawn < 0.3, 1.0, np.where(drawn < 0.9, 0.0, np.nan))
    rows = labeled(table, SCHEMA, sale=sale, lead=lead)
    parts = ((0, 80_000), (80_000, HALF), (HALF, END))
    logs = [
        small_runs.publish(tmp_path / name, intervals=ends, **rows)
        for name, ends in (("first", parts[:2]), ("all", parts))
    ]
    labels = {"sale": {}, "lead": {"given": "all"}}
    halves(*logs, tmp_path, {"label_delay": 0.01, "objective": {"labels": labels}})
    changed = read_predictions(tmp_path / "uninterrupted")["logit_sale"]
    assert changed.nunique() > 100


@pytest.mark.soak
def test_constraint_logs_go_on_where_they_stood(half, whole, tmp_path):
    rows = draw_examples(queries=235, seed=9)
    path = publish(tmp_path / "exposure", examples=rows)
    shown = families({"name": "random", "log": "exposure"}, logs=[{"name": "exposure", "path": str(path)}])
    begins = halves(half, whole, tmp_path, shown)["constraint_logs"]
    assert 0 < begins["exposure"] < (rows.query * 1000 < HALF).sum()
    # One that is new begins with what comes, not with the past.
    renamed = families({"name": "random", "log": "other"}, logs=[{"name": "other", "path": str(path)}])
    warm_start(whole, config_of(renamed), tmp_path / "renamed", InitFrom(tmp_path / "old"))
    found = read_warm_start(tmp_path / "renamed")["begins_at"]["constraint_logs"]["other"]
    assert found == begins["exposure"]


@pytest.mark.soak
def test_dual_variables_go_with_the_definition_of_their_slices(half, whole, tmp_path):
    ctr = {"name": "ctr", "estimated_ctr": [0.2, 0.5]}
    places, gone = {"name": "places", "features": {"position": "all"}}, {"name": "gone"}
    train(half, config_of(families(ctr, places, gone)), tmp_path / "old")
    before = weights(tmp_path / "old")
    # Another rate and another order are the same slices.
    config = config_of(
        families({**places, "learning_rate": 0.01}, {**ctr, "estimated_ctr": [0.2, 0.4]}, {"name": "new"})
    )
    found = begun(tmp_path / "old", whole, config, tmp_path / "run")
    for group in ("duals", "slices_seen"):
        np.testing.assert_array_equal(found[f"{group}/places"], before[f"{group}/places"])
    assert found["duals/places"].any() and not found["duals/ctr"].any()
    assert {name: line[0] for name, line in table_of(tmp_path / "run", "slices").items()} == {
        "places": "taken", "ctr": "fresh", "new": "fresh", "gone": "left",
    }  # fmt: skip
    assert table_of(tmp_path / "run", "ramp")["bias_constraints"][0] == "taken"
    # A feature of other ids has other slices under the same name.
    log = publish(tmp_path / "slots-log", (USER, ITEM, TAGS, changed(POSITION, source="slot")))
    found = begun(tmp_path / "old", log, config_of(families(places)), tmp_path / "slots")
    assert not found["duals/places"].any()
    assert table_of(tmp_path / "slots", "ramp")["bias_constraints"][0] == "fresh"


@pytest.mark.soak
def test_a_run_begun_so_is_begun_from_again(old, whole, tmp_path):
    # Each has another loss, whose ramp begins with it.
    ranked = config_of({"objective": {"ranking": {"weight": 0.3, "ramp": 1000}}})
    train(whole, ranked, tmp_path / "ranked", init_from=InitFrom(old))
    lines = [json.loads(line) for line in (tmp_path / "ranked/metrics.jsonl").read_text().splitlines()]
    trained, own = (
        json.loads((run / "summary.json").read_text())["trained_examples"]
        for run in (old, tmp_path / "ranked")
    )
    assert {line["alpha2"] for line in lines} == {1.0}
    assert [line["ramp_ranking"] for line in lines] == pytest.approx(
        [(line["examples"] - lines[0]["examples"] + lines[0]["window_examples"]) / 1000 for line in lines]
    )
    again = config_of({"objective": {"ranking": {"weight": 0.2, "ramp": 1000}}, "seed": 3})
    warm_start(whole, again, tmp_path / "again", InitFrom(tmp_path / "ranked"), waits=True)
    assert {name: why for name, (_, why) in table_of(tmp_path / "again", "ramp").items()} == {
        "alpha2": f"continues at {trained + own} examples",
        "ranking": f"continues at {own} examples",
    }


@pytest.mark.soak
def test_it_begins_in_the_middle_of_an_interval_and_in_another_log(old, whole, tmp_path):
    stands = growing_logs.train_part(whole, config_of(), tmp_path / "part", 400)
    shutil.copytree(tmp_path / "part", tmp_path / "copy")
    train(whole, config_of(), tmp_path / "copy")
    # The crosses are not wholly switched on there.
    assert 100 < stands < 600
    train(whole, config_of(HARMLESS), tmp_path / "run", init_from=InitFrom(tmp_path / "part"))
    begins = read_warm_start(tmp_path / "run")["begins_at"]
    assert begins["log"] == begins["learned"] == stands
    assert_same(tmp_path / "run", tmp_path / "copy")
    # In a log of its own partitions and features it begins behind what was learned.
    log = publish(tmp_path / "log", (*SCHEMA.features, HOUR), (30_000, 110_000, 190_000, END))
    train(log, config_of(), tmp_path / "later", init_from=InitFrom(old))
    begin = rows_before(HALF) - rows_before(30_000)
    begins = {"log": begin, "learned": begin, "constraint_logs": {}}
    assert read_warm_start(tmp_path / "later")["begins_at"] == begins
    known, found = read_predictions(old), read_predictions(tmp_path / "later")
    assert known["query_time"].max() < found["query_time"].min()
    assert len(known) + len(found) == len(draw_examples())


@pytest.mark.soak
def test_it_follows_a_log(old, launched, tmp_path):
    log = publish(tmp_path / "followed", ends=(0, 80_000, HALF))
    polling, run = Polling(0.01, 0.1), tmp_path / "run"
    waiting = follow(log, config_of(HARMLESS), run, polling, init_from=InitFrom(old))
    assert waiting.position == rows_before(HALF)
    assert waiting.init_from == read_warm_start(run)
    publish(log, ends=(HALF, END))
    follow(log, config_of(HARMLESS), run, polling, init_from=InitFrom(old))
    assert_same(run, launched)
