"""Metrics, their paired differences and the terms of the loss over time."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctr.eval import display
from ctr.eval.arrays import FloatArray
from ctr.eval.intervals import difference
from ctr.eval.report.figures import along_pass, figure
from ctr.eval.report.plot_style import STYLE, Hover, color_of, new_figure, of_run, to_svg
from ctr.eval.report.shown_run import ShownRun
from ctr.eval.run_files import LOSS_TERMS, METRICS

_BASELINES = {"calibration_bias": 0.0, "normalized_entropy": 1.0}
_SUMMED_BY = {"per_query_auc": "queries_scored", "logloss": "weight_sum", "calibration_bias": "weight_sum"}
"""Metrics whose value over several windows is the mean of theirs, and its weights."""
_PAIRED = {
    "per_query_auc": "PerQueryAUC",
    "logloss": "logloss",
    "calibration_ratio": "predicted / actual clicks",
}


def progressive_figures(runs: Sequence[ShownRun]) -> list[figure.ReportFigure]:
    """Figures of each metric over time."""
    windows = [shown.windows for shown in runs]
    figures = []
    for metric in METRICS:
        title = display.METRIC_TITLES[metric]
        figures.append(
            figure.figure_of(
                title,
                progressive_metric(windows, metric),
                f"{title} of each window over time. {along_pass.describe_courses(runs, metric, 4)}",
                note="dashed: cumulative" if has_running_mean(metric) else "",
            )
        )
    return figures


def has_running_mean(metric: str) -> bool:
    """Tells whether `progressive_metric` also draws the value of all windows so far."""
    return metric in _SUMMED_BY


def progressive_metric(windows: Sequence[pd.DataFrame], metric: str) -> str:
    """Plots a metric of each window over time, with its interval as a band.

    ``windows``: for each run those of `ctr.eval.run_files.read_windows`.
    """
    with matplotlib.rc_context(STYLE):
        plot, axes = new_figure(figure.FIGURE_SIZE)
        hover = Hover()
        by_time = along_pass.uses_event_time(windows)
        shown = []
        for index, table in enumerate(windows):
            x = along_pass.positions(table, by_time)
            y = table[metric].to_numpy()
            low, high = table[f"{metric}_low"].to_numpy(), table[f"{metric}_high"].to_numpy()
            hover.add(
                index, axes, x, y, along_pass.heads_of(table, by_time), figure.interval_texts(y, low, high)
            )
            if len(table) == 1:
                figure.draw_bars(axes, x, y, low, high, index)
            else:
                alpha = min(0.15, 0.5 / len(windows))
                figure.draw_band(axes, x, low, high, index, alpha)
                figure.draw_line(axes, x, y, index)
                if has_running_mean(metric):
                    mean = _running_mean(y, table[_SUMMED_BY[metric]].to_numpy())
                    color = color_of(index)
                    of_run(index, axes.plot(x, mean, color=color, linestyle=(0, (5, 2)), linewidth=1))
            # Windows with few examples, and the outer half of the bands, may lie outside the frame.
            full = table["window_examples"].to_numpy() >= table["window_examples"].median() / 4
            inner = (y + low) / 2, (y + high) / 2
            shown += [y[full], *(bound[full] for bound in (inner if len(table) > 1 else (low, high)))]
        figure.frame_values(axes, np.concatenate(shown), _BASELINES.get(metric))
        along_pass.frame_pass(axes, windows, by_time)
        return to_svg(plot, hover)


def _running_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    known = np.isfinite(values) & np.isfinite(weights)
    weights = np.where(known, weights, 0.0)
    total = np.cumsum(weights)
    mean: FloatArray = np.full(len(values), np.nan)
    np.divide(np.cumsum(weights * np.where(known, values, 0.0)), total, out=mean, where=total > 0)
    return mean


def loss_figures(runs: Sequence[ShownRun]) -> list[figure.ReportFigure]:
    """Terms of the loss over time, for each run whose loss has several."""
    figures = []
    for shown in runs:
        terms = {name: title for name, title in LOSS_TERMS.items() if shown.windows[name].notna().any()}
        if len(terms) > 1:
            ends = ", ".join(
                f"{title} {display.fixed(shown.windows[name].dropna().iloc[-1], 4)}"
                for name, title in terms.items()
            )
            figures.append(
                figure.figure_of(
                    "terms of the loss",
                    loss_terms(shown.windows, terms, shown.index),
                    f"Terms of the loss of {shown.name} over time. In the last window: {ends}.",
                    shown,
                )
            )
    return figures


def loss_terms(table: pd.DataFrame, terms: Mapping[str, str], run: int) -> str:
    """Plots what each term contributed to the loss of the steps in each window of a run."""
    lines = []
    for place, (column, title) in enumerate(terms.items()):
        y = table[column].to_numpy()
        lines.append(
            along_pass.Lines(place, [y], [f"{title} {display.fixed(value, 4)}" for value in y], title)
        )

    def dress(axes: Axes) -> None:
        axes.legend(loc="best", fontsize=8.5)
        axes.set_ylabel("loss, nats per example")

    return along_pass.lines_over_time(table, lines, run, dress)


def paired_figures(runs: Sequence[ShownRun]) -> list[figure.ReportFigure]:
    """Paired difference from the first run over time, for the runs that scored the same examples."""
    first = runs[0].timeline
    others = [(shown, shown.timeline) for shown in runs[1:] if len(first) and shown.timeline.matches(first)]
    if not others:
        return []
    figures = []
    for metric, title in _PAIRED.items():
        courses, words = [], []
        for shown, own in others:
            window = difference(first.estimate(metric), own.estimate(metric))
            so_far = difference(
                first.estimate(metric, cumulative=True), own.estimate(metric, cumulative=True)
            )
            low, high = so_far.interval()
            courses.append((shown.index, own, (window.point, *window.interval()), (so_far.point, low, high)))
            text = display.with_margin(so_far.point[-1], low[-1], high[-1], signed=True)
            words.append(f"{shown.name}: {text} over all windows.")
        figures.append(
            figure.figure_of(
                title[0].upper() + title[1:],
                along_pass.over_time(courses, "difference", 0.0, signed=True),
                f"Paired difference in {title} from {runs[0].name} over time. {' '.join(words)}",
                note="run minus baseline",
            )
        )
    return figures
