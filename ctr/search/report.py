"""Report of a search: tables as text, and a page as one HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctr.eval import display
from ctr.eval.display import Number
from ctr.eval.report import page
from ctr.eval.report.html import render_page, write_page
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

_SHOWN = 10  # candidates that the text shows
_PARTS = {"rest": "the held-out rest, which the search has not read", "whole": "the whole log"}
_SIZE = (4.9, 3.2)


@dataclass(frozen=True)
class Point:
    """Configuration on the plane of cost and loss."""

    name: str
    cost: float  # in units of the baseline's
    change: Number  # of the logloss against the baseline's, in percent of it
    text: str


@dataclass(frozen=True)
class _Titled:
    """Table with what stands above and below it."""

    title: str
    table: page.Table
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
    page = search_page(record, read_course(folder / "supernet"))
    text = _as_text(record)
    write_page(folder / "table.txt", text)
    write_page(folder / "report.html", render_page(page))
    return text


def _as_text(record: SearchRecord) -> str:
    """Tables for a terminal."""
    lines = [" ".join(record.title.split()), *_sentences(record)]
    for one in _tables(record, _SHOWN):
        rows = one.table.texts()
        # The last column is words, which are not aligned.
        numbers = display.aligned([row[:-1] for row in rows])
        lines += [
            "",
            one.title,
            *(f"{line}  {row[-1]}".rstrip() for line, row in zip(numbers, rows, strict=True)),
        ]
        lines += [one.note] if one.note else []
    return "\n".join(lines) + "\n"


def _sentences(record: SearchRecord) -> list[str]:
    unit = f"the baseline's {record.purpose} cost by operations"
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


def _tables(record: SearchRecord, most: int | None = None) -> list[_Titled]:
    return [
        _result_table(record),
        *map(_judgement_table, record.judged),
        *([_trials_table(record, most)] if record.tried else []),
    ]


def _result_table(record: SearchRecord) -> _Titled:
    rows = [
        [
            name,
            " ".join(map(str, choices)),
            display.ABSENT if record.baseline is None else str(record.baseline[name]),
            str(record.values.get(name, record.baseline[name] if record.baseline is not None else "")),
        ]
        for name, choices in record.space.items()
    ]
    return _Titled("The result", page.Table(("decision", "choices", BASELINE, SEARCHED), rows))


def _judgement_table(judged: Judgement) -> _Titled:
    rows = [
        [
            display.METRIC_TITLES[name],
            display.fixed(metric.baseline),
            display.fixed(metric.searched),
            display.with_margin(metric.difference, metric.low, metric.high, signed=True),
            display.fixed(metric.percent, 3, signed=True),
            " ".join(display.fixed(value, signed=True) for value in metric.by_seed.values()),
            display.verdict(name, metric.difference or 0.0, metric.significant),
        ]
        for name, metric in judged.metrics.items()
    ]
    title = f"Evaluated on {_PARTS[judged.part]}" + (f": {judged.rows:,} rows" if judged.rows else "")
    columns = ("metric", BASELINE, SEARCHED, "change [95%]", "%", "by seed", "")
    return _Titled(title, page.Table(columns, rows), judged.missing and f"Not known: {judged.missing}.")


def _trials_table(record: SearchRecord, most: int | None) -> _Titled:
    cells = [
        [
            f"{one.name} *" if one.name == record.chosen else one.name,
            display.fixed(one.cost, 3),
            display.fixed(one.logloss),
            one.failure or display.with_margin(one.difference, one.low, one.high, signed=True),
            _choices(one),
        ]
        for one in record.tried[:most]
    ]
    left = len(record.tried) - len(cells)
    note = "* the result." + (f" {left} more are in report.html." if left else "")
    table = page.Table(("candidate", "cost", "logloss", "change [95%]", "choices"), cells)
    return _Titled(f"Tried on the first {record.prefix_rows:,} rows", table, note)


def _choices(one: Tried) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.values.items())


def search_page(record: SearchRecord, course: Sequence[ControllerRecord]) -> page.Page:
    """The report of a search; ``course``: that of its controller, if it has one."""
    sections = []
    if record.tried or record.judged:
        about = (
            "Bars are 95% intervals of the difference to the baseline, paired by query. The cross is the baseline; the "
            "dotted line is the target. Lines join the configurations that none beats in both cost and logloss."
        )
        frontier: list[page.Block] = [
            page.Figures([_frontier_figure(record)], wide="wide single"),
            page.Words(about, "quiet"),
        ]
        sections.append(page.Section("frontier", "Cost and accuracy", "Cost and accuracy", frontier))
    if course:
        figures = page.Figures(_controller_figures(record, course))
        sections.append(page.Section("controller", "Controller", "The controller over time", [figures]))
    tables: list[page.Block] = []
    for one in _tables(record):
        tables += [page.heading(one.title), one.table, *([page.Words(one.note, "quiet")] if one.note else [])]
    repeat: list[tuple[page.Text, Sequence[page.Text]]] = [
        ("command", (page.code(record.command),)),
        ("log", (record.log, ("SHA-256 ", page.code(record.log_sha256)))),
        ("ctr", (record.ctr_version,)),
        ("the search", ("search.yaml, with its whole training configuration",)),
        ("the result", (("best.yaml, for ", page.code("ctr train")),)),
    ]
    if record.judged:
        replay = (
            "replay.yaml, for ",
            page.code("ctr replay"),
            "; its own report is ",
            page.code("replay/report.html"),
        )
        repeat.append(("the comparison", (replay,)))
    return page.Page(
        title=f"{record.title} – search",
        heading=record.title,
        lead=[page.Words(sentence) for sentence in (*_sentences(record), record.note) if sentence],
        sections=[
            *sections,
            page.Section("tables", "Tables", "Tables", tables),
            page.Section("repeat", "Repeat", "How to repeat it", [page.Definitions(repeat)]),
        ],
    )


def _frontier_figure(record: SearchRecord) -> page.Figure:
    groups: dict[str, list[Point]] = {}
    base = next((one.logloss for one in record.tried if one.name == BASELINE), None)
    shown = [one for one in record.tried if one.difference is not None]
    if base and shown:
        groups["tried"] = [
            Point(one.name, one.cost, _percent(one, base), _choices(one) or BASELINE) for one in shown
        ]
    for judged in record.judged:
        metric = judged.metrics.get("logloss")
        if metric is None or not metric.baseline or metric.difference is None or record.cost is None:
            continue
        change = _percent(metric, metric.baseline)
        groups[f"result, {judged.part} of the log"] = [
            Point(record.chosen, record.cost, change, f"result on the {judged.part}")
        ]
    count = sum(map(len, groups.values()))
    return page.Figure(
        "Accuracy against cost",
        [loss_against_cost(groups, record.target)],
        f"Change of logloss against cost of {count} configurations; lower and further left is better.",
        size=(6.4, 4.0),
        near=True,
    )


def _percent(one: object, base: float) -> Number:
    difference, low, high = (getattr(one, name) for name in ("difference", "low", "high"))
    ends = (None, None) if low is None or high is None else (low, high)
    return Number(difference, *ends).times(100 / base)


def loss_against_cost(groups: dict[str, list[Point]], target: float) -> page.Panel:
    """Change of logloss against cost, by groups with a label each; a line joins what nothing beats in both."""
    series: list[page.Series] = []
    for group, (label, points) in enumerate(groups.items()):
        best = frontier(points) if len(points) > 1 else []
        x, y, low, high = (
            np.array(values, np.float64)
            for values in zip(
                *((one.cost, one.change.value, one.change.low, one.change.high) for one in points),
                strict=True,
            )
        )
        series += [
            page.Series(
                [one.cost for one in best], [float(one.change.value or 0) for one in best], group,
                width=1.0, alpha=0.6,
            ),
            page.Series(
                x, y, group, "points", low, high, size=5.0, capped=False, label=label,
                heads=[one.name for one in points],
                texts=[f"{one.text}: {one.change.margin()}%" for one in points],
            ),
        ]  # fmt: skip
    if groups:
        # What all others are compared with: the axes always reach it.
        base = ["cost 1, change 0%"]
        series.append(
            page.Series(
                [1.0], [0.0], kind="points", color=page.INK, marker="x", size=7.0, label="baseline",
                heads=["baseline"], texts=base, hover=len(groups),
            )
        )  # fmt: skip
    cost = page.Axis("cost, of the baseline's", level=target, level_dashes=(1.0, 2.0))
    return page.Panel(series, cost, page.Axis("change in logloss, %", level=0.0))


def frontier(points: Sequence[Point]) -> list[Point]:
    """Points that no other one beats in cost and in loss, by ascending cost."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.cost, one.change.value or 0.0)):
        if not best or (point.change.value or 0.0) < (best[-1].change.value or 0.0):
            best.append(point)
    return best


