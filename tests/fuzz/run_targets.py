"""Fuzzing of checkpoints, run directories and experiments."""

import atexit
import functools
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from target import Parse, Prepare, put, require_finite

from ctr.io.documents import parse_json, sealed_bytes


def _checkpoint_folder(folder: Path) -> Path:
    from ctr.training.run import checkpoint

    target = folder / "checkpoints"
    if not target.exists():
        arrays = {
            "weights|a": np.ones((3, 2), np.float32),
            "states|b/c": np.arange(4),
            "flag": np.array(True),
        }
        checkpoint.save(target, 10, arrays, {"position": {"examples": 10}, "parts": ["a.parquet"]}, 2)
    return target


def _quarantine_seeds(folder: Path) -> list[bytes]:
    from ctr.training.run.rollback import Rollback, write_rollbacks

    (folder / "went_back").mkdir(exist_ok=True)
    past = [
        Rollback(checkpoint=100, rows=(110, 200), query_times=(5, 9), reason="3 steps were skipped"),
        Rollback(checkpoint=100, rows=(200, 200), query_times=None, reason="dense/000 is not finite"),
    ]
    seeds = []
    for count in (2, 1):
        write_rollbacks(folder / "went_back", past[:count])
        seeds.append((folder / "went_back/quarantine.json").read_bytes())
    return seeds


def _parse_quarantine(folder: Path, content: bytes) -> None:
    from ctr.training.run.rollback import as_json, check_kept, is_quarantined, read_rollbacks

    path = folder / "went_back/quarantine.json"
    put(path, content)
    # As it is, and with a hash that fits.
    try:
        tree = parse_json(content)
        assert isinstance(tree, dict)
        tree.pop("manifest_sha256", None)
    except (ValueError, AssertionError):
        pass
    else:
        path.write_bytes(sealed_bytes(tree))
    found = read_rollbacks(folder / "went_back")
    check_kept(folder / "went_back", as_json(found), found)
    assert isinstance(is_quarantined(100, 200, found), bool)
    for one in found:
        assert 0 <= one.rows[0] <= one.rows[1]
        assert is_quarantined(*one.rows, found) == (one.rows[0] < one.rows[1])


def _launch_seeds(folder: Path) -> list[bytes]:
    (folder / "begun").mkdir(exist_ok=True)
    (folder / "begun" / "config.yaml").write_text("seed: 1\n")
    entry = {
        "part": "feature",
        "name": "user",
        "status": "taken",
        "optimizer": "fresh",
        "why": "other buckets",
    }
    content = {
        "run": str((folder / "old").resolve()),
        "checkpoint": 100,
        "checkpoint_sha256": "a" * 64,
        "begins_at": {"log": 100, "learned": 90, "constraint_logs": {"random": 3}},
        "table": [entry, {**entry, "part": "ramp", "optimizer": None}],
    }
    return [json.dumps(content, indent=1).encode()]


def _parse_launch(folder: Path, content: bytes) -> None:
    """As of a run that is asked for again: nothing else of it is read then."""
    from ctr.training.config import TrainConfig
    from ctr.training.run.directory import read_warm_start
    from ctr.training.warm_start.start import InitFrom, warm_start

    put(folder / "begun/init_from.json", content)
    begun = read_warm_start(folder / "begun")
    require_finite(begun)
    json.dumps(begun, allow_nan=False)
    warm_start(folder / "log", TrainConfig(), folder / "begun", InitFrom(folder / "old"))


