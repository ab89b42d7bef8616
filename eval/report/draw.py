"""Figures as SVG that stands inside a page. The same figure gives the same bytes.

Colors are those of a light page here, and become variables of the page's style, so that it may be dark. What
belongs to a run carries its number, by which the page's script hides it. Runs are told apart by color and marker,
which the page around explains.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import FuncFormatter

from ctr.eval.arrays import FloatArray
from ctr.eval.report.page import COLORS, INK, OTHER, QUIET, Axis, Figure, Panel, Series, color_of

MARKERS = ("o", "s", "^", "D", "v", "P")  # those of `page.SIGNS`
_GRID = "#e4e7eb"
_VARIABLES = {
    **{color.lower(): f"var(--run-{index})" for index, color in enumerate(COLORS)},
    INK: "var(--ink)",
    QUIET: "var(--plot-quiet)",
    OTHER: "var(--plot-other)",
    _GRID: "var(--plot-grid)",
    "#ffffff": "var(--page)",
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
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "ctr",
}
_FEW_POINTS = 40  # of a line with markers
_DATES = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%S.%f"]
_DATES_BESIDE = ["", "%Y", "%Y", "%d %b %Y", "%d %b %Y", "%d %b %Y %H:%M"]
"""Formats of ticks of years, months, ..., seconds, and of what stands once beside the axis."""
_ARROW: dict[str, Any] = {"arrowstyle": "-|>", "color": QUIET, "linewidth": 0.8, "shrinkA": 5, "shrinkB": 5}


def thousands(value: float, _: int = 0) -> str:
    """Tick with thousands parted, with as many decimals as it has up to two."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


_FORMATS: dict[str, Any] = {
    "thousands": thousands,
    "percent": lambda value, _: f"{100 * value:.3g}%",
    "short": lambda value, _: f"{value:.3g}",
}


