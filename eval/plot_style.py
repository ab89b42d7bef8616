"""How every plot looks, and how it becomes SVG.

The same data give the same bytes.
"""

import io
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#333333")
"""Of Okabe and Ito, which people with any kind of colour vision tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Fewer than the colours: the first 42 runs all look different."""
DASHES = ((), (5.0, 2.0), (1.5, 1.5), (6.0, 2.0, 1.5, 2.0))
"""Strokes and gaps of lines without markers: the first 28 look different."""

INK = "#1f2933"
QUIET = "#8a94a0"
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ctr",
}
_FONTS = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def new_figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure of that many inches, and its axes."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def to_svg(figure: Figure) -> str:
    """The figure as SVG, its text as text."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", dpi=160, metadata={"Date": None, "Creator": None})
    families = ", ".join(
        name if name in ("sans-serif", "serif", "cursive", "fantasy", "monospace") else f"'{name}'"
        for name in matplotlib.rcParams["font.sans-serif"]
    )
    return stream.getvalue().replace(families, _FONTS)


def thousands() -> FuncFormatter:
    """Numbers at ticks with thousands parted."""
    return FuncFormatter(lambda value, _: f"{value:,.0f}")
