"""Section of a report that compares runs with the first one."""

import math
from collections.abc import Sequence

from ctr.eval import display
from ctr.eval.report import page
from ctr.eval.report.over_time import paired_figures
from ctr.eval.report.shown_run import ShownRun
from ctr.eval.run_comparison import (
    COSTS,
    SEED_NOTE,
    Difference,
    NotComparableError,
    RunComparison,
    compare_read_runs,
)
from ctr.eval.run_files import COMPARED

_BAR_HALF, _BAR_MIDDLE = 56.0, 60.0
_SIGNS = {"better": "▲", "worse": "▼", "differs": "◆", "not significant": "", "no interval": ""}


def comparison_section(runs: Sequence[ShownRun]) -> page.Section | None:
    """Each run against the first one; None of a single run."""
    if len(runs) < 2:
        return None
    first, *others = runs
    compared = [(shown, _compare(first, shown)) for shown in others]
    blocks: list[page.Block] = []
    if len(compared) > 1:
        columns = (*(display.METRIC_TITLES[metric] for metric in COMPARED), "PD", *COSTS.values())
        rows = [[shown.mark, *_overview(found, len(columns))] for shown, found in compared]
        caption = f"Difference from {first.name}, with paired 95% intervals; PD is the prediction difference"
        blocks.append(page.Table(("run", *columns), rows, caption))
    for shown, found in compared:
        blocks.append(page.heading(shown.mark))
        if isinstance(found, str):
            blocks.append(page.Words(found, "note"))
        else:
            blocks += _one(first, shown, found)
    if figures := paired_figures(runs):
        blocks += [
            page.heading("Difference over time"),
            page.Words(
                f"Each run minus {first.name}, paired by query. Line and band: each window with its 95% interval. "
                "Dashed: cumulative, with its 95% interval dotted. Where a band excludes 0, the difference is "
                "significant.",
                "quiet",
            ),
            page.Figures(figures),
        ]
    return page.Section("comparison", "Comparison", ("Comparison with ", first.mark), blocks)


def _compare(first: ShownRun, other: ShownRun) -> RunComparison | str:
    """The comparison, or why there is none."""
    try:
        return compare_read_runs(first.run, other.run)
    except NotComparableError as error:
        return str(error)


def _overview(found: RunComparison | str, columns: int) -> list[page.Cell | page.Text]:
    if isinstance(found, str):
        return [page.Cell("not comparable", span=columns)]
    cells: list[page.Cell | page.Text] = []
    for metric in COMPARED:
        *_, change, bounds = found.metric_cells(metric)
        says = str(found.metrics.loc[metric, "verdict"])
        cells.append(page.Cell(change, (bounds,), says, _SIGNS[says]))
    paired = found.predictions
    cells.append(display.ABSENT if paired is None else display.fixed(paired.difference.point.item(), 4))
    return cells + [
        page.Cell(display.times(cost.ratio), (cost.bounds,) if cost.bounds else ())
        for cost in found.costs.values()
    ]


def _one(first: ShownRun, other: ShownRun, found: RunComparison) -> list[page.Block]:
    names = (first.name, other.name)
    rows: list[page.Row] = []
    for metric, row in found.metrics.to_dict("index").items():
        says, why = row["verdict"], row["no_interval"]
        title, *values, change, bounds = found.metric_cells(str(metric))
        bar = _bar(row["ci95_low"], row["difference"], row["ci95_high"])
        rows.append(
            [
                title,
                page.Cell(says, (why,) if why else (), says, _SIGNS[says]),
                *(*values, change),
                page.Cell(bounds, bar=bar),
                display.fixed(row["relative_percent"], 2, signed=True),
            ]
        )
    widths = ("17%", "13%", "11%", "11%", "11%", "29%", "8%")
    baseline = (first.name, page.Part(" baseline", "small"))
    heads: tuple[page.Text, ...] = (
        "metric",
        "verdict",
        baseline,
        other.name,
        "difference",
        "95% interval",
        "relative, %",
    )
    columns = [page.Column(head, head == "verdict", width) for head, width in zip(heads, widths, strict=True)]
    costs: list[page.Row] = []
    for key in found.costs:
        *cells, ratio, bounds, says = found.cost_cells(key)
        costs.append([*cells, page.Cell(ratio, (f"{bounds} {says}".strip(),) if bounds else ())])
    beside: list[page.Block] = [page.Table(("", *names, "ratio"), costs, "Cost", "narrow")]
    beside += [page.Words(note, "quiet") for note in found.cost_notes]
    if found.configuration:
        beside.append(_settings("Configuration keys that differ", found.configuration, names))
    else:
        beside.append(page.Words("The configurations are equal."))
    if found.environment:
        title = "Environment entries that differ: speeds may differ by more than the configuration"
        beside.append(_settings(title, found.environment, names))
    return [
        page.Table(columns, rows, layout="fixed"),
        *([page.Words(SEED_NOTE, "note")] if found.differs_by_seed else []),
        page.Words((page.Part("Prediction difference", "strong"), " ", *_predictions(found, names))),
        page.Beside(beside),
    ]


def _predictions(found: RunComparison, names: tuple[str, str]) -> tuple[page.Text, ...]:
    paired = found.predictions
    if paired is None:
        return (f"unknown: {found.no_predictions}.",)
    number = paired.difference.number()
    only = ((paired.only_a, names[0]), (paired.only_b, names[1]))
    lacking = ", ".join(f"{display.amount(count)} only in {name}" for count, name in only)
    alone = f"; {lacking}" if paired.only_a or paired.only_b else ""
    over = f" over {display.amount(paired.examples)} examples of both runs{alone}."
    return (number.text(5), " ", page.quiet(number.bounds(5)), over)


def _settings(title: str, differences: Sequence[Difference], names: tuple[str, str]) -> page.Table:
    rows: list[page.Row] = [
        [page.code(one.key), page.code(one.shown("a")), page.code(one.shown("b"))] for one in differences
    ]
    return page.Table(("key", *(page.Column(name, words=True) for name in names)), rows, title, "narrow")


def _bar(*ends: float) -> tuple[float, float, float] | None:
    """Low end, difference and high end on a scale from 0 to 120, whose middle is a difference of 0."""
    longest = max(map(abs, ends))
    if not 0 < longest < math.inf:
        return None
    low, middle, high = (round(_BAR_MIDDLE + _BAR_HALF * end / longest, 1) for end in ends)
    return low, middle, high
