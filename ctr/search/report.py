"""Report of a search: tables as text, numbers as CSV, and a page as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ctr.eval import display
from ctr.eval.display import Number
from ctr.eval.report import figures
from ctr.eval.report.figures import Figure, Line, Point
from ctr.eval.report.page import PageContext, Section, render_page, write_page
from ctr.eval.tidy import Numbers, as_csv, row, tidy
from ctr.experiments.plan import read_record
from ctr.experiments.report.arms import CHANGED
from ctr.io.errors import InputError
from ctr.search.record import (
    BASELINE,
    RECORD_FILE,
    REST,
    SEARCHED,
    WHOLE,
    ControllerRecord,
    SearchRecord,
    Tried,
    read_course,
)

_SHOWN = 10  # candidates that the text shows
_DECISIONS_DRAWN = 8
_PARTS = {REST: "the held-out rest, which the search has not read", WHOLE: "the whole log"}

Titled = tuple[str, pd.DataFrame, str]
"""A title, a table whose last column is words, and a note."""


def write_search(folder: Path) -> str:
    """Writes report.html, table.csv and table.txt of a search; the same search gives the same bytes. Returns table.txt.

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
    text, page = as_text(record), render_page(search_context(record, read_course(folder / "supernet")))
    write_page(folder / "table.txt", text)
    write_page(folder / "table.csv", as_csv(search_table(record)))
    write_page(folder / "report.html", page)
    return text


def search_table(record: SearchRecord) -> pd.DataFrame:
    """Returns all numbers as a tidy table: candidates as arms, and the result against the baseline."""
    rows = []
    for one in record.tried:
        keys = {"arm": one.name, "window": "prefix"}
        rows += [row("cost", one.cost, **keys), row("logloss", one.logloss, **keys)]
        rows.append(row("logloss_difference", Number(one.difference, one.low, one.high), **keys))
    judged = [] if record.judged is None else [one.model_dump() for one in record.judged.results]
    return tidy([*rows, *judged])


def as_text(record: SearchRecord) -> str:
    """Formats the tables for a terminal."""
    lines = [" ".join(record.title.split()), *_sentences(record)]
    for title, table, note in _tables(record, _SHOWN):
        rows = [list(table), *(list(cells) for cells in table.itertuples(index=False, name=None))]
        # The last column is words, which are not aligned.
        numbers = display.aligned([cells[:-1] for cells in rows])
        lines += [
            "",
            title,
            *(f"{line}  {cells[-1]}".rstrip() for line, cells in zip(numbers, rows, strict=True)),
        ]
        lines += [note] if note else []
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


def _tables(record: SearchRecord, most: int | None = None) -> list[Titled]:
    baseline = record.baseline or {}
    decisions = [
        [name, " ".join(map(str, choices)), str(baseline.get(name, display.ABSENT)),
         str(record.values.get(name, baseline.get(name, "")))]
        for name, choices in record.space.items()
    ]  # fmt: skip
    heads = ["decision", "choices", BASELINE, SEARCHED]
    tables = [("The result", pd.DataFrame(decisions, columns=heads), ""), *_judged_tables(record)]
    if record.tried:
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
        heads = ["candidate", "cost", "logloss", "change [95%]", "choices"]
        tables.append(
            (f"Tried on the first {record.prefix_rows:,} rows", pd.DataFrame(cells, columns=heads), note)
        )
    return tables


def _judged_tables(record: SearchRecord) -> list[Titled]:
    tables = []
    numbers, missing = Numbers(search_table(record)), {} if record.judged is None else record.judged.missing
    for part, words in _PARTS.items():
        known = numbers("rows", window=part)
        if known is None and part not in missing:
            continue
        rows = []
        for name in CHANGED:
            keys = {"arm": SEARCHED, "window": part}
            change, percent = (numbers(f"{name}{end}", **keys) for end in ("_difference", "_change_percent"))
            baseline, searched = (numbers(name, arm=arm, window=part) for arm in (BASELINE, SEARCHED))
            if change is None or percent is None or baseline is None or searched is None:
                continue
            significant = numbers(f"{name}_significant", **keys)
            by_seed = numbers.by("seed", f"{name}_difference", **keys).values()
            rows.append(
                [
                    display.METRIC_TITLES[name],
                    baseline.text(5),
                    searched.text(5),
                    change.margin(signed=True),
                    percent.text(3, signed=True),
                    " ".join(one.text(5, signed=True) for one in by_seed),
                    display.verdict(
                        name, change.value or 0.0, None if significant is None else significant.value == 1
                    ),
                ]
            )
        count = "" if known is None else f": {known.value:,.0f} rows"
        heads = ["metric", BASELINE, SEARCHED, "change [95%]", "%", "by seed", ""]
        note = f"Not known: {missing[part]}." if part in missing else ""
        tables.append((f"Evaluated on {words}{count}", pd.DataFrame(rows, columns=heads), note))
    return tables


def _choices(one: Tried) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.values.items())


