"""Runs as a report shows them, and the table and label that each is about."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval import display, run_files
from ctr.eval.calibration import calibration_buckets
from ctr.eval.importance import Importance
from ctr.eval.report.courses import point_starts
from ctr.eval.run_comparison import leaves
from ctr.eval.run_files import Run
from ctr.eval.timeline import Timeline
from ctr.io.errors import InputError

_DETAILS_SHOWN = 5
_ROOT_FAULTS = {
    "failed": "roots that failed, or whose result was rejected by its check",
    "lost": "roots that were lost",
}

Fault = tuple[str, float, list[str]]
"""What went wrong, how often, and the first of them, or what they were."""


@dataclass(frozen=True)
class ShownRun:
    """A run with what its files say."""

    name: str
    look: int  # its place, which gives its color
    run: Run
    summary: dict[str, Any]  # as of `ProgressiveMetrics.summary`
    timeline: Timeline
    course: Timeline  # the same in few points
    importance: Importance | None  # None when the run did not measure it
    deciles: pd.DataFrame  # calibration by decile of prediction
    features: dict[str, dict[str, Any]]  # kind and shares by feature
    slice_names: dict[str, dict[int, str]]  # by feature and id, in the order of a table
    has_default_slices: bool  # of the features that differ most: none are configured
    config: str
    environment: dict[str, Any]  # by dotted keys
    faults: list[Fault]

    def number(self, metric: str) -> display.Number:
        """Returns a metric over all examples."""
        return display.Number(self.summary[metric], *self.summary[f"{metric}_ci95"])


def show_runs(folders: Sequence[Path]) -> list[ShownRun]:
    """Reads finished runs; raises InputError where one cannot be read, or is given twice."""
    shown = []
    names = run_files.distinct_names(folders)
    for look, (folder, name) in enumerate(zip(folders, names, strict=True)):
        run = run_files.read_run(folder)
        timeline, default_slices = run_files.read_timeline(run), run_files.read_default_slices(run)
        summary = run.metrics.summary()
        run.metrics.slices.update(default_slices)
        shown.append(
            ShownRun(
                name=name,
                look=look,
                run=run,
                summary=summary,
                timeline=timeline,
                course=timeline.joined(point_starts(timeline.windows[:, 3])),
                importance=run_files.read_importance(run),
                deciles=calibration_buckets(run.metrics.auc),
                features=_features(run),
                slice_names=_slice_names(run),
                has_default_slices=bool(default_slices),
                config=run_files.config_text(folder),
                environment=leaves(run_files.read_environment(folder)),
                faults=_faults(run, run_files.count_rejects(folder)),
            )
        )
    return shown


def subject_of(run: Path) -> str:
    """Returns the table and the label of a run, as far as its log, where it still is, tells; else nothing."""
    states = sorted((run / "checkpoints").glob("*/state.json"))
    path = _json(states[-1]).get("log") if states else None
    if not isinstance(path, str) or not path:
        return ""
    log = Path(path)
    ingested = _json(log / ".ingest" / "state.json")
    inputs = ingested.get("inputs")
    names = [doc.get("name") for doc in inputs if isinstance(doc, dict)] if isinstance(inputs, list) else []
    files = list(dict.fromkeys(Path(name).name for name in names if isinstance(name, str) and name))
    # The name of a folder called log says nothing.
    table = f"{log.parent.name}/{log.name}" if log.name == "log" and log.parent.name else log.name
    if files:
        table = f"{files[0]} and {len(files) - 1} more files" if len(files) > 2 else " and ".join(files)
    label = ingested.get("label")
    return f"{label if isinstance(label, str) and label else 'clicks'} in {table}"


def _json(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; empty where there is none, or it is damaged: nothing but words hang on it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _features(run: Run) -> dict[str, dict[str, Any]]:
    entries = _entries(run, "features")
    for name, entry in entries.items():
        values = [entry.get(key) for key in ("missing", "out_of_range")]
        if not all(share is None or (isinstance(share, int | float) and 0 <= share <= 1) for share in values):
            raise InputError(f"{run.folder / 'summary.json'}: features.{name} must have shares from 0 to 1")
    return entries


def _slice_names(run: Run) -> dict[str, dict[int, str]]:
    try:
        return {
            feature: {int(value): str(name) for value, name in names.items()}
            for feature, names in _entries(run, "slice_names").items()
        }
    except ValueError as error:
        raise InputError(f"{run.folder / 'summary.json'}: slice_names: {error!s:.120}") from None


def _entries(run: Run, key: str) -> dict[str, dict[str, Any]]:
    entries = run.summary.get(key)
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise _malformed(run, key, "an object of objects", entries)
    return entries


def _faults(run: Run, rejects: dict[str, int]) -> list[Fault]:
    reasons = [f"{reason}: {display.amount(count)}" for reason, count in rejects.items()]
    ranges = run.summary.get("skipped_ranges", [])
    if not isinstance(ranges, list):
        raise _malformed(run, "skipped_ranges", "a list", ranges)
    for rows in ranges:
        if not (isinstance(rows, list) and len(rows) == 2 and all(type(end) is int for end in rows)):
            raise _malformed(run, "skipped_ranges", "pairs of whole numbers, [first, last]", rows)
    skipped = [f"rows {rows}" for rows in ranges]
    if len(skipped) > _DETAILS_SHOWN:
        skipped[_DETAILS_SHOWN:] = [f"and {len(skipped) - _DETAILS_SHOWN} more"]
    faults: list[Fault] = [
        ("rejected rows", run.number("rejected_rows") or 0, reasons),
        ("rows set aside, in queries with too many rows", run.number("set_aside_rows") or 0, []),
        ("skipped steps", run.number("skipped_steps") or 0, skipped),
        ("rows left out by skip: scored, but not trained on", run.number("left_out_rows") or 0, []),
        ("predictions that were not finite", run.number("nonfinite_predictions") or 0, []),
    ]
    roots = run.summary.get("shampoo", {})
    if not isinstance(roots, dict):
        raise _malformed(run, "shampoo", "an object", roots)
    for key, title in _ROOT_FAULTS.items():
        count = roots.get(key, 0)
        if isinstance(count, bool) or not isinstance(count, int):
            raise _malformed(run, f"shampoo.{key}", "a number", count)
        faults.append((title, count, []))
    return [fault for fault in faults if fault[1] or (fault[2] and fault[0] != "rejected rows")]


def _malformed(run: Run, key: str, allowed: str, value: object) -> InputError:
    return InputError(f"{run.folder / 'summary.json'}: {key} must be {allowed}, got {value!r:.80}")