def _checkpoint_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [next(_checkpoint_folder(folder).glob(f"*/{name}")).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        """With the hashes that make a changed file valid, where it can still have them."""
        from ctr.training.run import checkpoint

        folder = _checkpoint_folder(folder)
        path = next(folder.glob("[0-9]*"))
        before = {file: file.read_bytes() for file in path.iterdir()}
        try:
            (path / name).write_bytes(content)
            try:
                state = json.loads((path / "state.json").read_bytes())
                state["arrays_sha256"] = hashlib.sha256((path / "arrays.npz").read_bytes()).hexdigest()
                state["state_sha256"] = checkpoint._state_hash(state)
                (path / "state.json").write_text(json.dumps(state))
            except (ValueError, TypeError, AttributeError, RecursionError):
                pass
            arrays, _ = checkpoint.read(folder)
            assert all(array.dtype != object for array in arrays.values())
        finally:
            for file, text in before.items():
                file.write_bytes(text)

    return prepare, parse


_FAULTS: dict[str, Any] = {
    "skipped_steps": 2,
    "skipped_ranges": [[0, 20], [40, 60]],
    "rollbacks": 1,
    "quarantined": [{"checkpoint": 0, "rows": [0, 20], "query_times": [5, 9], "reason": "3 steps"}],
    "quarantined_rows": 20,
    "shampoo": {"failed": 1, "lost": 0},
}


@functools.cache
def _two_runs() -> Path:
    """A folder with two runs, made once."""
    import run_directories as make

    kept = tempfile.TemporaryDirectory(prefix="ctr-fuzz-runs-")
    atexit.register(kept.cleanup)
    folder = Path(kept.name)
    rows = make.make_rows(1, queries=60)
    for name, seed in (("run", 1), ("other", 2)):
        logit = make.predict(rows, seed, 1.0)
        make.write_run(folder / name, rows, logit, slices=("position",), rejects=("bad",), **_FAULTS)
        spectra = [
            {"name": "deep/0", "shape": [3, 2], "singular_values": [2.0, 1.0]},
            {"name": "deep/1", "shape": [9, 9], "omitted": "too large"},
        ]
        (folder / name / "weight_spectra.json").write_text(json.dumps({"weights": spectra}))
    return folder


def run_folder(folder: Path) -> Path:
    if not (folder / "run").exists():
        shutil.copytree(_two_runs(), folder, dirs_exist_ok=True)
    return folder / "run"


def _run_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [_file_of(run_folder(folder), name).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        from ctr.eval.prediction_difference import pair_predictions
        from ctr.eval.report.data_health import read_data_health
        from ctr.eval.report.faults import faults_of
        from ctr.eval.report.shown_run import show_runs
        from ctr.eval.run_comparison import compare_runs
        from ctr.eval.run_files import (
            InputError,
            count_rejects,
            read_environment,
            read_run,
            read_timeline,
            read_weight_spectra,
            read_windows,
        )

        run = run_folder(folder)
        path = _file_of(run, name)
        before = path.read_bytes()
        try:
            path.write_bytes(content)
            found = read_run(run)
            read_environment(run)
            read_windows(run)
            read_weight_spectra(run)
            read_timeline(run)
            read_data_health(run)
            faults_of(found, count_rejects(run))
            if name in ("summary.json", "config.yaml", "metric_states.npz"):
                show_runs([run])
                compared = compare_runs(folder / "other", run)
                json.dumps(compared.as_dict(), allow_nan=False)
                compared.as_text()
            if name.startswith("predictions"):
                try:
                    pair_predictions(folder / "other", run)
                except ValueError as error:
                    # What cannot be joined; a comparison then tells why in the place of the difference.
                    raise InputError(str(error)) from None
        finally:
            path.write_bytes(before)

    return prepare, parse


def _file_of(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


_REPORTED = (
    "summary.json",
    "environment.json",
    "metrics.jsonl",
    "weight_spectra.json",
    "data_health.json",
    "rejects.jsonl",
    "config.yaml",
)


def _report_seeds(folder: Path) -> list[bytes]:
    """The files of a run in one."""
    run = run_folder(folder)
    return ["\0".join((run / name).read_text() for name in _REPORTED).encode()]


def _parse_report(folder: Path, content: bytes) -> None:
    from ctr.eval.report import render_report

    run = run_folder(folder)
    before = {name: (run / name).read_bytes() for name in _REPORTED}
    try:
        for name, text in zip(_REPORTED, content.split(b"\0"), strict=False):
            (run / name).write_bytes(text)
        page = render_report([run])
        page.encode()
        assert page.count("<script") == 1
    finally:
        for name, text in before.items():
            (run / name).write_bytes(text)


def _experiment_folder(folder: Path) -> Path:
    import experiment_folders as make
    import run_directories

    target = folder / "experiment"
    if not target.exists():
        rows = run_directories.make_rows(1, queries=60)
        run_directories.write_plan(
            target, {"base": {"seeds": [1]}, "arm": {"seeds": [1, 2], "paper": {"accuracy": "1%"}}}
        )
        for name, seed in (("base", 1), ("arm", 1), ("arm", 2)):
            make.write_small(
                target / run_directories.run_folder(name, seed), rows, make.logits(rows, name, seed)
            )
        costs = {name: make.cost("base") for name in ("base", "arm")}
        (target / "costs.json").write_text(
            json.dumps({"arms": costs, "rounds": 3, "teacher_flops": {"big": 1e7}})
        )
    return target


def _experiment_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [(_experiment_folder(folder) / name).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        from ctr.experiments.report.write import write_experiment

        target = _experiment_folder(folder)
        before = (target / name).read_bytes()
        try:
            (target / name).write_bytes(content)
            write_experiment(target).encode("utf-8", "surrogateescape")
            require_finite(json.loads((target / "result.json").read_text()))
        finally:
            (target / name).write_bytes(before)

    return prepare, parse


def _evaluate_seeds(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(run_folder(folder).glob("predictions/*"))]


def _parse_evaluate(folder: Path, content: bytes) -> None:
    from ctr.pipelines.evaluate.rows import find_row_groups, gather, read_row_group

    path = put(folder / "predictions.parquet", content)
    for group in find_row_groups([path]):
        rows = gather(list(read_row_group(group)))
        assert np.isfinite(rows["logit"]).all() and np.isfinite(rows["weight"]).all()


def _loop_seeds(folder: Path) -> list[bytes]:
    (folder / "loop").mkdir(exist_ok=True)
    (folder / "base").mkdir(exist_ok=True)
    count = 40
    table = pa.table(
        {
            "day": pa.array(np.arange(count) // 20, pa.int64()),
            "query_id": np.arange(count),
            "randomized": np.arange(count) % 5 == 0,
            "ads": np.arange(count) % 4,
        }
    )
    pq.write_table(table, folder / "base/shown.parquet")
    return [(folder / "base/shown.parquet").read_bytes()]


def _parse_loop(folder: Path, content: bytes) -> None:
    from ctr.eval.ads_churn import compare_loops

    put(folder / "loop/shown.parquet", content)
    compared = compare_loops(folder / "base", folder / "loop")
    json.dumps(compared.as_dict(), allow_nan=False)
    compared.as_text()
