"""What a page consists of: tables, figures and words. Nothing here is drawn or written yet.

A report is a function from results to a `Page`; `ctr.eval.report.html` turns a page into one file, and
`ctr.eval.report.draw` a figure into an image. Text is a string, or a tuple of strings and of parts in a style of
their own; all of it is escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#333333")
"""Of Okabe and Ito, which people with any kind of color vision can distinguish."""
DARK_COLORS = ("#4db1ee", "#ff8b4a", "#2fc99a", "#e79ccb", "#9ad6f7", "#ffc24d", "#d5dae0")
SIGNS = "●■▲◆▼✚"  # markers of plots as text; fewer than the colors: the first 42 runs all look different
DASHES = ((), (5.0, 2.0), (1.5, 1.5), (6.0, 2.0, 1.5, 2.0))
"""Strokes and gaps of lines without markers: the first 28 look different."""
INK = "#1f2933"
QUIET = "#8a94a0"
OTHER = "#7b8794"
"""Color of what belongs to no run, or to the class of examples that is not the plot's subject."""
SO_FAR = (5.0, 2.0)  # dashes of a course of all windows so far
LEVEL = (4.0, 3.0)  # dashes of a line to compare with


@dataclass(frozen=True)
class Mark:
    """A run, or another series, with its look in all plots: by its place, a color and a marker."""

    name: str
    index: int

    def __str__(self) -> str:
        return self.name

    def __html__(self) -> str:
        return Markup('<span class="run">{} {}</span>').format(self.colored_sign, self.name)

    @property
    def sign(self) -> str:
        return SIGNS[self.index % len(SIGNS)]

    @property
    def colored_sign(self) -> Markup:
        color = f"var(--run-{self.index % len(COLORS)})"
        return Markup('<span aria-hidden="true" style="color: {}">{}</span>').format(color, self.sign)


@dataclass(frozen=True)
class Part:
    """Words in a style: ``code``, ``strong``, ``small``, ``line`` (that of a run), or a class such as ``quiet``."""

    text: "Text"
    style: str
    run: Mark | None = None

    def __str__(self) -> str:
        return plain(self.text)

    def __html__(self) -> str:
        if self.run is not None:
            line = '<span class="line" data-run="{}">{} {}</span>'
            return Markup(line).format(self.run.index, self.run.colored_sign, markup(self.text))
        if self.style in ("code", "strong"):
            return Markup(f"<{self.style}>{{}}</{self.style}>").format(markup(self.text))
        tag, style = ("small", "quiet") if self.style == "small" else ("span", self.style)
        return Markup(f'<{tag} class="{{}}">{{}}</{tag}>').format(style, markup(self.text))


Text = str | Mark | Part | tuple["Text", ...]


def code(text: object) -> Part:
    """Words as they stand in a file or at a prompt."""
    return Part(str(text), "code")


def quiet(text: "Text") -> Part:
    """Words of less weight."""
    return Part(text, "quiet")


def markup(text: Text) -> Markup:
    """Text as HTML."""
    return Markup().join(map(markup, text)) if isinstance(text, tuple) else escape(text)


def plain(text: Text) -> str:
    """Text without its styles."""
    return "".join(map(plain, text)) if isinstance(text, tuple) else str(text)


@dataclass(frozen=True)
class Cell:
    """Content of a place in a table."""

    text: Text
    small: tuple[Text, ...] = ()  # lines below it
    verdict: str = ""  # better, worse, differs, ...: how it is colored
    sign: str = ""  # of the verdict, for the eye alone
    look: int | None = None  # of the line that stands before it
    # An interval from 0 to 120, and what it is of; 60 is no difference.
    bar: tuple[float, float, float] | None = None
    span: int = 1  # columns that it takes

    def __str__(self) -> str:
        return plain(self.text)


Row = Sequence[Cell | Text]