def _controller_figures(record: SearchRecord, course: Sequence[ControllerRecord]) -> list[page.Figure]:
    """Probabilities of the choices of each decision, and what else is known of the controller, over the examples."""
    figures = [
        page.Figure(
            name,
            [_probabilities(course, name, choices)],
            f"Probabilities of the choices of {name}.",
            size=_SIZE,
        )
        for name, choices in record.space.items()
    ]
    for title, key, label, level, words in (
        ("entropy", "entropy", "entropy, nats", None, "The controller's entropy."),
        ("cost", "mean_cost", "mean cost", record.target, "Mean cost of the candidates drawn."),
        ("reward", "mean_reward", "mean reward", None, "Mean reward of the candidates drawn."),
    ):
        found = [one for one in course if getattr(one, key) is not None]
        values = [getattr(one, key) for one in found]
        line = _line(found, values, 0, [display.fixed(value, 4) for value in values])
        panel = page.Panel([line], page.Axis("examples", "thousands"), page.Axis(label, level=level))
        figures.append(page.Figure(title, [panel], words, size=_SIZE))
    return figures


def _probabilities(course: Sequence[ControllerRecord], name: str, choices: Sequence[object]) -> page.Panel:
    lines = []
    for place, choice in enumerate(choices):
        values = [record.probabilities[name][place] for record in course]
        texts = [f"{choice}: {display.fixed(value, 3)}" for value in values]
        lines.append(_line(course, values, place, texts, str(choice)))
    y = page.Axis("probability", limits=(0, 1))
    return page.Panel(lines, page.Axis("examples", "thousands"), y, legend_columns=3)


def _line(
    course: Sequence[ControllerRecord],
    values: Sequence[float],
    look: int,
    texts: Sequence[str],
    label: str = "",
) -> page.Series:
    examples = [one.examples for one in course]
    heads = [f"{one:,} examples" for one in examples]
    return page.Series(
        examples, values, look, dashes=page.dashes_of(look), label=label, heads=heads, texts=texts
    )
