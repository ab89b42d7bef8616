"""A run that stops as too many steps are skipped, and how ``ctr train --skip`` resumes it."""

import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctr.cli import main
from ctr.config import load_model
from ctr.io.errors import InputError
from ctr.serving.export import export_from_run
from ctr.serving.metadata import read_metadata, versions
from ctr.training.config import TrainConfig
from ctr.training.run.directory import add_skips, only_process
from ctr.training.session import train
from growing_logs import ADAGRAD, STANDS, assert_same, newest_checkpoint
from numerical_faults import injected
from small_runs import SMALL, make_config, merged

# Three batches at least.
BAD = dict.fromkeys(range(600, 700), math.inf)
CONTENT: dict[str, Any] = {
    **merged(SMALL, ADAGRAD, {"model": {"crosses": {"layers": 0}}}),
    # The second one is due within the batches of ``BAD``.
    "checkpoint": {"every_examples": 310},
    "export": {"every_examples": 400, "keep": 9},
    "max_skipped_steps": 3,
    "max_rejected_share": 0.02,
}


def command(log: Path, run: Path, changes: dict[str, Any], *more: str) -> list[str]:
    config = run.parent / "run.yaml"
    config.write_text(yaml.safe_dump({**CONTENT, **changes}))
    return ["-q", "train", str(log), "--config", str(config), "--out", str(run), *more]


def refused(capsys, words: list[str]) -> str:
    assert main(words) == 1
    return " ".join(capsys.readouterr().err.split())


class Killed(BaseException):
    pass


def stopping_behind(row: int) -> Callable[[int, Any], None]:
    def progress(position: int, _: Any) -> None:
        if position > row + 100:
            raise Killed

    return progress


def exported(run: Path) -> dict[str, str]:
    return {path.name: read_metadata(path)["weights"] for path in versions(run / "exports")}


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, ()),
        ({"label_delay": 0.01}, ()),
        ({}, ("--follow", "--poll", "0.01", "--stop-when-idle", "0.1")),
    ],
    ids=["at once", "late labels", "followed"],
)
def test_a_run_that_stopped_is_resumed_without_the_rows_that_it_names(log, tmp_path, capsys, changes, more):
    run, fresh, killed = tmp_path / "run", tmp_path / "fresh", tmp_path / "killed"
    words = command(log, run, changes, *more)
    with injected(BAD):
        line = refused(capsys, words)
        assert "3 steps in a row were skipped" in line
        begin, end = map(int, re.search(r"rows (\d+) to (\d+) of the log", line).groups())
        saved = json.loads((newest_checkpoint(run) / "state.json").read_text())["position"]
        assert 0 < saved["learned"] <= begin <= 600 < end and saved["skipped_in_a_row"] == 0
        # Some of these exports are newer than the checkpoint.
        assert max(map(int, exported(run))) > saved["logs"][""]["rows"]
        assert refused(capsys, words) == line
        shutil.copytree(run, killed)

        resumed = shlex.split(line[line.index("ctr train") :])[1:]
        assert resumed == ["train", str(log), "--out", str(run), "--skip", f"{begin}:{end}"]
        assert main(["-q", *resumed, *more]) == 0
        assert load_model(TrainConfig, run / "config.yaml", "config").skip == ((begin, end),)
        # Again, and as before: the run keeps what it leaves out.
        assert main(["-q", *resumed]) == 0 and main(words[: len(words) - len(more)]) == 0
        summary = json.loads((run / "summary.json").read_text())
        assert summary["left_out_rows"] >= end - begin - 10 and summary["skipped_steps"] <= 1

        assert main([*command(log, fresh, changes), "--set", f"skip=[[{begin},{end}]]"]) == 0
        assert_same(run, fresh, *(STANDS if more else ()))
        assert exported(run) == exported(fresh)

        # Stopped again, behind the rows, and resumed under the configuration that it began with.
        config = load_model(TrainConfig, tmp_path / "run.yaml", "config")
        add_skips(killed, [(begin, end)], writes=True)
        assert max(map(int, exported(killed)), default=0) <= saved["logs"][""]["rows"]
        plain = config.model_copy(update={"export": None})
        with pytest.raises(InputError, match=r"with another configuration \(export"):
            train(log, plain, killed)
        with pytest.raises(Killed):
            train(log, config, killed, stopping_behind(end), exporter=export_from_run)
        train(log, config, killed, exporter=export_from_run)
        assert_same(killed, fresh, *(STANDS if more else ()))
        assert exported(killed) == exported(fresh)


def test_nothing_is_learned_from_a_batch_with_a_row_of_a_range(log, tmp_path):
    def trained(name: str, *ranges: tuple[int, int]) -> tuple[list[int], dict[str, Any]]:
        begun: list[int] = []
        with injected(begun=lambda begin, _: begun.append(begin)):
            summary = train(log, make_config({"skip": ranges}, logistic=True), tmp_path / name)
        return begun, summary

    starts, whole = trained("whole")
    # The last row of a batch is enough.
    last = starts[12] - 1
    ranges = (100, 101), (203, 240), (last, last + 1)
    learned, summary = trained("run", *ranges)
    ends = [*starts[1:], 10**6]
    assert learned == [
        begin
        for begin, end in zip(starts, ends, strict=True)
        if not any(begin < until and end > first for first, until in ranges)
    ]
    assert starts[11] not in learned and len(learned) <= len(starts) - 3
    assert summary["left_out_rows"] > 3 and summary["examples"] == whole["examples"]


def test_what_skip_refuses(log, tmp_path, capsys):
    run = tmp_path / "run"
    words = command(log, run, {"export": None})
    for text in ("5", "7:7", "9:8", "-1:5", "a:b", "1:2:3", f"1:{10**30}"):
        assert f"--skip {text}: not a range of rows; allowed: FROM:TO" in refused(
            capsys, [*words, f"--skip={text}"]
        )
    assert f"--skip: {run}: no such run" in refused(capsys, [*words, "--skip", "600:700"])
    assert not run.exists()
    with injected(BAD):
        assert main(words) == 1
    capsys.readouterr()
    content = (run / "config.yaml").read_bytes()
    learned = int(newest_checkpoint(run).name)
    assert learned > 300
    line = refused(capsys, [*words, "--skip", f"{learned - 1}:{learned + 9}"])
    assert f"has learned from the rows before {learned}; allowed: rows from there on" in line
    line = refused(capsys, [*words, "--skip", "600:700", "--set", "seed=9"])
    assert "started with another configuration (seed" in line
    line = refused(capsys, [*words, "--set", "skip=[[600,700]]"])
    assert "started with another configuration (skip" in line
    with only_process(run):
        assert main([*words, "--skip", "600:700"]) == 75
    assert "another process is training" in capsys.readouterr().err
    assert (run / "config.yaml").read_bytes() == content
