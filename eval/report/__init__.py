"""One HTML file with the results of one or more runs; the same run directories give the same bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval import display
from ctr.eval.per_query_auc import SIZE_NAMES
from ctr.eval.report.figures.along_pass import uses_event_time
from ctr.eval.report.figures.calibration import calibration_figures
from ctr.eval.report.figures.groups import query_size_figure
from ctr.eval.report.figures.health import health_tables
from ctr.eval.report.figures.metrics import loss_figures, paired_figures, progressive_figures
from ctr.eval.report.figures.predictions import gain_figure, histogram_figures, lift_rows, lift_shares
from ctr.eval.report.figures.slices import slice_tables
from ctr.eval.report.figures.statistics import statistics_tables
from ctr.eval.report.figures.traffic import traffic_figures
from ctr.eval.report.figures.weights import weight_tables
from ctr.eval.report.page import check_page, render_page, write_page
from ctr.eval.report.shown_run import COUNTS, ShownRun, show_runs
from ctr.eval.run_comparison import COSTS, SEED_NOTE, NotComparableError, RunComparison, compare_read_runs
from ctr.eval.run_files import METRICS
from ctr.io.errors import InputError

_TEMPLATE = Path(__file__).with_name("report.html.j2")
_BAR_HALF = 56.0
_BAR_MIDDLE = 60.0
_VERDICT_SIGNS = {"better": "▲", "worse": "▼", "differs": "◆", "not significant": "", "no interval": ""}


@dataclass(frozen=True)
class _Compared:
    """Run against the first one; `refusal` says why there is no comparison."""

    run: ShownRun
    comparison: RunComparison | None
    metrics: list[dict[str, Any]]
    refusal: str


def write_report(runs: Sequence[Path], out: Path | None) -> Path:
    """Writes the report of finished runs, comparing the others with the first, in whose folder it is by default.

    The file appears whole or not at all, and replaces nothing but a report. Raises InputError: a run cannot
    be read, or the file cannot be written, or is there and is no report.
    """
    if not runs:
        raise InputError("a report needs at least one run directory, got none")
    path = runs[0] / "report.html" if out is None else out
    check_page(path)
    write_page(path, render_report(runs))
    return path


def render_report(runs: Sequence[Path]) -> str:
    """Renders the report as HTML; raises InputError where a run cannot be read."""
    shown = show_runs(runs)
    return render_page(
        _TEMPLATE,
        runs=shown,
        metrics=METRICS,
        titles=display.METRIC_TITLES,
        costs=COSTS,
        seed_note=SEED_NOTE,
        counts=COUNTS,
        sizes=[size for size in SIZE_NAMES if any((item.sizes["size"] == size).any() for item in shown)],
        environment_keys=list(dict.fromkeys(key for item in shown for key in item.environment)),
        period=_period(shown),
        subject=_subject(shown),
        compared=[_compare(shown[0], other) for other in shown[1:]],
        paired=paired_figures(shown),
        progressive=progressive_figures(shown),
        traffic=traffic_figures(shown),
        losses=loss_figures(shown),
        statistics=statistics_tables(shown),
        gain=gain_figure(shown),
        lift=lift_rows(shown),
        lift_shares=lift_shares(),
        health=health_tables(shown),
        calibration=calibration_figures(shown),
        slices=slice_tables(shown),
        query_size=query_size_figure(shown),
        histograms=histogram_figures(shown),
        weights=weight_tables(shown),
    )


def _compare(first: ShownRun, other: ShownRun) -> _Compared:
    try:
        comparison = compare_read_runs(first.run, other.run)
    except NotComparableError as error:
        return _Compared(other, None, [], str(error))
    return _Compared(other, comparison, _compared_metrics(comparison), "")


def _compared_metrics(comparison: RunComparison) -> list[dict[str, Any]]:
    rows = []
    for name, row in comparison.metrics.to_dict("index").items():
        metric = str(name)
        low, high, difference = row["ci95_low"], row["ci95_high"], row["difference"]
        decimals = display.decimals_for(low, high)
        rows.append(
            {
                "title": display.METRIC_TITLES[metric],
                "first": display.fixed(row["a"], decimals),
                "second": display.fixed(row["b"], decimals),
                "difference": display.fixed(difference, decimals, signed=True),
                "interval": display.interval(low, high, decimals, signed=True),
                "relative": display.fixed(row["relative_percent"], 2, signed=True),
                "verdict": row["verdict"],
                "no_interval": row["no_interval"],
                "sign": _VERDICT_SIGNS[row["verdict"]],
                "bar": _bar(low, difference, high),
            }
        )
    return rows


def _bar(*ends: float) -> tuple[float, ...] | None:
    """Low end, difference and high end on a scale from 0 to 120, whose middle is a difference of 0."""
    longest = max(map(abs, ends))
    if not 0 < longest < math.inf:
        return None
    return tuple(round(_BAR_MIDDLE + _BAR_HALF * end / longest, 1) for end in ends)


def _subject(runs: Sequence[ShownRun]) -> str:
    """Words for what the runs predict, and of which table; empty where that is not known or not the same."""
    subjects = {shown.subject for shown in runs}
    return f"Prediction of {text}" if len(subjects) == 1 and (text := str(next(iter(subjects)))) else ""


def _period(runs: Sequence[ShownRun]) -> str:
    """Range of event times of the windows; empty when their times do not spread them out."""
    windows = pd.concat([shown.windows for shown in runs])
    if windows.empty or not uses_event_time([shown.windows for shown in runs]):
        return ""
    times = pd.to_datetime([windows["window_begin"].min(), windows["window_end"].max()], unit="us")
    return " to ".join(f"{time:%Y-%m-%d %H:%M}" for time in times) + " UTC"
