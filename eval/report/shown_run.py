"""A run as a report shows it, and the table and label that it is about."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctr.eval import display, run_files
from ctr.eval.arrays import IntArray, ratio
from ctr.eval.calibration import calibration_buckets
from ctr.eval.click_ratio import describe, judge
from ctr.eval.importance import Importance
from ctr.eval.report.page import Mark
from ctr.eval.run_files import Run
from ctr.eval.timeline import Timeline, typical_size
from ctr.io.errors import InputError

COUNTS = {
    "log_rows": "rows of the log",
    "batches": "batches",
    "skipped_steps": "skipped steps",
    "left_out_rows": "rows left out by skip",
    "nonfinite_predictions": "predictions that were not finite",
    "rejected_rows": "rejected rows",
}
"""Entries of summary.json that say how the pass went, with their titles."""

MAX_WINDOWS = 400  # points of a line in a plot; the windows of a longer pass are drawn several at a time
_FEATURES_NAMED = 3
_SMALLEST_POINT = 40
"""A window with less than this part of the pass, and much smaller than most, is drawn with its neighbors."""

_DETAILS_SHOWN = 5
_ROOT_FAULTS = {
    "failed": "roots that failed, or whose result was rejected by its check",
    "lost": "roots that were lost",
}


@dataclass(frozen=True)
class Fault:
    """One kind of fault: how often it occurred, and the first of them, or what they were, a line each."""

    title: str
    count: float
    details: list[str]


@dataclass(frozen=True)
class Subject:
    """Table and label of a run, as far as its log, where it still is, tells; both may be empty."""

    table: str  # the file that the log was made of, with the number of others; else the name of the log
    label: str  # the column of the label, or the rule on it

    def __str__(self) -> str:
        label = self.label or "clicks"
        return f"{label} in {self.table}" if self.table else self.label


def subject_of(run: Path) -> Subject:
    """Reads the subject of a run; empty where its checkpoint does not say which log it has read."""
    states = sorted((run / "checkpoints").glob("*/state.json"))
    found = _json(states[-1]).get("log") if states else None
    if not isinstance(found, str) or not found:
        return Subject("", "")
    log = Path(found)
    ingested = _json(log / ".ingest" / "state.json")
    inputs = ingested.get("inputs")
    names = [one.get("name") for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []
    files = list(dict.fromkeys(Path(name).name for name in names if isinstance(name, str) and name))
    # The name of a folder called log says nothing.
    table = f"{log.parent.name}/{log.name}" if log.name == "log" and log.parent.name else log.name
    if files:
        table = f"{files[0]} and {len(files) - 1} more files" if len(files) > 2 else " and ".join(files)
    label = ingested.get("label")
    return Subject(table, label if isinstance(label, str) else "")


def _json(path: Path) -> dict[str, Any]:
    """Object of a JSON file; empty where there is none, or it is damaged: nothing but words hang on it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class FeatureShares:
    """A feature of a run, with the shares of rows without a value and of numbers that are far from the others."""

    name: str
    kind: str
    missing: float | None  # None without rows
    out_of_range: float | None  # None of what has no statistics


def feature_shares(run: run_files.Run) -> tuple[FeatureShares, ...]:
    """Reads the shares in summary.json; raises InputError where they are damaged."""
    shares = []
    for name, entry in _entries(run, "features").items():
        values = [entry.get(key) for key in ("missing", "out_of_range")]
        if not all(one is None or (isinstance(one, int | float) and 0 <= one <= 1) for one in values):
            raise InputError(f"{run.folder / 'summary.json'}: features.{name} must have shares from 0 to 1")
        shares.append(FeatureShares(name, str(entry.get("kind")), *values))
    return tuple(shares)


def slice_names(run: run_files.Run) -> dict[str, dict[int, str]]:
    """Reads the names of slices in summary.json, by feature and id; raises InputError where they are damaged."""
    try:
        return {
            feature: {int(one): str(name) for one, name in names.items()}
            for feature, names in _entries(run, "slice_names").items()
        }
    except ValueError as error:
        raise InputError(f"{run.folder / 'summary.json'}: slice_names: {error!s:.120}") from None


def _entries(run: run_files.Run, key: str) -> dict[str, dict[str, Any]]:
    found = run.summary.get(key)
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise InputError(f"{run.folder / 'summary.json'}: {key} must be an object of objects")
    return found


