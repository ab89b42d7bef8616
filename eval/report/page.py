"""The page of a report: one HTML file, offline and without a script, from text, tables and figures.

All text is escaped: names come from untrusted logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ctr.eval.report.figures import COLORS, DARK_COLORS, SIGNS, Figure

Table = tuple[str, pd.DataFrame]
"""A caption, and cells of text; the first column names the rows."""

_MARK = b'<meta name="generator" content="ctr">'
_MARKED_WITHIN = 1 << 16


@dataclass(frozen=True)
class Section:
    """A section of a page, its parts in this order; ``folded`` texts and tables, with titles, are collapsed."""

    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[tuple[str, str | pd.DataFrame]] = ()


@dataclass(frozen=True)
class PageContext:
    """Content of a page; ``verdict`` comes first, ``marks`` are runs or arms in the order of their colors."""

    title: str
    lead: Sequence[str]
    verdict: Sequence[str]
    warnings: Sequence[str]
    sections: Sequence[Section]
    marks: Sequence[str] = ()


def render_page(context: PageContext) -> str:
    """Renders a page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbered = enumerate(context.marks)
    marks = {name: (index % len(COLORS), SIGNS[index % len(SIGNS)]) for index, name in numbered}
    colors = {"colors": COLORS, "dark_colors": DARK_COLORS}
    return environment.get_template("page.html.j2").render({**vars(context), "marks": marks, **colors})


def is_page(path: Path) -> bool:
    """Returns whether a file is a page written by `render_page`."""
    with path.open("rb") as file:
        start = file.read(_MARKED_WITHIN)
    return start[:15].lower() == b"<!doctype html>" and _MARK in start
