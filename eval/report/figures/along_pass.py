"""Plots along the pass of a run: by event time, or by examples where times do not spread it out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from ctr.eval import display
from ctr.eval.arrays import FloatArray
from ctr.eval.report.figures import figure
from ctr.eval.report.plot_style import STYLE, Hover, color_of, new_figure, of_run, thousands, to_svg
from ctr.eval.report.shown_run import ShownRun
from ctr.eval.timeline import Timeline

Course = tuple[FloatArray, FloatArray, FloatArray]
"""Quantity over time [W], and the low and the high ends of its intervals."""

_FIRST_TIME, _LAST_TIME = np.array(["0001-01-02", "9999-12-30"], "datetime64[us]").astype(np.int64)
_DATES = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%S.%f"]
_DATES_BESIDE = ["", "%Y", "%Y", "%d %b %Y", "%d %b %Y", "%d %b %Y %H:%M"]
"""Formats of ticks of years, months, ..., seconds, and of what stands once beside the axis."""


def uses_event_time(windows: Sequence[pd.DataFrame]) -> bool:
    """Tells whether the windows' times spread them out: else they are drawn by the number of examples."""
    for table in windows:
        times = table[["window_begin", "window_end"]].to_numpy()
        if len(times) and (times.min() < _FIRST_TIME or times.max() > _LAST_TIME):
            return False
        middle = _middle_time(table)
        if 2 * len(np.unique(middle)) <= len(middle) or np.any(np.diff(middle) < 0):
            return len(middle) == 1
    return True


def _middle_time(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    begin = table["window_begin"].to_numpy()
    middle: npt.NDArray[np.int64] = begin + (table["window_end"].to_numpy() - begin) // 2
    return middle


def positions(table: pd.DataFrame, by_time: bool) -> npt.NDArray[np.generic]:
    """Positions of the windows along the pass."""
    return _middle_time(table).astype("datetime64[us]") if by_time else table["examples"].to_numpy()


def places_of(timeline: Timeline) -> pd.DataFrame:
    """Entries of a timeline as columns of `ctr.eval.run_files.read_windows`."""
    return pd.DataFrame(
        timeline.windows[:, :4], columns=["examples", "window_begin", "window_end", "window_examples"]
    )


def heads_of(table: pd.DataFrame, by_time: bool) -> list[str]:
    """Texts of the place of each window."""
    if by_time:
        return [f"{time:%Y-%m-%d %H:%M} UTC" for time in pd.to_datetime(_middle_time(table), unit="us")]
    return [f"{examples:,} examples" for examples in table["examples"]]


def frame_pass(axes: Axes, windows: Sequence[pd.DataFrame], by_time: bool) -> None:
    """Frames the pass, with ticks of event time or of the number of examples."""
    if by_time:
        begin = min((table["window_begin"].min() for table in windows if len(table)), default=0)
        end = max((table["window_end"].max() for table in windows if len(table)), default=0)
        # One query alone has no duration.
        margin = (end - begin) // 40 or 1_000_000
        limits = np.array([begin - margin, end + margin]).astype("datetime64[us]")
        axes.set_xlim(limits[0], limits[1])
        # With 3 and 8 some interval fits any stretch of time; with 4 none fits three and a half days.
        locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            ConciseDateFormatter(  # type: ignore[no-untyped-call]
                locator, formats=_DATES, offset_formats=_DATES_BESIDE
            )
        )
        axes.set_xlabel("event time (UTC)")
    else:
        axes.xaxis.set_major_formatter(thousands())
        axes.set_xlabel("examples")


def over_time(
    courses: Sequence[tuple[int, Timeline, Course, Course]], label: str, best: float, *, signed: bool = False
) -> str:
    """Plots a quantity of runs over time, with bands of 95%: of each window, and of all windows so far.

    ``courses``: for each run its number, its timeline, and the course by window and so far. ``best``: the
    best value.
    """
    with matplotlib.rc_context(STYLE):
        plot, axes = new_figure(figure.FIGURE_SIZE)
        hover = Hover()
        tables = [places_of(timeline) for _, timeline, _, _ in courses]
        by_time = uses_event_time(tables)
        shown = [np.array([best])]
        for (index, _, window, so_far), table in zip(courses, tables, strict=True):
            x, heads = positions(table, by_time), heads_of(table, by_time)
            color = color_of(index)
            point, low, high = window
            figure.draw_band(axes, x, low, high, index, min(0.15, 0.3 / len(courses)))
            figure.draw_line(axes, x, point, index)
            middle, below, above = so_far
            of_run(index, axes.plot(x, middle, color=color, linestyle=(0, (5, 2)), linewidth=1.2))
            for bound in (below, above):
                of_run(index, axes.plot(x, bound, color=color, linestyle=(0, (1, 2)), linewidth=0.9))
            texts = [
                f"{own}; so far {total}"
                for own, total in zip(
                    figure.interval_texts(point, low, high, signed=signed),
                    figure.interval_texts(middle, below, above, signed=signed),
                    strict=True,
                )
            ]
            hover.add(index, axes, x, point, heads, texts)
            shown += [point, (point + low) / 2, (point + high) / 2]
        figure.frame_values(axes, np.concatenate(shown), best)
        axes.set_ylabel(label)
        frame_pass(axes, tables, by_time)
        return to_svg(plot, hover)


@dataclass(frozen=True)
class Lines:
    """Lines of one thing among several of a run, all in one look."""

    look: int  # see `line_look`
    courses: Sequence[npt.NDArray[Any]]  # by window [W], mostly one
    texts: Sequence[str]  # of each window, shown at the first course
    title: str | None = None  # in the legend; None: in none


def lines_over_time(
    table: pd.DataFrame, lines: Iterable[Lines], run: int, dress: Callable[[Axes], object]
) -> str:
    """Plots several things of one run over time; ``dress`` labels the vertical axis and sets its ticks."""
    with matplotlib.rc_context(STYLE):
        plot, axes = new_figure(figure.FIGURE_SIZE)
        hover = Hover()
        by_time = uses_event_time([table])
        x, heads = positions(table, by_time), heads_of(table, by_time)
        for one in lines:
            color, dashes = figure.line_look(one.look)
            style: Any = (0, dashes) if dashes else "solid"
            for y in one.courses:
                axes.plot(x, y, color=color, linestyle=style, linewidth=1.4, label=one.title)
            hover.add(run, axes, x, one.courses[0], heads, one.texts)
        dress(axes)
        frame_pass(axes, [table], by_time)
        return to_svg(plot, hover)


def describe_courses(runs: Sequence[ShownRun], column: str, decimals: int) -> str:
    """Says where a column of the windows begins and ends in each run."""
    courses = []
    for shown in runs:
        known = shown.windows[column].dropna()
        words = "undefined"
        if len(known):
            first, last = (display.fixed(value, decimals) for value in (known.iloc[0], known.iloc[-1]))
            words = f"{first} in the first window, {last} in the last"
        courses.append(f"{shown.name}: {words}.")
    return " ".join(courses)
