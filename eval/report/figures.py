"""Figures of a page as SVG. The same numbers give the same bytes.

Colors become CSS variables, so that a page has a dark mode. A run's index selects its color and marker.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.dates import HOURLY, MINUTELY, MONTHLY, SECONDLY, AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from ctr.eval.arrays import FloatArray
from ctr.eval.display import Number

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#333333")
"""Palette of Okabe and Ito, which people with any kind of color vision can distinguish."""
DARK_COLORS = ("#4db1ee", "#ff8b4a", "#2fc99a", "#e79ccb", "#9ad6f7", "#ffc24d", "#d5dae0")
SIGNS, MARKERS = "●■▲◆▼✚", ("o", "s", "^", "D", "v", "P")
INK, QUIET, GRID = "#1f2933", "#8a94a0", "#e4e7eb"

_VARIABLES = {
    **{color.lower(): f"var(--run-{index})" for index, color in enumerate(COLORS)},
    INK: "var(--ink)",
    QUIET: "var(--plot-quiet)",
    GRID: "var(--line)",
}
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "svg.fonttype": "none",
}
_WIDTH, _HEIGHT = 4.3, 2.6
_LONGEST_NAME = 24


class Figure(NamedTuple):
    """A figure with a title and a note."""

    title: str
    note: str
    svg: Markup


class Line(NamedTuple):
    """A line: values at positions ``x``, with the ends of their intervals, drawn as a band."""

    x: npt.NDArray[Any]
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    look: int = 0
    color: str = ""  # instead of the color of `look`
    label: str = ""


class Point(NamedTuple):
    """A point of a scatter plot with its name, and with the ends of its intervals if there are any."""

    name: str
    x: Number
    y: Number


def color_of(look: int) -> str:
    """Returns the color of a run by its index."""
    return COLORS[look % len(COLORS)]


def draw(
    title: str, note: str, alt: str, fill: Callable[[Axes], None], size: tuple[float, float] = (_WIDTH, _HEIGHT),
    left: float = 0.62, bottom: float = 0.45,
) -> Figure:  # fmt: skip
    """Draws a figure; margins are in inches, ``alt`` describes it in words."""
    width, height = size
    # No two figures of a page share an id.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"{title}\0{alt}"}):
        plot = Plot(figsize=size, dpi=72)
        frame = left / width, bottom / height, 1 - (left + 0.2) / width, 1 - (bottom + 0.12) / height
        fill(plot.add_axes(frame))
        stream = io.StringIO()
        plot.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    # The page that contains the figure sets the fonts.
    svg = re.sub(r"; font-family: [^;\"]*", "", stream.getvalue())
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"\s*<(metadata|style)\b.*?</\1>|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r"(fill|stroke): (#[0-9a-f]{6})",
        lambda match: f"{match[1]}: {_VARIABLES.get(match[2], match[2])}",
        svg,
    )
    referred = set(re.findall(r"#([A-Za-z0-9_.\-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referred else "", svg)
    attributes = f'class="plot" role="img" aria-label="{escape(alt)}" '
    return Figure(title, note, Markup(svg.replace("<svg ", f"<svg {attributes}", 1)))


def courses(
    title: str,
    lines: Sequence[Line],
    *,
    level: float | None = None,
    note: str = "",
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Figure | None:
    """Draws lines of a metric over time, or over examples; returns None if no line has two points.

    The y axis covers the values and the inner half of their bands, except unusually wide ones, clipped to `within`;
    ``level`` is a reference line, drawn if it is near.
    """
    drawn = [line for line in lines if np.isfinite(line.y).sum() > 1]
    if not drawn:
        return None
    framed = [line.y for line in drawn]
    for line in drawn:
        if line.low is not None and line.high is not None:
            framed += [(line.y + end) / 2 for end in _usual_ends(line.y, line.low, line.high, 2.0)]
    values = np.concatenate(framed)
    values = np.clip(values[np.isfinite(values)], *within)
    is_time = drawn[0].x.dtype.kind == "M"

    def fill(axes: Axes) -> None:
        for line in drawn:
            color = line.color or color_of(line.look)
            if line.low is not None and line.high is not None:
                band = 0.2 / math.sqrt(len(drawn))
                axes.fill_between(line.x, line.low, line.high, color=color, alpha=band, linewidth=0)
            marker = MARKERS[line.look % len(MARKERS)] if len(line.x) <= 40 else None
            axes.plot(line.x, line.y, color=color, label=line.label or None, marker=marker, markersize=3)
        axes.set_ylim(*_frame(values, level))
        low, high = axes.get_ylim()
        if level is not None and low <= level <= high:
            axes.axhline(level, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        if is_time:
            _set_times(axes)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.12g}"))
            axes.set_xlabel("examples")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if any(line.label for line in drawn):
            axes.legend(loc="best", ncols=3 if len(drawn) > 3 else 1)

    ends = "; ".join(f"from {line.y[np.isfinite(line.y)][0]:.4g} to {line.y[np.isfinite(line.y)][-1]:.4g}"
                     for line in drawn[:6])  # fmt: skip
    return draw(title, note, f"{title} over the pass: {ends}.", fill)


def by_name(
    title: str,
    runs: Sequence[Mapping[str, Number]],
    names: Sequence[str],
    *,
    level: float = 0.0,
    note: str = "",
) -> Figure:
    """Draws named numbers, such as feature importances: a row per name, a point per run, a line at ``level``.

    The axis covers the values and their intervals, except unusually wide ones.
    """
    labels = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
    beside = min(0.7 / len(runs), 0.25)

    def fill(axes: Axes) -> None:
        framed = [np.array([level])]
        for look, numbers in enumerate(runs):
            y = np.array([index for index, name in enumerate(names) if name in numbers])
            x, low, high = (
                np.array([getattr(numbers[names[index]], end) for index in y], np.float64)
                for end in ("value", "low", "high")
            )
            _draw_points(axes, x, y + (look - (len(runs) - 1) / 2) * beside, look, x_ends=(low, high))
            framed += [x, *_usual_ends(x, low, high, 3.0)]
        values = np.concatenate(framed)
        axes.set_xlim(*_frame(values[np.isfinite(values)], level))
        axes.axvline(level, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yticks(np.arange(len(names)), labels)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4))

    left = 0.2 + 0.08 * max(map(len, labels))
    first = ", ".join(names[:3])
    return draw(
        title, note, f"{title}; the first: {first}.", fill, (_WIDTH, 0.55 + 0.24 * len(names)), left, 0.3
    )


def plane(title: str, lines: Sequence[Sequence[Point]], labels: tuple[str, str], *, note: str = "") -> Figure:
    """Draws a scatter plot, such as accuracy over cost; a line joins the points of each arm, in the given order."""

    def fill(axes: Axes) -> None:
        for look, points in enumerate(lines):
            ends = [
                [np.array([getattr(of, end) for of in side], np.float64) for end in ("value", "low", "high")]
                for side in ([point.x for point in points], [point.y for point in points])
            ]
            (x, *x_ends), (y, *y_ends) = ends
            axes.plot(x, y, color=color_of(look), linewidth=1, alpha=0.6)
            _draw_points(axes, x, y, look, x_ends=(x_ends[0], x_ends[1]), y_ends=(y_ends[0], y_ends[1]))
            for point, at in zip(points, zip(x, y, strict=True), strict=True):
                axes.annotate(
                    point.name, at, (5, 4), textcoords="offset points", fontsize=8, color=color_of(look)
                )
        axes.axhline(0, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.margins(0.12, 0.12)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6))

    coordinates = "; ".join(
        f"{point.x.value:.4g}, {point.y.value:.4g}" for points in lines for point in points
    )
    return draw(title, note, f"{title}: {coordinates}.", fill, (5.2, 3.4), 0.75)


def _draw_points(
    axes: Axes, x: npt.NDArray[Any], y: npt.NDArray[Any], look: int,
    x_ends: tuple[FloatArray, FloatArray] | None = None, y_ends: tuple[FloatArray, FloatArray] | None = None,
) -> None:  # fmt: skip
    axes.errorbar(
        x, y, color=color_of(look), marker=MARKERS[look % len(MARKERS)], markersize=4.5, linestyle="none",
        xerr=None if x_ends is None else _margins(x, *x_ends), elinewidth=1.1,
        yerr=None if y_ends is None else _margins(y, *y_ends),
    )  # fmt: skip


def _margins(values: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    return np.maximum(np.nan_to_num(np.stack([values - low, high - values])), 0.0)


def _usual_ends(y: FloatArray, low: FloatArray, high: FloatArray, most: float) -> list[FloatArray]:
    """Returns the ends of intervals; an interval wider than `most` times the median width shrinks to its value."""
    width = high - low
    usual = width <= most * np.nanmedian(width) if np.isfinite(width).any() else np.zeros(len(y), np.bool_)
    return [np.where(usual, end, y) for end in (low, high)]


def _frame(values: FloatArray, level: float | None) -> tuple[float, float]:
    """Returns axis limits that contain the values, and the level if it lies near them."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = 0.1 * (high - low) or 0.01 * max(abs(high), 0.01)
    if level is not None and low - 3 * margin <= level <= high + 3 * margin:
        low, high = min(low, level), max(high, level)
    return low - margin, high + margin


def _set_times(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
    # With these some interval fits any stretch of time, such as one of 160 minutes.
    for unit, interval in ((MONTHLY, 12), (HOURLY, 24), (MINUTELY, 60), (SECONDLY, 60)):
        locator.intervald[unit].append(interval)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
