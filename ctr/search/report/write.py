"""Report of a search: tables as text, and one self-contained HTML file.

All text of the search's file is escaped in the HTML.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from ctr.eval import display
from ctr.eval.report import plot_style
from ctr.eval.report.figures.figure import ReportFigure, figure_of
from ctr.eval.report.page import render_page, write_page
from ctr.experiments.plan import read_record
from ctr.io.errors import InputError
from ctr.search.record import (
    BASELINE,
    RECORD_FILE,
    SEARCHED,
    ControllerRecord,
    Judgement,
    SearchRecord,
    Tried,
    read_course,
)

_TEMPLATE = Path(__file__).with_name("search.html.j2")
_SHOWN = 10  # candidates of a rung that the text shows
_MEASURES = {"flops": "operations", "times": "measured times"}
_PARTS = {"rest": "the held-out rest, which the search has not read", "whole": "the whole log"}
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


@dataclass(frozen=True)
class Table:
    """Table of a report."""

    title: str
    columns: tuple[str, ...]  # that of the first column included
    rows: list[list[str]]
    note: str = ""


def write_search(folder: Path) -> str:
    """Writes report.html and table.txt of a search; the same search gives the same bytes. Returns table.txt.

    ``folder`` holds search.json, and a supernet's controller.jsonl where there is one. Raises InputError: a
    file is not there or damaged, or cannot be written.
    """
    path = folder / RECORD_FILE
    if not path.exists():
        raise InputError(
            f"{folder}: no {RECORD_FILE}, so this is not a finished search; "
            "allowed: an output directory of `ctr search`"
        )
    record = read_record(path, SearchRecord)
    course = read_course(folder / "supernet")
    text = as_text(record)
    write_page(folder / "table.txt", text)
    write_page(folder / "report.html", _as_html(record, course))
    return text


def as_text(record: SearchRecord) -> str:
    """Tables for a terminal."""
    lines = [" ".join(record.title.split()), *_sentences(record)]
    for table in _tables(record, _SHOWN):
        lines += ["", table.title, *_aligned([list(table.columns), *table.rows])]
        lines += [table.note] if table.note else []
    return "\n".join(lines) + "\n"


def _aligned(rows: list[list[str]]) -> list[str]:
    """Lines of a table whose last column is words, which are not aligned."""
    numbers = display.aligned([row[:-1] for row in rows])
    return [f"{line}  {row[-1]}".rstrip() for line, row in zip(numbers, rows, strict=True)]


def _sentences(record: SearchRecord) -> list[str]:
    unit = f"the baseline's {record.purpose} cost by {_MEASURES[record.measure]}"
    lines = [
        f"Method {record.method}, {record.size:,} candidates, target {record.target:g} of {unit}, seed {record.seed}."
    ]
    if record.prefix_end is None:
        lines.append(
            f"Chosen on all {record.rows:,} rows: no held-out rows are left to evaluate the result on without favor."
        )
    else:
        lines.append(
            f"Chosen on the first {record.prefix_rows:,} of {record.rows:,} rows (before {record.prefix_end}); "
            "evaluated on the held-out rest."
        )
    lines.append(f"The search took {display.fixed(record.passes, 2)} passes of the baseline over all rows.")
    if record.chosen == BASELINE:
        lines.append("The result is the baseline itself.")
    elif record.cost is not None:
        lines.append(f"The result costs {display.fixed(record.cost, 3)} of {unit}: best.yaml.")
    if record.cost is not None and record.cost > 1.01 * record.target:
        lines.append("This is more than 1% above the target, which a penalty does not rule out.")
    return lines


def _tables(record: SearchRecord, most: int | None = None) -> list[Table]:
    tables = [_result_table(record)]
    tables += [_judgement_table(one) for one in record.judged]
    tables += [
        _rung_table(rung.tried, number, len(record.rungs), rung.rows, rung.kept, most)
        for number, rung in reversed([*enumerate(record.rungs, 1)])
    ]
    return tables


def _result_table(record: SearchRecord) -> Table:
    rows = [
        [
            name,
            " ".join(map(str, choices)),
            display.ABSENT if record.baseline is None else str(record.baseline[name]),
            str(record.values.get(name, record.baseline[name] if record.baseline is not None else "")),
        ]
        for name, choices in record.space.items()
    ]
    return Table("The result", ("decision", "choices", BASELINE, SEARCHED), rows)


def _judgement_table(judged: Judgement) -> Table:
    rows = []
    for name, metric in judged.metrics.items():
        change = display.with_margin(metric.difference, metric.low, metric.high, signed=True)
        says = display.verdict(name, metric.difference or 0.0, metric.significant)
        rows.append(
            [
                display.METRIC_TITLES[name],
                display.fixed(metric.baseline),
                display.fixed(metric.searched),
                change,
                display.fixed(metric.percent, 3, signed=True),
                " ".join(display.fixed(value, signed=True) for value in metric.by_seed.values()),
                says,
            ]
        )
    title = f"Evaluated on {_PARTS[judged.part]}" + (f": {judged.rows:,} rows" if judged.rows else "")
    note = judged.missing and f"Not known: {judged.missing}."
    columns = ("metric", BASELINE, SEARCHED, "change [95%]", "%", "by seed", "")
    return Table(title, columns, rows, note)


def _rung_table(
    tried: Sequence[Tried], number: int, rungs: int, rows: int, kept: Sequence[str], most: int | None
) -> Table:
    cells = [
        [
            f"{one.name} *" if one.name in kept else one.name,
            display.fixed(one.cost, 3),
            display.fixed(one.logloss),
            one.failure or display.with_margin(one.difference, one.low, one.high, signed=True),
            ", ".join(f"{name} {value}" for name, value in one.values.items()),
        ]
        for one in tried[:most]
    ]
    left = len(tried) - len(cells)
    title = f"Tried on the first {rows:,} rows" + (f", rung {number} of {rungs}" if rungs > 1 else "")
    note = "* went on; the last one is the result." + (f" {left} more are in report.html." if left else "")
    return Table(title, ("candidate", "cost", "logloss", "change [95%]", "choices"), cells, note)


def _as_html(record: SearchRecord, course: Sequence[ControllerRecord]) -> str:
    figures = [figure_of(*_frontier(record))] if record.rungs or record.judged else []
    courses: list[ReportFigure] = []
    if course:
        level = record.target
        courses = [
            figure_of(name, probabilities(course, name, choices), f"Probabilities of the choices of {name}.")
            for name, choices in record.space.items()
        ]
        courses += [
            figure_of("entropy", quantity(course, "entropy", "entropy, nats"), "The controller's entropy."),
            figure_of(
                "cost",
                quantity(course, "mean_cost", "mean cost", level),
                "Mean cost of the candidates drawn.",
            ),
            figure_of(
                "reward",
                quantity(course, "mean_reward", "mean reward"),
                "Mean reward of the candidates drawn.",
            ),
        ]
    return render_page(
        _TEMPLATE,
        record=record,
        sentences=_sentences(record),
        tables=_tables(record),
        figures=figures,
        courses=courses,
    )


def _frontier(record: SearchRecord) -> tuple[str, str, str]:
    """Title, image and words of the plot of cost and loss."""
    groups: list[str] = []
    points: list[Point] = []
    for number, rung in reversed([*enumerate(record.rungs, 1)]):
        base = next((one.logloss for one in rung.tried if one.name == BASELINE), None)
        shown = [one for one in rung.tried if one.difference is not None]
        if base and shown:
            points += [_tried_point(one, base, len(groups)) for one in shown]
            groups.append(f"rung {number}, first {rung.rows:,} rows" if len(record.rungs) > 1 else "tried")
    for judged in record.judged:
        metric = judged.metrics.get("logloss")
        if metric is None or not metric.baseline or metric.difference is None or record.cost is None:
            continue
        span = _span(metric.low, metric.high, metric.baseline)
        change = 100 * metric.difference / metric.baseline
        points.append(
            Point(record.chosen, len(groups), record.cost, change, span, f"result on the {judged.part}")
        )
        groups.append(f"result, {judged.part} of the log")
    words = (
        f"Change of logloss against cost of {len(points)} configurations; lower and further left is better."
    )
    return "Accuracy against cost", loss_against_cost(points, groups, record.target), words


def _tried_point(one: Tried, base: float, group: int) -> Point:
    text = ", ".join(f"{name} {value}" for name, value in one.values.items()) or BASELINE
    difference = one.difference or 0.0
    return Point(one.name, group, one.cost, 100 * difference / base, _span(one.low, one.high, base), text)


def _span(low: float | None, high: float | None, base: float) -> tuple[float, float] | None:
    return None if low is None or high is None else (100 * low / base, 100 * high / base)


def loss_against_cost(points: Sequence[Point], groups: Sequence[str], target: float) -> str:
    """Plots change of logloss against cost; a line joins those that nothing beats in both."""
    with matplotlib.rc_context(plot_style.STYLE):
        figure, axes = plot_style.new_figure((6.4, 4.0))
        hover = plot_style.Hover(near=True)
        axes.axhline(0, color=plot_style.QUIET, linestyle=(0, (4, 3)), linewidth=1)
        axes.axvline(target, color=plot_style.QUIET, linestyle=(0, (1, 2)), linewidth=1)
        for group, label in enumerate(groups):
            color, own = plot_style.color_of(group), [one for one in points if one.group == group]
            best = [] if len(own) < 2 else frontier(own)
            x, y = [one.cost for one in best], [one.change for one in best]
            plot_style.of_run(group, axes.plot(x, y, color=color, linewidth=1, alpha=0.6))
            for one in own:
                margins = one.span and [[one.change - one.span[0]], [one.span[1] - one.change]]
                drawn = axes.errorbar(
                    one.cost,
                    one.change,
                    yerr=None if margins is None else np.maximum(margins, 0.0),
                    color=color,
                    marker=plot_style.marker_of(group),
                    markersize=5,
                    linestyle="none",
                    elinewidth=0.7,
                    label=label if one is own[0] else None,
                )
                plot_style.of_run(group, drawn.lines)
                height = display.with_margin(one.change, *(one.span or (None, None)))
                hover.add(group, axes, [one.cost], [one.change], [one.name], [f"{one.text}: {height}%"])
        if points:
            # What all others are compared with: the axes always reach it.
            look: dict[str, Any] = {
                "color": plot_style.INK,
                "marker": "x",
                "markersize": 7,
                "linestyle": "none",
            }
            (mark,) = axes.plot([1.0], [0.0], label="baseline", **look)
            mark.set_zorder(3)
            hover.add(len(groups), axes, [1.0], [0.0], ["baseline"], ["cost 1, change 0%"])
        axes.set_xlabel("cost, of the baseline's")
        axes.set_ylabel("change in logloss, %")
        if points:
            axes.legend()
        return plot_style.to_svg(figure, hover)


def frontier(points: Sequence[Point]) -> list[Point]:
    """Points that no other one beats in cost and in loss, by ascending cost."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.cost, one.change)):
        if not best or point.change < best[-1].change:
            best.append(point)
    return best


