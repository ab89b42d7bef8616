"""Figures of an experiment's report: which arms are drawn where, and their words.

Arms have the color and the marker of their place among the arms, points of a sweep those of their arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ctr.eval import display
from ctr.eval.intervals import Estimate
from ctr.eval.report import page
from ctr.experiments.report.arms import prediction_difference_of
from ctr.experiments.report.results import ACCURACY, ArmResult, Experiment

_PANELS = {
    "train_time": "change in training time, %",
    "train_flops": "change in training FLOPs, %",
}
_DECILES = [str(decile) for decile in range(1, 11)]

Span = tuple[float, float]


def frontier_figure(experiment: Experiment, marks: Mapping[str, page.Mark]) -> page.Figure | None:
    """Change of accuracy against that of training cost, of all arms and sweeps, as in FF figure 1.

    None where no arm has both.
    """
    found = {label: _spots(experiment, marks, cost) for cost, label in _PANELS.items()}
    shown = {label: spots for label, spots in found.items() if len(spots) > 1}
    if not shown:
        return None
    words = " ".join(
        f"{spot.name}: cost {display.fixed(spot.x[0], 1, signed=True)}%, "
        f"accuracy {display.fixed(spot.y[0], 3, signed=True)}%."
        for spot in next(iter(shown.values())).values()
    )
    panels = [
        _cost_panel(experiment, spots, label, "" if place else "change in PerQueryAUC, %")
        for place, (label, spots) in enumerate(shown.items())
    ]
    return page.Figure(
        "Change in PerQueryAUC vs training cost",
        panels,
        f"Accuracy vs training cost. {words}",
        note="relative to the baseline; hollow: points of a sweep, whose line is drawn at the sweep's seeds",
        size=(5.2 * len(panels), 4.0),
        near=True,
    )


def _cost_panel(
    experiment: Experiment, spots: Mapping[str, page.Series], label: str, y_label: str
) -> page.Panel:
    """Arms by a kind of cost; lines join sweeps, and arrows lead from a reference other than the baseline."""
    curves = [_sweep_curve(experiment, result, spots) for result in experiment.arms]
    lines = [
        page.Series(
            [spot.x[0] for spot in curve], [spot.y[0] for spot in curve], curve[0].style,
            width=1.0, alpha=0.7,
        )
        for curve in (sorted(one, key=lambda spot: spot.x[0]) for one in curves if len(one) > 1)
    ]  # fmt: skip
    arrows = [
        (_place(spots[result.reference]), _place(spots[result.arm.plan.name]))
        for result in experiment.arms
        if result.reference not in (None, experiment.plan.baseline)
        and result.arm.plan.of is None
        and result.reference in spots
        and result.arm.plan.name in spots
    ]
    return page.Panel(
        [*lines, *spots.values()], page.Axis(label, level=0.0), page.Axis(y_label, level=0.0), arrows=arrows
    )


def _place(spot: page.Series) -> tuple[float, float]:
    return float(spot.x[0]), float(spot.y[0])


def _spots(experiment: Experiment, marks: Mapping[str, page.Mark], cost: str) -> dict[str, page.Series]:
    """Each arm whose accuracy and cost are known, by name."""
    spots = {}
    for result in experiment.arms:
        plan, multiple = result.arm.plan, getattr(result.cost_from_baseline, cost)
        change = result.from_baseline
        if multiple is None or (change is None and result.reference is not None) or not result.arm.estimates:
            continue
        if change is not None and not np.isfinite(change.percent.point):
            continue
        spans = None
        if multiple.low is not None and multiple.high is not None:
            spans = 100 * (multiple.low - 1), 100 * (multiple.high - 1)
        spots[plan.name] = _spot(
            plan.name if plan.of is None else plan.point or "",
            marks[plan.name],
            (100 * (multiple.value - 1), 0.0 if change is None else float(change.percent.point)),
            spans,
            None if change is None else _span(change.percent),
            of_sweep=plan.of is not None,
        )
    return spots


def _spot(
    name: str,
    mark: page.Mark,
    place: tuple[float, float],
    x_span: Span | None,
    y_span: Span | None,
    *,
    of_sweep: bool,
) -> page.Series:
    """Point of a plot, with its name beside it."""
    x, y = place
    low, high = y_span or (None, None)
    return page.Series(
        [x], [y], mark.index, "points",
        low=None if low is None else [low], high=None if high is None else [high], x_span=x_span,
        size=3.5 if of_sweep else 5.5, hollow=of_sweep, capped=False,
        alpha=0.8 if of_sweep else 1.0, name=name, heads=[name or "sweep"],
        texts=[f"{display.fixed(x, 2)}%, {display.with_margin(y, low, high)}"],
    )  # fmt: skip


def _sweep_curve(
    experiment: Experiment, result: ArmResult, spots: Mapping[str, page.Series]
) -> Sequence[page.Series]:
    """An arm, at the sweep's seeds alone, and its points; nothing for an arm without a sweep."""
    points = experiment.plan.points(result.arm.plan)
    seeds = {seed for point in points for seed in point.seeds}
    curve = [spots[point.name] for point in points if point.name in spots]
    own, change = spots.get(result.arm.plan.name), result.from_baseline
    if own is None or not curve:
        return curve
    if change is not None:
        swept = [value for seed, value in change.percent_by_seed.items() if seed in seeds]
        if not swept:
            return curve
        own = replace(own, y=[sum(swept) / len(swept)])
    return [own, *curve]


