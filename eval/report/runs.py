"""Data of runs for a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from ctr.eval import display, run_files
from ctr.eval.calibration import calibration_buckets
from ctr.eval.importance import Importance
from ctr.eval.report.courses import point_starts
from ctr.eval.run_comparison import leaves
from ctr.eval.run_files import Run
from ctr.eval.timeline import Timeline
from ctr.io.errors import InputError

_DETAILS_SHOWN = 5

Share = Annotated[float, Field(ge=0, le=1)]
Fault = tuple[str, float, list[str]]
"""A kind of fault: its title, its count or share, and the first faults or a description."""


class FeatureFacts(BaseModel):
    """Kind of a feature, and the shares of rows where it is missing or out of range."""

    kind: str = ""
    missing: Share | None = None
    out_of_range: Share | None = None


class RootCounts(BaseModel):
    """Counts of Shampoo's roots that failed or were lost."""

    failed: int = 0
    lost: int = 0


class RunFacts(BaseModel):
    """Content of summary.json besides metrics, as far as a report shows it."""

    features: dict[str, FeatureFacts]
    slice_names: dict[str, dict[int, str]]  # by feature and id, in the order of a table
    skipped_ranges: list[tuple[int, int]] = []
    shampoo: RootCounts = RootCounts()
    labels: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    warnings: list[str] = []
    calibration_warning: str | None = None


@dataclass(frozen=True)
class ReportedRun:
    """A run with the content of its files."""

    name: str
    look: int  # the run's index, which decides its color
    results: Run
    summary: dict[str, Any]  # from `ProgressiveMetrics.summary`
    timeline: Timeline
    course: Timeline  # the same in few points
    importance: Importance | None  # None when the run did not measure it
    deciles: pd.DataFrame  # calibration by decile of prediction
    facts: RunFacts
    has_default_slices: bool  # whether slices are default ones, as none are configured
    config: str
    environment: dict[str, Any]  # by dotted keys
    faults: list[Fault]

    def number(self, metric: str) -> display.Number:
        """Returns a metric over all examples, with its interval."""
        return display.Number(self.summary[metric], *self.summary[f"{metric}_ci95"])


def reported_runs(folders: Sequence[Path]) -> list[ReportedRun]:
    """Reads finished runs. Raises InputError where one cannot be read, or is listed twice."""
    reported = []
    names = run_files.distinct_names(folders)
    for look, (folder, name) in enumerate(zip(folders, names, strict=True)):
        run = run_files.read_run(folder)
        timeline, default_slices = run_files.read_timeline(run), run_files.read_default_slices(run)
        summary = run.metrics.summary()
        try:
            facts = RunFacts.model_validate(run.summary)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            what = f"{first['msg']}, got {first['input']!r:.80}"
            raise InputError(f"{folder / 'summary.json'}: {key}: {what}") from None
        run.metrics.slices.update(default_slices)
        reported.append(
            ReportedRun(
                name=name,
                look=look,
                results=run,
                summary=summary,
                timeline=timeline,
                course=timeline.joined(point_starts(timeline.windows[:, 3])),
                importance=run_files.read_importance(run),
                deciles=calibration_buckets(run.metrics.auc),
                facts=facts,
                has_default_slices=bool(default_slices),
                config=run_files.config_text(folder),
                environment=leaves(run_files.read_environment(folder)),
                faults=_faults(run, facts, run_files.count_rejects(folder)),
            )
        )
    return reported


def _faults(run: Run, facts: RunFacts, rejects: dict[str, int]) -> list[Fault]:
    reasons = [f"{reason}: {display.amount(count)}" for reason, count in rejects.items()]
    skipped = [f"rows {[*rows]}" for rows in facts.skipped_ranges]
    if len(skipped) > _DETAILS_SHOWN:
        skipped[_DETAILS_SHOWN:] = [f"and {len(skipped) - _DETAILS_SHOWN} more"]
    counts = {
        "rejected_rows": ("rejected rows", reasons),
        "set_aside_rows": ("rows set aside, in queries with too many rows", []),
        "skipped_steps": ("skipped steps", skipped),
        "left_out_rows": ("rows left out by skip: scored, but not trained on", []),
        "nonfinite_predictions": ("predictions that were not finite", []),
    }
    faults = [(title, run.number(key) or 0, details) for key, (title, details) in counts.items()]
    faults += [
        ("roots that failed, or whose result was rejected by its check", facts.shampoo.failed, []),
        ("roots that were lost", facts.shampoo.lost, []),
    ]
    return [fault for fault in faults if fault[1]]