@dataclass(frozen=True)
class ShownRun:
    """A run with its name, its look in all plots, and its tables."""

    mark: Mark
    run: run_files.Run
    has_default_slices: bool  # of the features that differ most: none are configured
    subject: Subject
    summary: dict[str, Any]  # as of `ProgressiveMetrics.summary`
    windows: pd.DataFrame  # at most `MAX_WINDOWS`
    windows_read: int  # how many the pass has
    timeline: Timeline  # at most `MAX_WINDOWS` entries
    features: tuple[FeatureShares, ...]
    slice_names: dict[str, dict[int, str]]  # by feature and id, in the order of a table
    deciles: pd.DataFrame  # calibration by decile of prediction
    importance: Importance | None  # of the features; None when the run did not measure it
    sizes: pd.DataFrame  # PerQueryAUC by query size
    config: str
    environment: dict[str, str]
    faults: list[Fault]

    @property
    def name(self) -> str:
        return self.mark.name

    @property
    def index(self) -> int:
        return self.mark.index

    def number(self, metric: str) -> display.Number:
        """A metric over all examples."""
        return display.Number(self.summary[metric], *self.summary[f"{metric}_ci95"])

    @property
    def headline_sentence(self) -> str:
        """Summary in two sentences: better than the base rate or not, calibrated or not, the features used most."""
        _, calibrated = self.calibration
        ratio = f"predicted / actual clicks are {self.number('calibration_ratio').margin()} ({calibrated})"
        if self.summary["calibration_ratio"] is None:
            ratio = "there were no clicks to compare the predictions with"
        auc = f"AUC over {display.amount(self.summary['examples'])} rows is"
        accuracy = f"{auc} {self.number('auc').margin()}"
        if self.summary["auc"] is None:
            accuracy = f"{auc} undefined, because all rows are clicks, or none is"
        notes = "".join(f" {note}." for note in self.summary.get("notes", ()))
        return f"{self._learned()}; {ratio}. {accuracy}{self._used()}.{self._combined()}{notes}"

    def _learned(self) -> str:
        entropy, (low, high) = self.summary["normalized_entropy"], self.summary["normalized_entropy_ci95"]
        if entropy is None:
            return "Without both clicks and non-clicks there is no base rate to compare with"
        gain = 100 * (1 - entropy)
        says = f"{abs(gain):.1f}% {'below' if gain >= 0 else 'above'} that of always predicting the base rate"
        if low is None or high is None:
            return f"The logloss is {says}, which is too little data for an interval"
        bounds = f"95% interval: {100 * (1 - high):.1f}% to {100 * (1 - low):.1f}% below"
        if high < 1:
            return f"The model learned more than the base rate: its logloss is {says} ({bounds})"
        if low > 1:
            return f"The model predicts worse than the base rate alone: its logloss is {says} ({bounds})"
        return f"Whether the model learned more than the base rate is open: its logloss is {says} ({bounds})"

    def _used(self) -> str:
        """Features that it uses most, as the end of a sentence; empty where that was not measured."""
        if self.importance is None or not self.importance.features:
            return ""
        names = [one.name for one in self.importance.features if one.matters]
        if not names:
            return "; no feature alone is certain to matter"
        shown = names[:_FEATURES_NAMED]
        if len(shown) == 1:
            return f"; the only feature that is certain to matter alone is {shown[0]}"
        return f"; the features that it uses most are {', '.join(shown[:-1])} and {shown[-1]}"

    def _combined(self) -> str:
        """How the prediction is combined of several models, as a sentence of its own; empty where there is one."""
        gates = {key.removesuffix("_gate"): one for key, one in self.summary.items() if key.endswith("_gate")}
        shares = [f"{one:.2f} towards {name}" for name, one in gates.items()]
        return f" The prediction moves from the first expert {' and '.join(shares)}." if shares else ""

    @property
    def calibration(self) -> tuple[str, str]:
        """Verdict on predicted over actual clicks: a class of the page's style (good, near, wrong) and words."""
        found = self.summary["calibration_ratio"], *self.summary["calibration_ratio_ci95"]
        return judge(*found), describe(*found)


def show_runs(folders: Sequence[Path]) -> list[ShownRun]:
    """Reads finished runs; raises InputError where one cannot be read, or is given twice."""
    shown = []
    for index, (folder, name, run) in enumerate(
        zip(folders, run_files.distinct_names(folders), map(run_files.read_run, folders), strict=True)
    ):
        windows, timeline = run_files.read_windows(folder), run_files.read_timeline(run)
        starts = point_starts(windows["window_examples"].to_numpy())
        summary, default_slices = run.metrics.summary(), run_files.read_default_slices(run)
        run.metrics.slices.update(default_slices)
        shown.append(
            ShownRun(
                mark=Mark(name, index),
                run=run,
                has_default_slices=bool(default_slices),
                subject=subject_of(folder),
                summary=summary,
                windows=_merged(windows, starts),
                windows_read=len(windows),
                timeline=timeline.joined(point_starts(timeline.windows[:, 3])),
                features=feature_shares(run),
                slice_names=slice_names(run),
                deciles=calibration_buckets(run.metrics.auc),
                importance=run_files.read_importance(run),
                sizes=run.metrics.per_query_auc.by_size(),
                config=run_files.config_text(folder),
                environment=flat_environment(run_files.read_environment(folder)),
                faults=faults_of(run, run_files.count_rejects(folder)),
            )
        )
    return shown