def prediction_figure(experiment: Experiment, marks: Mapping[str, page.Mark]) -> page.Figure | None:
    """PD over the last half of the pass against PerQueryAUC; None where no arm has a PD."""
    spots = []
    for result in experiment.arms:
        late, accuracy = prediction_difference_of(result.arm, "late"), result.arm.metric(ACCURACY)
        if late is None or accuracy is None or not np.isfinite([late.point, accuracy.point]).all():
            continue
        pairs = [100 * float(one.point) for one in result.arm.prediction_pairs.pairs["late"].values()]
        name = result.arm.plan.name
        place = 100 * float(late.point), float(accuracy.point)
        spans = (min(pairs), max(pairs)), _paired_span(result, accuracy)
        spots.append(_spot(name, marks[name], place, *spans, of_sweep=result.arm.plan.of is not None))
    if not spots:
        return None
    words = " ".join(
        f"{spot.name}: {display.fixed(spot.x[0], 2)}%, {display.fixed(spot.y[0])}." for spot in spots
    )
    return page.Figure(
        "Prediction difference vs PerQueryAUC",
        [
            page.Panel(
                spots, page.Axis("prediction difference of two runs, last half, %"), page.Axis("PerQueryAUC")
            )
        ],
        f"Prediction difference and accuracy of each arm. {words}",
        note="bars: all pairs of seeds, and the interval of the difference from the reference",
        size=(6.4, 4.2),
        near=True,
    )


def _paired_span(result: ArmResult, accuracy: Estimate) -> Span | None:
    change = result.changes.get(ACCURACY)
    ends = None if change is None else _span(change.difference)
    if change is None or ends is None:
        return None
    middle = float(accuracy.point) - float(change.difference.point)
    return middle + ends[0], middle + ends[1]


def _span(estimate: Estimate) -> Span | None:
    low, high = (float(end) for end in estimate.interval())
    return (low, high) if low <= high else None


def bias_figures(experiment: Experiment, marks: Mapping[str, page.Mark]) -> list[page.Figure]:
    """Calibration bias of each arm beside its reference's, as in FF figure 5b; points of sweeps are left out."""
    deciles = {result.arm.plan.name: result.arm.deciles for result in experiment.arms}
    figures = []
    for result in experiment.arms:
        plan, own = result.arm.plan, result.arm.deciles
        if own is None or plan.of is not None:
            continue
        reference = None if result.reference is None else deciles[result.reference]
        tables = (
            [] if result.reference is None or reference is None else [(marks[result.reference], reference)]
        )
        beside = f", compared with {tables[0][0].name}" if tables else ""
        ends = [display.fixed(end, signed=True) for end in (own["bias"].min(), own["bias"].max())]
        figures.append(
            page.Figure(
                f"bias by decile of prediction{beside}",
                [_bias_panel([*tables, (marks[plan.name], own)])],
                f"Calibration bias of {plan.name} by decile of prediction: between {ends[0]} and {ends[1]}.",
                marks[plan.name],
                size=(4.9, 3.2),
            )
        )
    return figures


def _bias_panel(tables: Sequence[tuple[page.Mark, pd.DataFrame]]) -> page.Panel:
    series = []
    for place, (mark, table) in enumerate(tables):
        x = np.arange(len(_DECILES)) + 0.12 * (place - (len(tables) - 1) / 2)
        bias, low, high = (table[name].to_numpy() for name in ("bias", "ci95_low", "ci95_high"))
        series.append(page.Series(x, bias, mark.index, "points", low, high, size=4.0, marked=True))
    return page.Panel(
        series,
        page.Axis("decile of predicted CTR", names=_DECILES),
        page.Axis("observed − predicted CTR", level=0.0),
    )
