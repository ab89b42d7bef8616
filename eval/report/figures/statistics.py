"""Singular values of Shampoo's statistics over time (PSO fig. 7), and their condition numbers (PSO fig. 6)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from ctr.eval.arrays import FloatArray
from ctr.eval.report.figures.along_pass import Lines, lines_over_time
from ctr.eval.report.figures.figure import ReportFigure, figure_of, line_look, style_color
from ctr.eval.report.plot_style import COLORS
from ctr.eval.report.shown_run import ShownRun

MOST_WEIGHTS = len(COLORS)
"""As many lines as have colors of their own: dashes tell the smallest values from the largest."""


@dataclass(frozen=True)
class StatisticsTable:
    """Spectra of the statistics of a run: their plot, and its weights with the values at the end of the pass."""

    run: ShownRun
    figure: ReportFigure
    rows: list[tuple[str, str, list[str]]]  # weight, color of its lines, and smallest, largest and condition
    weights: int  # how many the run has


def statistics_tables(runs: Sequence[ShownRun]) -> list[StatisticsTable]:
    """Plots of the runs that have spectra, of the weights whose statistics have the largest condition at the end."""
    tables = []
    for shown in runs:
        known = {name: course[_is_known(course)] for name, course in shown.spectra.items()}
        ends = {name: course[-1] for name, course in known.items() if len(course)}
        if ends:
            tables.append(_table(shown, ends))
    return tables


def _is_known(course: FloatArray) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = np.isfinite(course).all(axis=1) & (course[:, 1] > 0)
    return known


def _table(shown: ShownRun, ends: dict[str, FloatArray]) -> StatisticsTable:
    chosen = sorted(ends, key=lambda name: -ends[name][2])[:MOST_WEIGHTS]
    rows = [
        (name, style_color(line_look(place)[0]), [f"{value:.3g}" for value in ends[name]])
        for place, name in enumerate(chosen)
    ]
    words = " ".join(
        f"{name}: {low} to {high}, condition {condition}." for name, _, (low, high, condition) in rows
    )
    figure = figure_of(
        "Singular values of the statistics",
        singular_values(shown.windows, {name: shown.spectra[name] for name in chosen}, shown.index),
        f"Smallest (dashed) and largest (solid) singular values of Shampoo's statistics over time. At the end: {words}",
        shown,
        note="dashed: smallest; solid: largest",
    )
    return StatisticsTable(shown, figure, rows, len(ends))


def singular_values(table: pd.DataFrame, spectra: dict[str, FloatArray], run: int) -> str:
    """Plots the smallest and the largest singular values of each weight over time, on a logarithmic axis.

    ``spectra``: for each weight, up to `MOST_WEIGHTS`, columns smallest and largest of each window, [W, 3]; what is
    not finite and above 0 is not drawn.
    """
    lines = []
    for place, (name, course) in enumerate(spectra.items()):
        drawn = np.where(np.isfinite(course) & (course > 0), course, np.nan)
        for kind, title, values in ((0, "largest", drawn[:, 1]), (1, "smallest", drawn[:, 0])):
            # In the color of the weight, the smallest dashed.
            look = place + kind * len(COLORS)
            lines.append(Lines(look, [values], [f"{name} {title} {value:.3g}" for value in values]))
    return lines_over_time(table, lines, run, _dress)


def _dress(axes: Axes) -> None:
    axes.set_yscale("log")
    # Not the default, whose powers of 10 need typesetting.
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.set_ylabel("singular value")