def probabilities(course: Sequence[ControllerRecord], name: str, choices: Sequence[object]) -> str:
    """Plots the probability of each choice of a decision, over the examples."""
    with matplotlib.rc_context(plot_style.STYLE):
        figure, axes = plot_style.new_figure(_SIZE)
        hover = plot_style.Hover()
        examples = [record.examples for record in course]
        for place, choice in enumerate(choices):
            values = [record.probabilities[name][place] for record in course]
            lines = axes.plot(
                examples,
                values,
                color=plot_style.color_of(place),
                dashes=plot_style.DASHES[place // len(plot_style.COLORS) % len(plot_style.DASHES)],
                linewidth=1.4,
                label=str(choice),
            )
            plot_style.of_run(place, lines)
            texts = [f"{choice}: {display.fixed(value, 3)}" for value in values]
            hover.add(place, axes, examples, values, [f"{one:,} examples" for one in examples], texts)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_formatter(plot_style.thousands())
        axes.set_xlabel("examples")
        axes.set_ylabel("probability")
        axes.legend(ncols=3)
        return plot_style.to_svg(figure, hover)


def quantity(course: Sequence[ControllerRecord], key: str, label: str, level: float | None = None) -> str:
    """Plots one number of the controller over the examples, and a level to compare with."""
    with matplotlib.rc_context(plot_style.STYLE):
        figure, axes = plot_style.new_figure(_SIZE)
        hover = plot_style.Hover()
        found = [(record.examples, value) for record in course if (value := getattr(record, key)) is not None]
        examples, values = [one for one, _ in found], [value for _, value in found]
        if level is not None:
            axes.axhline(level, color=plot_style.QUIET, linestyle=(0, (4, 3)), linewidth=1)
        plot_style.of_run(0, axes.plot(examples, values, color=plot_style.COLORS[0], linewidth=1.4))
        texts = [display.fixed(value, 4) for value in values]
        hover.add(0, axes, examples, values, [f"{one:,} examples" for one in examples], texts)
        axes.xaxis.set_major_formatter(plot_style.thousands())
        axes.set_xlabel("examples")
        axes.set_ylabel(label)
        return plot_style.to_svg(figure, hover)