def point_starts(examples: IntArray) -> IntArray:
    """Windows at which the points of a plot begin, ascending from 0, from the windows' sizes [W].

    A point is one window; but a point is never of less than the fortieth part of the pass and of half as
    many examples as most windows have, and there are at most `MAX_WINDOWS`.
    """
    if not len(examples):
        return np.zeros(0, np.int64)
    usual, total = typical_size(examples), int(examples.sum())
    each = max(1, -(-total // (usual * MAX_WINDOWS)))
    least = (each - 0.5) * usual
    if each == 1:
        least = min(least, total / _SMALLEST_POINT)
    starts, held = [0], 0
    for place, size in enumerate(examples.tolist()):
        if held >= least:
            starts.append(place)
            held = 0
        held += size
    return np.array(starts, np.int64)


def _merged(windows: pd.DataFrame, starts: IntArray) -> pd.DataFrame:
    """Windows joined at the given ones: means by weight, and the intervals of such means."""
    if len(starts) == len(windows):
        return windows
    group = np.searchsorted(starts, np.arange(len(windows)), side="right")
    grouped = windows.groupby(group)
    merged = pd.DataFrame(
        {
            "examples": grouped["examples"].last(),
            "window_begin": grouped["window_begin"].first(),
            "window_end": grouped["window_end"].last(),
            **{name: grouped[name].sum() for name in ("window_examples", "queries_scored", "weight_sum")},
        }
    )
    ends = [f"{metric}_{end}" for metric in run_files.METRICS for end in ("low", "high")]
    for name in (column for column in windows if column not in merged and column not in ends):
        weight = windows["queries_scored" if name == "per_query_auc" else "weight_sum"].fillna(0.0)
        known = windows[name].notna()
        weight = weight.where(known, 0.0)
        total = weight.groupby(group).sum()
        merged[name] = ratio((windows[name].fillna(0.0) * weight).groupby(group).sum(), total)
        if name in run_files.METRICS:
            margin = (windows[f"{name}_high"] - windows[f"{name}_low"]) / 2
            spread = ratio(np.sqrt(((margin * weight) ** 2).groupby(group).sum(min_count=1)), total)
            merged[f"{name}_low"], merged[f"{name}_high"] = merged[name] - spread, merged[name] + spread
    return merged[list(windows)]


def flat_environment(environment: Mapping[str, Any]) -> dict[str, str]:
    """Entries of environment.json as words: those of an object each for itself, lists with commas."""
    flat: dict[str, str] = {}
    for key, value in environment.items():
        if isinstance(value, dict):
            flat |= {f"{key}: {name}": text for name, text in flat_environment(value).items()}
        else:
            flat[key] = _text(value)
    return flat


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return "none" if value is None else display.amount(value) if isinstance(value, float) else str(value)


def faults_of(run: Run, rejects: Mapping[str, int]) -> list[Fault]:
    """Kinds of faults that occurred in a run; raises InputError where summary.json records them otherwise."""
    reasons = [f"{reason}: {display.amount(count)}" for reason, count in rejects.items()]
    skipped = [f"rows {_row_range(run, rows)}" for rows in _skipped_ranges(run)]
    if len(skipped) > _DETAILS_SHOWN:
        skipped[_DETAILS_SHOWN:] = [f"and {len(skipped) - _DETAILS_SHOWN} more"]
    found = [
        Fault("rejected rows", run.number("rejected_rows") or 0, reasons),
        Fault("rows set aside, in queries with too many rows", run.number("set_aside_rows") or 0, []),
        Fault("skipped steps", run.number("skipped_steps") or 0, skipped),
        Fault("rows left out by skip: scored, but not trained on", run.number("left_out_rows") or 0, []),
        Fault("predictions that were not finite", run.number("nonfinite_predictions") or 0, []),
    ]
    roots = run.summary.get("shampoo", {})
    if not isinstance(roots, dict):
        raise _malformed(run, "shampoo", "an object", roots)
    for key, title in _ROOT_FAULTS.items():
        count = roots.get(key, 0)
        if isinstance(count, bool) or not isinstance(count, int):
            raise _malformed(run, f"shampoo.{key}", "a number", count)
        found.append(Fault(title, count, []))
    return [fault for fault in found if fault.count or (fault.details and fault.title != "rejected rows")]


def _row_range(run: Run, rows: object) -> list[int]:
    if isinstance(rows, list) and len(rows) == 2 and all(type(end) is int for end in rows):
        return rows
    raise _malformed(run, "skipped_ranges", "pairs of whole numbers, [first, last]", rows)


def _skipped_ranges(run: Run) -> list[Any]:
    value = run.summary.get("skipped_ranges", [])
    if not isinstance(value, list):
        raise _malformed(run, "skipped_ranges", "a list", value)
    return value


def _malformed(run: Run, key: str, allowed: str, value: object) -> InputError:
    return InputError(f"{run.folder / 'summary.json'}: {key} must be {allowed}, got {value!r:.80}")
