"""Tables of what bias constraints are for: calibrated slices, and retrains that show the same (FF table 3)."""

from collections.abc import Mapping, Sequence

import numpy as np

from ctr.eval import display
from ctr.eval.intervals import Estimate
from ctr.experiments.report.arms import PairChange
from ctr.experiments.report.cells import NOTHING, PAPER, ArmTable, Cell, bounds, paper_cell, span
from ctr.experiments.report.loops import SHOWN
from ctr.experiments.report.results import ArmResult
from ctr.experiments.report.slices import SliceChange

_SLICE_COLUMNS = ("slice", "weight", "reference's bias, %", "bias, %", "size, % [95%]")


def loop_table(arms: Sequence[ArmResult], days: int | None) -> ArmTable | None:
    """What runs showed when they served; None where no loop is finished."""
    rows = [
        (result.arm.plan.name, _loop_cells(result))
        for result in arms
        if result.loops is not None and result.loops.loops.shown
    ]
    if not rows:
        return None
    return ArmTable(
        name="serving",
        title=f"Serving{_length(days)}: ads shown, and how runs differ in them, in percent",
        columns=("ads/query", "revenue", "churn", "pairs", "change, % [95%]", "by query", "change, %", PAPER),
        rows=rows,
        notes=(
            "revenue: per 1000 queries. churn: difference of two runs' ads per query over their mean, averaged over",
            "pairs of seeds; pairs: smallest to largest; by query: each query counts. Changes: of the churn.",
        ),
    )


def slice_table(arms: Sequence[ArmResult], *, every: bool = False) -> ArmTable | None:
    """Bias of the slices that the experiment shows, or of `every` other; None without any."""
    columns = (*_SLICE_COLUMNS, "constraint log") if every else (*_SLICE_COLUMNS, PAPER)
    rows = [
        (result.arm.plan.name, _slice_cells(result, change, every))
        for result in arms
        for change in result.slices
        if (change.shown is None) == every
    ]
    if not rows:
        return None
    return ArmTable(
        name="other-slices" if every else "slices",
        title=f"Bias of {'the other constrained' if every else 'constrained'} slices: label minus prediction",
        columns=columns,
        rows=rows,
        notes=(
            "bias: points of the click probability, mean over seeds. size: change of its absolute value.",
            "[95%] over queries, paired. * it excludes 0 and the changes of all seeds have one sign.",
        ),
    )


def _length(days: int | None) -> str:
    return "" if days is None else f" {days} day{'' if days == 1 else 's'}"


def _loop_cells(result: ArmResult) -> list[Cell]:
    assert result.loops is not None
    loops, changes = result.loops.loops, result.loops.changes
    ads, clicks, revenue = (loops.mean_shown(name) for name in SHOWN)
    mean_churn, query_churn = loops.mean_churn("mean_churn"), loops.mean_churn("query_churn")
    pairs = [100 * float(one.point) for one in loops.churn["mean_churn"].values()]
    return [
        Cell(display.fixed(ads, 3), f"{display.fixed(clicks, 1)} clicks per 1000 queries"),
        Cell(display.fixed(revenue, 1)),
        _churn_cell(mean_churn, loops.unavailable),
        Cell(span(pairs, 2), _signed(loops.signed)),
        _change_cell(changes["mean_churn"], with_interval=True),
        _churn_cell(query_churn, loops.unavailable),
        _change_cell(changes["query_churn"], with_interval=False),
        paper_cell(result, "ads_churn"),
    ]


def _churn_cell(churn: Estimate | None, unavailable: str) -> Cell:
    if churn is None:
        return Cell(display.ABSENT, unavailable)
    low, high = (100 * float(end) for end in churn.interval())
    return Cell(display.fixed(100 * float(churn.point), 2), display.interval(low, high, 2))


def _signed(signed: Mapping[tuple[int, int], float]) -> str:
    return ", ".join(
        f"{one}-{other}: {display.fixed(100 * value, 2, signed=True)}"
        for (one, other), value in signed.items()
    )


def _change_cell(change: PairChange | None, *, with_interval: bool) -> Cell:
    if change is None:
        return NOTHING
    percent = _percent_change(change.ratio)
    low, high = percent.interval()
    value = display.fixed(float(percent.point), 1, signed=True)
    ends = display.interval(float(low), float(high), 1, signed=True)
    verdict = "better" if high < 0 else "worse" if low > 0 else ""
    return Cell(f"{value} {ends}", "", verdict) if with_interval else Cell(value, ends, verdict)


def _percent_change(ratio: Estimate) -> Estimate:
    return Estimate(100 * (ratio.point - 1), 100 * (ratio.replicates - 1), ratio.occupied)


def _slice_cells(result: ArmResult, change: SliceChange, every: bool) -> list[Cell]:
    low, high = (float(end) for end in change.size_change.interval())
    value = display.fixed(float(change.size_change.point), 1, signed=True)
    ends = display.interval(low, high, 1, signed=True)
    star = "*" if change.significant else " "
    verdict = ("better" if high < 0 else "worse") if change.significant else ""
    each = ", ".join(
        f"{seed}: {display.fixed(one, 1, signed=True)}" for seed, one in change.size_change_by_seed.items()
    )
    heavier = f"{display.amount(np.round(change.reference_weight))} of the reference"
    return [
        _name_cell(change),
        Cell(display.amount(np.round(change.weight)), heavier),
        Cell(_bias(change.reference_bias), _bias_bounds(change.reference_bias)),
        Cell(_bias(change.bias), _bias_bounds(change.bias)),
        Cell(f"{value} {ends}{star}", f"by seed {each}", verdict),
        Cell(change.log or "", "")
        if every
        else paper_cell(result, change.shown.name if change.shown is not None else ""),
    ]


def _name_cell(change: SliceChange) -> Cell:
    shown = change.shown
    if shown is None:
        return Cell(change.holds, change.family)
    return Cell(
        f"{shown.name}: {shown.title or change.holds}",
        change.holds if change.log is None else f"{change.holds}; constraint log {change.log}",
    )


def _bias(bias: Estimate) -> str:
    return display.fixed(100 * float(bias.point), 3, signed=True)


def _bias_bounds(bias: Estimate) -> str:
    return bounds(Estimate(100 * bias.point, 100 * bias.replicates, bias.occupied), 3)