@dataclass(frozen=True)
class Column:
    """Head of a column."""

    head: Text
    words: bool = False  # rather than numbers
    width: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below columns; the first cell of a row says what it is of."""

    columns: Sequence[Column | Text]
    rows: Sequence[Row]
    caption: Text = ""
    layout: Literal["full", "fixed", "narrow"] = "full"

    @property
    def heads(self) -> list[Column]:
        return [one if isinstance(one, Column) else Column(one) for one in self.columns]

    @property
    def cells(self) -> list[list[Cell]]:
        return [[one if isinstance(one, Cell) else Cell(one) for one in row] for row in self.rows]

    def texts(self) -> list[list[str]]:
        """Heads and rows as plain text, what stands in small letters left out."""
        return [[plain(one.head) for one in self.heads], *([str(one) for one in row] for row in self.cells)]


def short(name: str, most: int = 12) -> str:
    """Name as it stands at an axis: printable, and cut where it is long; a table has it whole."""
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def color_of(index: int) -> str:
    """Color of a run, or of another series."""
    return COLORS[index % len(COLORS)]


def dashes_of(index: int) -> tuple[float, ...]:
    """Strokes and gaps of a line among several of one run, whose color is `color_of`."""
    return DASHES[index // len(COLORS) % len(DASHES)]


Values = npt.NDArray[Any] | Sequence[float]


@dataclass(frozen=True)
class Series:
    """Points of a plot in one look."""

    x: Values
    y: Values
    run: int | None = None  # the run that it belongs to and is hidden with
    kind: Literal["line", "points", "bars", "steps"] = "line"  # of steps x are the edges
    low: Values | None = None  # ends of intervals: a band around a line, bars at points
    high: Values | None = None
    x_span: "tuple[Values | float, Values | float] | None" = None  # ends of intervals along x, bars at points
    look: int | None = None  # color and marker, if not those of the run
    color: str = ""  # instead of that of the look
    dashes: tuple[float, ...] = ()
    width: float = 1.4  # of the line, or of bars
    alpha: float = 1.0
    band: float = 0.15  # opacity of the band
    marked: bool = False  # a line with its markers, where there are few of them; points joined by a line
    size: float = 4.5  # of a point's marker
    hollow: bool = False
    capped: bool = True  # ends of a point's bars
    marker: str = ""  # instead of that of the look
    label: str = ""  # in the legend
    name: str = ""  # written beside a point
    heads: Sequence[str] = ()  # for whoever points at a point: where it lies,
    texts: Sequence[str] | None = None  # and its value; None: nothing
    hover: int | None = None  # the run in whose name texts are shown, if not `run`

    @property
    def style(self) -> int:
        """Number of its color and its marker."""
        return (self.run or 0) if self.look is None else self.look

    @property
    def known(self) -> int:
        """Returns how many points have a value."""
        return int(np.isfinite(np.asarray(self.y, np.float64)).sum())


@dataclass(frozen=True)
class Axis:
    """An axis of a plot."""

    label: str = ""
    ticks: Literal["", "time", "thousands", "percent", "short"] = ""
    names: Sequence[str] = ()  # of groups, which lie at 0, 1, ...
    places: Sequence[tuple[float, str]] = ()  # ticks where they are not to be found
    limits: tuple[Any, Any] | None = None
    bottom: float | None = None
    within: tuple[float, float] | None = None  # limits that are not to be passed
    frame: npt.NDArray[np.float64] | None = None  # values that decide the limits
    level: float | None = None  # a line to compare with: where there is a frame, if it lies near
    level_dashes: tuple[float, ...] = LEVEL
    log: bool = False


@dataclass(frozen=True)
class Panel:
    """A plot."""

    series: Sequence[Series]
    x: Axis
    y: Axis
    legend: Literal["best", "upper right"] = "best"  # where it stands, if any series has a label
    legend_columns: int = 1
    arrows: Sequence[tuple[tuple[float, float], tuple[float, float]]] = ()


@dataclass(frozen=True)
class Figure:
    """One plot, or several with an axis in common, with its words."""

    title: str  # short enough for one line
    panels: Sequence[Panel]
    alt: str  # what is to be seen in it, for those who do not see it
    run: Mark | None = None  # the run it is about, if it is about one alone
    note: str = ""  # what else is to be said of the title
    size: tuple[float, float] = (4.9, 2.7)  # inches
    near: bool = False  # whoever points at it means one point, not one of every series
    heights: tuple[float, ...] = ()  # of panels below one another; else they stand beside one another

    @property
    def hovered(self) -> list[tuple[int, Series]]:
        """Series with texts, with the places of their panels."""
        return [(place, one) for place, panel in enumerate(self.panels)
                for one in panel.series if one.texts is not None]  # fmt: skip

    @property
    def is_drawn(self) -> bool:
        """Returns whether at least two points are known, of one series where each is a line: fewer are no plot."""
        if not self.hovered:
            return any(panel.series for panel in self.panels)
        counts = [one.known for _, one in self.hovered]
        return (sum(counts) if self.near else max(counts)) > 1


@dataclass(frozen=True)
class Words:
    """A paragraph, or in other styles a heading or the text of a file."""

    text: Text
    style: Literal["", "quiet", "note", "wrong", "heading", "file"] = ""
    run: int | None = None


def heading(*text: Text) -> Words:
    """Title of what follows in a section."""
    return Words(text, "heading")


@dataclass(frozen=True)
class Definitions:
    """Terms, each with lines that say what it is."""

    entries: Sequence[tuple[Text, Sequence[Text]]]


@dataclass(frozen=True)
class Details:
    """What is seen once it is opened."""

    summary: Text
    blocks: "Sequence[Block]"
    open: bool = False


@dataclass(frozen=True)
class Beside:
    """Blocks beside one another."""

    blocks: "Sequence[Block]"


@dataclass(frozen=True)
class Card:
    """A number, for each run, with what is to be said of it."""

    title: str
    entries: Sequence[tuple[Mark | None, int, str, str, str]]  # mark, run, number, style and words
    style: str = ""


@dataclass(frozen=True)
class Cards:
    """The numbers that matter most."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Figures:
    """Figures beside one another; those that are not drawn are named."""

    figures: Sequence[Figure]
    beside: "Block | None" = None  # beside the only figure
    wide: Literal["", "wide", "wide single"] = ""  # a figure that may be as wide as the page, or less
    share: int = 2  # halves, or (1) a third beside the rest

    @property
    def drawn(self) -> list[Figure]:
        return [one for one in self.figures if one.is_drawn]

    @property
    def missing(self) -> list[Figure]:
        return [one for one in self.figures if not one.is_drawn]


Block = Words | Definitions | Details | Beside | Cards | Figures | Table


@dataclass(frozen=True)
class Section:
    """Part of a page, to which a link at its top leads."""

    name: str  # in links
    link: str
    title: Text
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page, from which one file is made."""

    title: str
    heading: Text
    lead: Sequence[Block]
    sections: Sequence[Section]
    legend: Sequence[Mark] = ()

    def section(self, name: str) -> Section:
        """Finds a section by its name; raises KeyError where there is none."""
        found = [one for one in self.sections if one.name == name]
        if not found:
            raise KeyError(name)
        return found[0]
