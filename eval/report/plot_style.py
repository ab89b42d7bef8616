"""Style of all plots, and their conversion to SVG that stands inside a page.

Colors are those of a light page here, and become variables of the page's style, so that it may be dark. What
belongs to a run carries its number (`of_run`), by which the page's script hides it. The same data give the
same bytes.
"""

import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#333333")
"""Of Okabe and Ito, which people with any kind of color vision can distinguish."""
DARK_COLORS = ("#4db1ee", "#ff8b4a", "#2fc99a", "#e79ccb", "#9ad6f7", "#ffc24d", "#d5dae0")
MARKERS = ("o", "s", "^", "D", "v", "P")  # fewer than the colors: the first 42 runs all look different
DASHES = ((), (5.0, 2.0), (1.5, 1.5), (6.0, 2.0, 1.5, 2.0))
"""Strokes and gaps of lines without markers: the first 28 look different."""

INK = "#1f2933"
QUIET = "#8a94a0"
OTHER = "#7b8794"
"""Color of what belongs to no run, or to the class of examples that is not the plot's subject."""
_GRID = "#e4e7eb"
_VARIABLES = {
    **{color.lower(): f"var(--run-{index})" for index, color in enumerate(COLORS)},
    INK: "var(--ink)",
    QUIET: "var(--plot-quiet)",
    OTHER: "var(--plot-other)",
    _GRID: "var(--plot-grid)",
    "#ffffff": "var(--page)",
}
STYLE: dict[Any, Any] = {
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
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ctr",
}


def color_of(index: int) -> str:
    """Color of a run, or of another series."""
    return COLORS[index % len(COLORS)]


def marker_of(index: int) -> str:
    """Marker of a run, or of another series."""
    return MARKERS[index % len(MARKERS)]


def new_figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """Makes a figure of that many inches, and its axes."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


@dataclass
class Hover:
    """Texts of the points of a plot, for whoever points at them."""

    near: bool = False  # only the point nearest to the pointer is meant, not one of every series
    series: list[tuple[int, Axes, Any, Any, Sequence[str], Sequence[str]]] = field(default_factory=list)

    def add(
        self,
        run: int,
        axes: Axes,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        heads: Sequence[str],
        texts: Sequence[str],
    ) -> None:
        """Adds a series; points that are not finite are left out."""
        self.series.append((run, axes, x, y, heads, texts))

    def has_course(self) -> bool:
        """Tells whether there are two points at least, of one series where each is a line: less is no plot."""
        counts = [int(np.isfinite(np.asarray(one[3], np.float64)).sum()) for one in self.series]
        return (sum(counts) if self.near else max(counts, default=0)) > 1

    def as_json(self, height: float) -> str:
        """JSON with places in points from the upper left corner of an image of that height."""
        series = []
        for run, axes, x, y, heads, texts in self.series:
            along = np.asarray(axes.convert_xunits(x), np.float64)  # type: ignore[no-untyped-call]
            places = axes.transData.transform(np.column_stack([along, np.asarray(y, np.float64)]))
            points = [
                [round(float(place[0]), 1), round(height - float(place[1]), 1), head, text]
                for place, head, text in zip(places, heads, texts, strict=True)
                if np.isfinite(place).all()
            ]
            series.append([run, points])
        return json.dumps({"near": self.near, "series": series}, ensure_ascii=False, separators=(",", ":"))


def of_run(index: int, artists: Artist | Iterable[Any]) -> None:
    """Marks what belongs to a run, so that it can be hidden."""
    for artist in [artists] if isinstance(artists, Artist) else artists:
        if isinstance(artist, Artist):
            artist.set_gid(f"run-{index}")
        elif artist is not None:
            of_run(index, artist)


def to_svg(figure: Figure, hover: Hover | None = None) -> str:
    """Converts a figure to an SVG element, its text as text; empty where it shows no more than one point."""
    if hover is not None and not hover.has_course():
        return ""
    stream = io.StringIO()
    # As points, which the image is measured in.
    figure.set_dpi(72)
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
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
    svg = re.sub(r' id="([^"]*)"', lambda match: _without_id(match, referred), svg)
    if hover is not None:
        hover_json = quoteattr(hover.as_json(72 * float(figure.get_size_inches()[1])))
        svg = svg.replace("<svg ", f"<svg data-hover={hover_json} ", 1)
    return svg


def _without_id(match: re.Match[str], referred: set[str]) -> str:
    """Keeps an id to which something refers; of others the number of a run, or nothing."""
    if match[1] in referred:
        return match[0]
    run = re.fullmatch(r"run-(\d+)", match[1])
    return "" if run is None else f' data-run="{run[1]}"'


def thousands() -> FuncFormatter:
    """Ticks with thousands parted, with as many decimals as they have up to two."""
    return FuncFormatter(lambda value, _: f"{value:,.2f}".rstrip("0").rstrip("."))
