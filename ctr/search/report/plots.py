"""Plots of a search, as SVG: the frontier of cost and accuracy, and the controller's probabilities over time."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np

from ctr.eval import display
from ctr.eval.report.plot_style import (
    COLORS,
    DASHES,
    INK,
    MARKERS,
    QUIET,
    STYLE,
    Hover,
    new_figure,
    of_run,
    thousands,
    to_svg,
)
from ctr.search.report.courses import ControllerRecord

_SIZE = (4.9, 3.2)


@dataclass(frozen=True)
class Point:
    """Configuration on the plane of cost and loss."""

    name: str
    group: int  # place among the groups of the plot, which have a color each
    cost: float  # in units of the baseline's
    change: float  # of the logloss against the baseline's, in percent of it
    span: tuple[float, float] | None  # ends of its 95% interval; None: unknown
    text: str


def loss_against_cost(points: Sequence[Point], groups: Sequence[str], target: float) -> str:
    """Plots change of logloss against cost; a line joins those that nothing beats in both."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((6.4, 4.0))
        hover = Hover(near=True)
        axes.axhline(0, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        axes.axvline(target, color=QUIET, linestyle=(0, (1, 2)), linewidth=1)
        for group, label in enumerate(groups):
            color, own = COLORS[group % len(COLORS)], [one for one in points if one.group == group]
            best = [] if len(own) < 2 else frontier(own)
            of_run(
                group,
                axes.plot(
                    [one.cost for one in best],
                    [one.change for one in best],
                    color=color,
                    linewidth=1,
                    alpha=0.6,
                ),
            )
            for one in own:
                margins = (
                    None if one.span is None else [[one.change - one.span[0]], [one.span[1] - one.change]]
                )
                drawn = axes.errorbar(
                    one.cost,
                    one.change,
                    yerr=None if margins is None else np.maximum(margins, 0.0),
                    color=color,
                    marker=MARKERS[group % len(MARKERS)],
                    markersize=5,
                    linestyle="none",
                    elinewidth=0.7,
                    label=label if one is own[0] else None,
                )
                of_run(group, drawn.lines)
                height = display.with_margin(one.change, *(one.span or (None, None)))
                hover.add(group, axes, [one.cost], [one.change], [one.name], [f"{one.text}: {height}%"])
        if points:
            # What all others are compared with: the axes always reach it.
            (mark,) = axes.plot(
                [1.0], [0.0], color=INK, marker="x", markersize=7, linestyle="none", label="baseline"
            )
            mark.set_zorder(3)
            hover.add(len(groups), axes, [1.0], [0.0], ["baseline"], ["cost 1, change 0%"])
        axes.set_xlabel("cost, of the baseline's")
        axes.set_ylabel("change in logloss, %")
        if points:
            axes.legend()
        return to_svg(figure, hover)


def frontier(points: Sequence[Point]) -> list[Point]:
    """Points that no other one beats in cost and in loss, by ascending cost."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.cost, one.change)):
        if not best or point.change < best[-1].change:
            best.append(point)
    return best


def probabilities(course: Sequence[ControllerRecord], name: str, choices: Sequence[object]) -> str:
    """Plots the probability of each choice of a decision, over the examples."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        examples = [record.examples for record in course]
        for place, choice in enumerate(choices):
            values = [record.probabilities[name][place] for record in course]
            lines = axes.plot(
                examples,
                values,
                color=COLORS[place % len(COLORS)],
                dashes=DASHES[place // len(COLORS) % len(DASHES)],
                linewidth=1.4,
                label=str(choice),
            )
            of_run(place, lines)
            texts = [f"{choice}: {display.fixed(value, 3)}" for value in values]
            hover.add(place, axes, examples, values, [f"{one:,} examples" for one in examples], texts)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_formatter(thousands())
        axes.set_xlabel("examples")
        axes.set_ylabel("probability")
        axes.legend(ncols=3)
        return to_svg(figure, hover)


def quantity(course: Sequence[ControllerRecord], key: str, label: str, level: float | None = None) -> str:
    """Plots one number of the controller over the examples, and a level to compare with."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        found = [(record.examples, value) for record in course if (value := getattr(record, key)) is not None]
        examples, values = [one for one, _ in found], [value for _, value in found]
        if level is not None:
            axes.axhline(level, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        of_run(0, axes.plot(examples, values, color=COLORS[0], linewidth=1.4))
        texts = [display.fixed(value, 4) for value in values]
        hover.add(0, axes, examples, values, [f"{one:,} examples" for one in examples], texts)
        axes.xaxis.set_major_formatter(thousands())
        axes.set_xlabel("examples")
        axes.set_ylabel(label)
        return to_svg(figure, hover)
