"""How long one waits: for commands that do little, each measured as a process, and for the first step of training."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from parts.fresh import fresh_process
from parts.setting import Setting
from reference import table

TIMES = 5
EXAMPLES = 20_000
FIRST_BATCH = "the step that learns: first run"
"""What ``ctr train -v`` says when it has learned from its first batch."""


def measure(setting: Setting) -> dict[str, Any]:
    """All in processes of their own; the first round, which reads the files from the disk, does not count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = _prepare(folder)
        taken: dict[str, list[dict[str, float]]] = {key: [] for key in commands}
        for number in range(2 if setting.quick else TIMES + 1):
            for key, words in commands.items():
                given = [word.format(round=number) for word in words]
                until = FIRST_BATCH if key == "first_batch" else None
                taken[key].append(_timed(given, folder, until))
    fresh = fresh_process(setting.size)
    names = ("import_seconds", "state_seconds", "first_step_seconds")
    found: dict[str, Any] = {
        f"{key}_{kind}": median(one[kind] for one in rounds[1:])
        for key, rounds in taken.items()
        for kind in ("seconds", "cpu_seconds")
    }
    return {**found, **{name: fresh[name] for name in names}}


def _prepare(folder: Path) -> dict[str, list[str]]:
    """Makes a small log, a finished run of it, its exported model and a row; returns the commands to measure."""
    for words in (
        ["simulate", "--examples", str(EXAMPLES), "--out", "log"],
        ["train", "log", "--out", "run"],
        ["export", "run", "--out", "models"],
    ):
        _run(words, folder)
    (model,) = (folder / "models").glob("[0-9]*")
    metadata = json.loads((model / "assets.extra" / "ctr.json").read_text())
    values = {"string": "1", "float32": 1.0, "int64": 1_700_000_000_000_000}
    inputs = metadata["signatures"]["predict"]["inputs"].values()
    row = {described["column"]: values[described["dtype"]] for described in inputs}
    (folder / "row.jsonl").write_text(json.dumps(row) + "\n")
    return {
        "help": ["--help"],
        "finished_run": ["train", "log", "--out", "run"],
        "one_row": ["score", "models", "row.jsonl", "--out", "scores.parquet"],
        "first_batch": ["train", "-v", "log", "--out", "fresh-{round}"],
    }


def _run(words: Sequence[str], folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "ctr", *words],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _timed(words: Sequence[str], folder: Path, until: str | None) -> dict[str, float]:
    """Seconds of a command, and of the processors: until its end, or until it says something."""
    before, begun = _processor_seconds(), time.perf_counter()
    if until is None:
        _run(words, folder)
        seconds = time.perf_counter() - begun
    else:
        command = [sys.executable, "-m", "ctr", *words]
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            found = any(until in line for line in process.stderr)
            seconds = time.perf_counter() - begun
            process.kill()
        if not found:
            raise RuntimeError(f"ctr {' '.join(words)} did not say {until!r}")
    return {"seconds": seconds, "cpu_seconds": _processor_seconds() - before}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    described = {
        "help": "`ctr --help`",
        "finished_run": "`ctr train` of a finished run: its summary",
        "one_row": "`ctr score` of one row",
        "first_batch": "`ctr train` until the first batch is learned from",
    }
    rows = [
        [text, f"{found[f'{key}_seconds']:.2f}", f"{found[f'{key}_cpu_seconds']:.2f}"]
        for key, text in described.items()
    ]
    rows += [
        ["imports of training", f"{found['import_seconds']:.1f}", ""],
        ["tables and weights made", f"{found['state_seconds']:.1f}", ""],
        ["the step built, and the first batch learned from", f"{found['first_step_seconds']:.1f}", ""],
    ]
    return table(["start", "seconds", "of the processors"], rows)
