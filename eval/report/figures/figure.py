"""Figures of a report, their words, and the lines, bands and bars of runs in their plots.

Runs are told apart by color and marker (`COLORS`, `MARKERS`, in the order of the runs), which the page
around explains: no text of a run's files is drawn.
"""

import hashlib
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ctr.eval import display
from ctr.eval.arrays import FloatArray
from ctr.eval.report.plot_style import COLORS, DASHES, QUIET, color_of, marker_of, of_run
from ctr.eval.report.shown_run import ShownRun

FIGURE_SIZE = (4.9, 2.7)
_FEW_WINDOWS = 40


def line_look(index: int) -> tuple[str, tuple[float, ...]]:
    """Color, and strokes and gaps, of a line among several of one run."""
    return color_of(index), DASHES[index // len(COLORS) % len(DASHES)]


def draw_band(
    axes: Axes, x: npt.NDArray[np.generic], low: FloatArray, high: FloatArray, index: int, alpha: float
) -> None:
    """Draws the band between the ends of a run's intervals."""
    color = color_of(index)
    of_run(index, axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0))


def draw_line(axes: Axes, x: npt.NDArray[np.generic], y: FloatArray, index: int) -> None:
    """Draws the line of a run, with its markers where there are few points."""
    lines = axes.plot(
        x,
        y,
        color=color_of(index),
        marker=marker_of(index) if len(x) <= _FEW_WINDOWS else None,
        markersize=3.5,
        linewidth=1.4,
    )
    of_run(index, lines)


def draw_bars(
    axes: Axes, x: npt.NDArray[np.generic], y: FloatArray, low: FloatArray, high: FloatArray, index: int
) -> None:
    """Draws the points of a run with the bars of their intervals."""
    margins = np.nan_to_num(np.stack([y - low, high - y]))
    container = axes.errorbar(
        x,
        y,
        yerr=np.maximum(margins, 0.0),
        color=color_of(index),
        marker=marker_of(index),
        markersize=4.5,
        linestyle="none",
        elinewidth=1.2,
        capsize=2.5,
    )
    of_run(index, container.lines)


def frame_values(axes: Axes, values: FloatArray, baseline: float | None) -> None:
    """Frames `values`, and `baseline` where it lies near them."""
    values = values[np.isfinite(values)]
    if not len(values):
        axes.text(0.5, 0.5, "undefined in every window", transform=axes.transAxes, ha="center", color=QUIET)
        axes.set_yticks([])
        return
    low, high = float(values.min()), float(values.max())
    margin = 0.1 * (high - low) or 0.01 * max(abs(high), 0.01)
    if baseline is not None and low - 3 * margin <= baseline <= high + 3 * margin:
        low, high = min(low, baseline), max(high, baseline)
        axes.axhline(baseline, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
    axes.set_ylim(low - margin, high + margin)


def interval_texts(y: FloatArray, low: FloatArray, high: FloatArray, *, signed: bool = False) -> list[str]:
    """Values with the half-widths of their intervals, as text."""
    return [
        display.with_margin(float(value), float(one), float(other), signed=signed)
        for value, one, other in zip(y, low, high, strict=True)
    ]


def percent_ticks() -> FuncFormatter:
    """Formats shares as percentages."""
    return FuncFormatter(lambda value, _: f"{100 * value:.3g}%")


@dataclass(frozen=True)
class ReportFigure:
    """A plot with its words."""

    title: str  # short enough for one line
    svg: Markup  # element of the page; empty where there are fewer than two points to draw
    alt: str  # what is to be seen in it, for those who do not see it
    run: ShownRun | None = None  # the run it is about, if it is about one alone
    note: str = ""  # what else is to be said of the title


def figure_of(title: str, svg: str, alt: str, run: ShownRun | None = None, *, note: str = "") -> ReportFigure:
    """Makes a figure of a plot given as an SVG element, with its words as in `ReportFigure`."""
    # An element of a page may refer to parts of another one that have the same id.
    prefix = hashlib.sha256(f"{title}\0{alt}\0{svg}".encode()).hexdigest()[:8]
    svg = re.sub(r'(\sid="|\shref="#|:href="#|url\(#)', rf"\g<1>p{prefix}-", svg)
    words = f'class="plot" role="img" aria-label="{escape(alt)}" '
    return ReportFigure(title, Markup(svg.replace("<svg ", f"<svg {words}", 1)), alt, run, note)


def style_color(color: str) -> str:
    """Variable of the page's style for one of `COLORS`."""
    return f"var(--run-{COLORS.index(color)})"
