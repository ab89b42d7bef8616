"""Fuzzing of checkpoints and run directories."""

import atexit
import functools
import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from target import Target, in_place

import run_directories
from ctr.eval import run_files
from ctr.eval.prediction_difference import pair_predictions
from ctr.eval.report.runs import reported_runs
from ctr.eval.run_comparison import compare_runs
from ctr.io.errors import InputError
from ctr.training.run import checkpoint

# ---------------------------------------------------------------- what a run keeps


def _checkpoints(folder: Path) -> Path:
    target = folder / "checkpoints"
    if not target.exists():
        weights = {"weights|a": np.ones((3, 2), np.float32), "states|b/c": np.arange(4)}
        state = {"position": {"examples": 10}, "parts": ["a.parquet"]}
        checkpoint.save(target, 10, {**weights, "flag": np.array(True)}, state, 2)
    return target


def _seal_checkpoint(folder: Path, path: Path) -> None:
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        state = json.loads((path.parent / "state.json").read_bytes())
        state["arrays_sha256"] = hashlib.sha256((path.parent / "arrays.npz").read_bytes()).hexdigest()
        state["state_sha256"] = checkpoint._state_hash(state)
        (path.parent / "state.json").write_text(json.dumps(state))


def _read_checkpoint(folder: Path) -> None:
    arrays, _ = checkpoint.read(folder)
    assert all(array.dtype != object for array in arrays.values())


# ---------------------------------------------------------------- runs

FAULTS: dict[str, Any] = {
    "skipped_steps": 2,
    "skipped_ranges": [[0, 20], [40, 60]],
    "left_out_rows": 20,
    "shampoo": {"failed": 1, "lost": 0},
}
RUN_FILES = {
    "summary.json": "json",
    "environment.json": "json",
    "metrics.jsonl": "jsonl",
    "config.yaml": "yaml",
    "rejects.jsonl": "jsonl",
    "windows.parquet": "parquet",
    "predictions/*.parquet": "parquet",
}


@functools.cache
def _two_runs() -> Path:
    """A folder with two runs, made once."""
    kept = tempfile.TemporaryDirectory(prefix="ctr-fuzz-runs-")
    atexit.register(kept.cleanup)
    folder = Path(kept.name)
    rows = run_directories.make_rows(1, queries=60)
    for name, seed in (("run", 1), ("other", 2)):
        logit = run_directories.predict(rows, seed, 1.0)
        more = {"slices": ("position",), "rejects": ("bad",), **FAULTS}
        run_directories.write_run(folder / name, rows, logit, **more)
    return folder


def run_folder(folder: Path) -> Path:
    if not (folder / "run").exists():
        shutil.copytree(_two_runs(), folder, dirs_exist_ok=True)
    return folder / "run"


def _read_run(run: Path, compares: bool, pairs: bool) -> None:
    found = run_files.read_run(run)
    run_files.read_environment(run)
    run_files.read_windows(run)
    run_files.read_timeline(found)
    run_files.count_rejects(run)
    if compares:
        reported_runs([run])
        compared = compare_runs(run.parent / "other", run)
        json.dumps(compared.as_dict(), allow_nan=False)
        compared.as_text()
    if pairs:
        try:
            pair_predictions(run.parent / "other", run)
        except ValueError as error:
            # What cannot be joined; a comparison then tells why in the place of the difference.
            raise InputError(str(error)) from None


def _run_file(name: str) -> Target:
    compares = name in ("summary.json", "config.yaml", "windows.parquet")
    read = functools.partial(_read_run, compares=compares, pairs=name.startswith("predictions"))
    return Target(RUN_FILES[name], *in_place(run_folder, name, read))


TARGETS = {
    **{
        f"checkpoint {name}": Target(
            form, *in_place(_checkpoints, f"*/{name}", _read_checkpoint, _seal_checkpoint)
        )
        for name, form in (("arrays.npz", "bytes"), ("state.json", "json"))
    },
    **{f"run {name}": _run_file(name) for name in RUN_FILES},
}