def search_context(record: SearchRecord, course: Sequence[ControllerRecord]) -> PageContext:
    """Returns what the page of a search says; ``course``: that of its controller, if it has one."""
    frontier = _frontier_figure(record)
    about = (
        "Intervals are 95%, of the difference to the baseline, paired by query. The dotted line is the target; a line "
        "joins the configurations that none beats in both cost and logloss."
    )
    results = _tables(record)
    words = [*([about] if frontier else []), *(f"{title}: {note}" for title, _, note in results if note)]
    tables = [(title, table) for title, table, _ in results]
    sections = [Section("Results", words, [frontier] if frontier else [], tables)]
    if course:
        sections.append(Section("The controller over time", figures=_controller_figures(record, course)))
    repeat = [
        ["command", record.command],
        ["log", record.log],
        ["log, SHA-256", record.log_sha256],
        ["ctr", record.ctr_version],
        ["the search", "search.yaml, with its whole training configuration"],
        ["the result", "best.yaml, for ctr train"],
        ["all numbers", "table.csv"],
    ]
    if record.judged is not None:
        repeat.append(["the comparison", "replay.yaml, for ctr replay; its own report is replay/report.html"])
    sections.append(Section("How to repeat it", tables=[("", pd.DataFrame(repeat, columns=["", " "]))]))
    lead = [sentence for sentence in (*_sentences(record), record.note) if sentence]
    return PageContext(record.title, lead, [_verdict(record)], [], sections)


def _verdict(record: SearchRecord) -> str:
    """Says whether the result is better than the baseline, on rows that the search has not read where there are any."""
    numbers = Numbers(search_table(record))
    for part in (REST, WHOLE):
        keys = {"arm": SEARCHED, "window": part}
        change, significant = (numbers(f"logloss_{what}", **keys) for what in ("difference", "significant"))
        if change is not None:
            says = "is neither better nor worse than the baseline for certain"
            if significant is not None and significant.value == 1:
                says = f"is {display.verdict('logloss', change.value or 0.0, True)} than the baseline"
            cost = "" if record.cost is None else f"; {display.times(record.cost)} the cost"
            return f"The result {says}, on {_PARTS[part]}: logloss {change.whole(signed=True)}{cost}."
    if record.chosen == BASELINE:
        return "No candidate within the target is better than the baseline."
    return "The result was not compared with the baseline."


def _frontier_figure(record: SearchRecord) -> Figure | None:
    """Draws the change of logloss over cost, of all candidates and of the result."""
    numbers = Numbers(search_table(record))
    base = next((one.logloss for one in record.tried if one.name == BASELINE), None)
    points = []
    for one in record.tried if base else ():
        if one.difference is not None:
            change = Number(one.difference, one.low, one.high).times(100 / (base or 1.0))
            points.append(Point(one.name, Number(one.cost), change))
    best = frontier(points)
    named = {BASELINE, record.chosen, *(point.name for point in best)}
    points = [point if point.name in named else point._replace(name="") for point in points]
    joined = (
        [[place for one in best for place, point in enumerate(points) if point.name == one.name]]
        if best
        else []
    )
    for part, look in ((REST, 1), (WHOLE, 2)):
        judged = numbers("logloss_difference", arm=SEARCHED, window=part)
        value = numbers("logloss", arm=BASELINE, window=part)
        if judged and judged.value is not None and value and value.value and record.cost is not None:
            points.append(
                Point(f"result, {part}", Number(record.cost), judged.times(100 / value.value), look)
            )
    if not points:
        return None
    if not any(point.name == BASELINE for point in points):
        points.append(Point(BASELINE, Number(1.0), Number(0.0), 6))
    return figures.plane(
        "Logloss over cost", points, ("cost, of the baseline's", "change in logloss, %"), joined=joined,
        level=record.target, note="lower and further left is better",
    )  # fmt: skip


def frontier(points: Sequence[Point]) -> list[Point]:
    """Returns the points that no other one beats in cost and in loss, by ascending cost."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.x.value or 0.0, one.y.value or 0.0)):
        if not best or (point.y.value or 0.0) < (best[-1].y.value or 0.0):
            best.append(point)
    return best


def _controller_figures(record: SearchRecord, course: Sequence[ControllerRecord]) -> list[Figure]:
    """Draws the probabilities of the choices of decisions, and what else is known of the controller."""
    examples = np.array([one.examples for one in course])
    drawn = []
    for name, choices in [*record.space.items()][:_DECISIONS_DRAWN]:
        lines = [
            Line(
                examples,
                np.array([one.probabilities[name][place] for one in course]),
                look=place,
                label=str(choice),
            )
            for place, choice in enumerate(choices)
        ]
        drawn.append(figures.courses(name, lines, note="probability of each choice", limits=(0.0, 1.0)))
    for title, key, level in (
        ("entropy", "entropy", None),
        ("mean cost of the candidates drawn", "mean_cost", record.target),
        ("mean reward of the candidates drawn", "mean_reward", None),
    ):
        values = np.array([getattr(one, key) for one in course], np.float64)
        drawn.append(figures.courses(title, [Line(examples, values)], level=level))
    return [figure for figure in drawn if figure is not None]
