"""The live system whole: events come, the join publishes, the trainer follows, all of them programs of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

import event_files
from ctr.cli import main
from ctr.data.log import read_manifests

WAIT_SECONDS = 240
CONFIG = {
    "batch": {"rows": 64, "within_partitions": True},
    "model": {"crosses": {"layers": 0}, "deep": {"units": [4]}},
    "jit": False,
}


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "ctr", *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_here(*arguments: object) -> int:
    return main([*map(str, arguments)])


def wait(condition: Callable[[], object], *programs: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        for program in programs:
            if program.poll() is not None:
                pytest.fail(f"a program ended: {program.stderr.read() if program.stderr else ''}")
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(0.1)


def message(program: subprocess.Popen[str]) -> str:
    """Waits for a program that ends well; returns what it said."""
    said, complaint = program.communicate(timeout=120)
    assert program.returncode == 0, complaint
    return said


def predictions(run: Path) -> list[dict[str, Any]]:
    return [
        row
        for path in sorted((run / "predictions").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


@pytest.mark.slow
def test_events_joined_and_trained_on_as_they_come_give_the_bits_of_one_pass(tmp_path, capsys):
    events = event_files.draw_events(400, seed=5, seconds=200)
    files = event_files.encode_files(events, 8)
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(event_files.content()))
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(CONFIG))
    live, log, run = tmp_path / "live", tmp_path / "log", tmp_path / "run"
    live.mkdir()
    options = ("--mapping", tmp_path / "mapping.yaml", "--max-reject-share", "1", "--out")
    ingest = ("ingest", "events", live, *options, log, "--follow", "--poll", "0.1")
    train = ("train", "--config", tmp_path / "train.yaml", "--out")
    joiner = start(*ingest)
    trainer = start(*train, run, log, "--follow", "--poll", "0.1")
    for number, file in enumerate(files):
        event_files.write_files(live, [file])
        time.sleep(0.3)
        if number == len(files) // 2:
            wait(lambda: log.is_dir() and read_manifests_of(log), joiner, trainer)
            joiner.kill()
            joiner.communicate()
            joiner = start(*ingest)
    wait(lambda: len(read_manifests_of(log)) >= 7, joiner, trainer)
    joiner.send_signal(signal.SIGTERM)
    assert "impressions pending" in message(joiner)
    assert run_here(*ingest, "--drain") == 0
    assert "0 impressions pending" in capsys.readouterr().out
    rows = sum(manifest.rows for manifest in read_manifests(log))
    wait(lambda: trained(run) == rows, trainer)
    trainer.send_signal(signal.SIGTERM)
    message(trainer)
    whole, aside = tmp_path / "at-once", ("rejects", "late")
    assert run_here("ingest", "events", live, *options, whole) == 0
    assert event_files.published(log, aside) == event_files.published(whole, aside)
    assert run_here(*train, tmp_path / "one", whole) == 0
    assert predictions(run) == predictions(tmp_path / "one")


def read_manifests_of(log: Path) -> list[Any]:
    return read_manifests(log) if (log / "schema.json").exists() else []


def trained(run: Path) -> int:
    path = run / "follow.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["position"] if lines else 0
