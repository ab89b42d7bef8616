"""Figures of a report: a plot and its words."""

import hashlib
import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from ctr.eval.report.plot_style import COLORS
from ctr.eval.report.shown_run import ShownRun


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