def draw(figure: Figure) -> Markup:
    """Draws a figure as an SVG element, its text as text; empty where it is not drawn."""
    if not figure.is_drawn:
        return Markup()
    with matplotlib.rc_context(_STYLE):
        plot = Plot(figsize=figure.size, layout="constrained")
        if figure.heights:
            rows: dict[str, Any] = {"sharex": True, "height_ratios": figure.heights}
            every = plot.subplots(len(figure.panels), 1, squeeze=False, **rows)[:, 0]
        else:
            every = plot.subplots(1, len(figure.panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(every, figure.panels, strict=True):
            _draw_panel(axes, panel)
        for axes in every[:-1] if figure.heights else ():
            axes.tick_params(bottom=False)
            every[-1].yaxis.get_major_locator().set_params(nbins=3)
        # As points, which the image is measured in.
        plot.set_dpi(72)
        if any(one.name for panel in figure.panels for one in panel.series):
            # Once laid out, the axes stay where the names were fitted.
            plot.draw_without_rendering()
            for axes, panel in zip(every, figure.panels, strict=True):
                _write_names(axes, panel.series)
        svg = _plain_svg(plot)
    if figure.hovered:
        svg = svg.replace("<svg ", f"<svg data-hover={quoteattr(_hover(figure, every, plot))} ", 1)
    # An element of a page may refer to parts of another one that have the same id.
    prefix = hashlib.sha256(f"{figure.title}\0{figure.alt}\0{svg}".encode()).hexdigest()[:8]
    svg = re.sub(r'(\sid="|\shref="#|:href="#|url\(#)', rf"\g<1>p{prefix}-", svg)
    words = f'class="plot" role="img" aria-label="{escape(figure.alt)}" '
    return Markup(svg.replace("<svg ", f"<svg {words}", 1))


def _plain_svg(plot: Plot) -> str:
    stream = io.StringIO()
    plot.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    # The page around says which fonts.
    svg = re.sub(r"; font-family: [^;\"]*", "", stream.getvalue())
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # It would hold for the whole page, whose own style says the same.
    svg = re.sub(r"\s*<defs>\s*<style .*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(
        r"(fill|stroke): (#[0-9a-f]{6})",
        lambda match: f"{match[1]}: {_VARIABLES.get(match[2], match[2])}",
        svg,
    )
    referred = set(re.findall(r"#([A-Za-z0-9_.\-]+)", svg))
    return re.sub(r' id="([^"]*)"', lambda match: _without_id(match, referred), svg)


def _without_id(match: re.Match[str], referred: set[str]) -> str:
    """Keeps an id to which something refers; of others the number of a run, or nothing."""
    if match[1] in referred:
        return match[0]
    run = re.fullmatch(r"run-(\d+)", match[1])
    return "" if run is None else f' data-run="{run[1]}"'


def _hover(figure: Figure, every: Sequence[Axes], plot: Plot) -> str:
    """Texts of points as JSON, with places in points from the upper left corner of the image."""
    height = 72 * float(plot.get_size_inches()[1])
    series = []
    for place, one in figure.hovered:
        along = np.asarray(every[place].convert_xunits(one.x), np.float64)  # type: ignore[no-untyped-call]
        places = every[place].transData.transform(np.column_stack([along, np.asarray(one.y, np.float64)]))
        points = [
            [round(float(x), 1), round(height - float(y), 1), head, text]
            for (x, y), head, text in zip(places, one.heads, one.texts or (), strict=True)
            if np.isfinite([x, y]).all()
        ]
        series.append([one.run if one.hover is None else one.hover, points])
    return json.dumps({"near": figure.near, "series": series}, ensure_ascii=False, separators=(",", ":"))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for axis, line in ((panel.x, axes.axvline), (panel.y, axes.axhline)):
        if axis.level is not None and _limits_of(axis, axis.level)[1]:
            line(axis.level, color=QUIET, linestyle=(0, axis.level_dashes), linewidth=1)
    for one in panel.series:
        _draw_series(axes, one)
    for begin, end in panel.arrows:
        axes.annotate("", end, begin, arrowprops=_ARROW)
    _dress(axes, panel.x, "x")
    _dress(axes, panel.y, "y")
    if any(one.label for one in panel.series):
        axes.legend(loc=panel.legend, ncols=panel.legend_columns)


def _draw_series(axes: Axes, one: Series) -> None:
    color = one.color or color_of(one.style)
    marker = one.marker or MARKERS[one.style % len(MARKERS)]
    style: Any = (0, one.dashes) if one.dashes else "solid"
    drawn: list[Any] = []
    if one.kind == "steps":
        axes.stairs(one.y, one.x, fill=True, color=color, alpha=0.22)
        drawn += [axes.stairs(one.y, one.x, color=color, linewidth=one.width, label=one.label or None)]
    elif one.kind == "bars":
        drawn += [axes.bar(one.x, one.y, one.width, color=color, alpha=one.alpha)]
    elif one.kind == "points":
        drawn += axes.errorbar(
            one.x,
            one.y,
            xerr=None if one.x_span is None else _margins(one.x, *one.x_span),
            yerr=None if one.low is None else _margins(one.y, one.low, one.high),
            color=color,
            marker=marker,
            markersize=one.size,
            markerfacecolor="white" if one.hollow else color,
            linestyle=style if one.marked else "none",
            linewidth=1.2,
            elinewidth=1.2 if one.capped else 0.9,
            capsize=2.5 if one.capped else 0,
            alpha=one.alpha,
            label=one.label or None,
        ).lines
    else:
        if one.low is not None and one.high is not None:
            drawn += [axes.fill_between(one.x, one.low, one.high, color=color, alpha=one.band, linewidth=0)]
        drawn += axes.plot(
            one.x,
            one.y,
            color=color,
            marker=marker if one.marked and len(one.x) <= _FEW_POINTS else None,
            markersize=3.5,
            linestyle=style,
            linewidth=one.width,
            alpha=one.alpha,
            label=one.label or None,
        )
    if one.run is not None:
        _of_run(one.run, drawn)


def _margins(values: Any, low: Any, high: Any) -> FloatArray:
    middle = np.atleast_1d(np.asarray(values, np.float64))
    return np.maximum(np.nan_to_num(np.stack([middle - low, high - middle])), 0.0)


def _of_run(index: int, artists: Artist | Iterable[Any]) -> None:
    """Marks what belongs to a run, so that it can be hidden."""
    for artist in [artists] if isinstance(artists, Artist) else artists:
        if isinstance(artist, Artist):
            artist.set_gid(f"run-{index}")
        elif artist is not None:
            _of_run(index, artist)


def _limits_of(axis: Axis, level: float | None) -> tuple[tuple[float, float] | None, bool]:
    """Limits that frame an axis's values, None without any, and whether the level lies near them."""
    if axis.frame is None:
        return None, True
    values = axis.frame[np.isfinite(axis.frame)]
    if not len(values):
        return None, False
    low, high = float(values.min()), float(values.max())
    margin = 0.1 * (high - low) or 0.01 * max(abs(high), 0.01)
    is_near = level is not None and low - 3 * margin <= level <= high + 3 * margin
    if is_near and level is not None:
        low, high = min(low, level), max(high, level)
    return (low - margin, high + margin), is_near


def _dress(axes: Axes, axis: Axis, which: str) -> None:
    """Labels and frames an axis, ``x`` or ``y``, and sets its ticks."""
    own = axes.xaxis if which == "x" else axes.yaxis
    limit = axes.set_xlim if which == "x" else axes.set_ylim
    if axis.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    limits = axis.limits or _limits_of(axis, axis.level)[0]
    if limits is not None:
        limit(*limits)
    elif axis.frame is not None:
        axes.text(0.5, 0.5, "undefined in every window", transform=axes.transAxes, ha="center", color=QUIET)
        own.set_ticks([])
    if axis.bottom is not None:
        limit(axis.bottom)
    if axis.within is not None:
        low, high = own.get_view_interval()
        limit(max(low, axis.within[0]), min(high, axis.within[1]))
    if axis.ticks == "time":
        # With 3 and 8 some interval fits any stretch of time; with 4 none fits three and a half days.
        locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        own.set_major_locator(locator)
        own.set_major_formatter(
            ConciseDateFormatter(  # type: ignore[no-untyped-call]
                locator, formats=_DATES, offset_formats=_DATES_BESIDE
            )
        )
    elif axis.ticks:
        own.set_major_formatter(FuncFormatter(_FORMATS[axis.ticks]))
        own.set_minor_formatter("")
    if axis.places:
        own.set_ticks([place for place, _ in axis.places], [text for _, text in axis.places])
    if axis.names:
        _name_groups(axes, axis.names)
    if axis.label:
        own.set_label_text(axis.label)


def _name_groups(axes: Axes, groups: Sequence[str]) -> None:
    """Writes the names of the groups below the axis, turned where they are long."""
    crowded = sum(map(len, groups)) > 32
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(np.arange(len(groups)), list(groups), **turned)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.grid(False, axis="x")


def _write_names(axes: Axes, series: Sequence[Series]) -> None:
    """Writes a name beside each point, where it hides the fewest other names and points."""
    spots = [one for one in series if one.kind == "points"]
    places = [(float(one.x[0]), float(one.y[0])) for one in spots]
    points = axes.transData.transform(np.array(places))
    frame = axes.get_window_extent()
    # From the font's usual proportions: the text is laid out by whoever shows the picture.
    boxes = np.column_stack([points - 3, points + 3])
    for one, place, (x, y) in zip(spots, places, points, strict=True):
        if not one.name:
            continue
        size = np.array([4.1 * len(one.name), 8.5])
        tries = []
        for distance in (5, 10, 17, 26):
            for across, up in ((0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0)):
                low = np.array([x, y]) + np.array([across, up]) * distance
                low -= size * [(1 - across) / 2, 0.5]
                box = np.concatenate([low, low + size])
                outside = low[0] < frame.x0 or box[2] > frame.x1 or low[1] < frame.y0 or box[3] > frame.y1
                cost = _hidden(box, boxes) + 1e6 * outside + distance
                tries.append((cost, distance, across, up, box))
        _, distance, across, up, box = min(tries, key=lambda found: found[0])
        boxes = np.vstack([boxes, box])
        text = axes.annotate(
            one.name,
            place,
            (across * distance, up * distance),
            textcoords="offset points",
            ha={1: "left", 0: "center", -1: "right"}[across],
            va="center",
            fontsize=7.5,
            color=color_of(one.style),
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.4} if distance > 10 else None,
        )
        _of_run(one.style, text)


def _hidden(box: FloatArray, others: FloatArray) -> float:
    """Area that a box [4] (left, bottom, right, top) shares with others [N, 4]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    return float(np.prod(np.maximum(high - low, 0), axis=1).sum())
