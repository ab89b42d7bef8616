"""Figures of an experiment's report: which arms are drawn where, and their words."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ctr.eval import display
from ctr.eval.intervals import Estimate
from ctr.eval.report.figures.figure import ReportFigure, figure_of
from ctr.experiments.report.arms import prediction_difference_of
from ctr.experiments.report.plots import (
    Panel,
    Spot,
    accuracy_against_cost,
    bias_by_decile,
    difference_against_accuracy,
)
from ctr.experiments.report.results import ACCURACY, ArmResult, Experiment

_PANELS = {
    "train_time": "change in training time, %",
    "train_flops": "change in training FLOPs, %",
}


def arm_places(experiment: Experiment) -> dict[str, int]:
    """Place of each arm among the arms; a point of a sweep has that of its arm."""
    own = [result.arm.plan for result in experiment.arms if result.arm.plan.of is None]
    places = {plan.name: place for place, plan in enumerate(own)}
    return {
        plan.name: places.get(plan.of or plan.name, 0)
        for plan in (result.arm.plan for result in experiment.arms)
    }


def frontier_figure(experiment: Experiment) -> ReportFigure | None:
    """Accuracy against training cost, of all arms and sweeps; None where no arm has both."""
    places = arm_places(experiment)
    panels = [panel for cost, label in _PANELS.items() if (panel := _panel(experiment, places, cost, label))]
    if not panels:
        return None
    words = " ".join(
        f"{spot.name}: cost {display.fixed(spot.x, 1, signed=True)}%, "
        f"accuracy {display.fixed(spot.y, 3, signed=True)}%."
        for spot in panels[0].spots
    )
    return figure_of(
        "Change in PerQueryAUC vs training cost",
        accuracy_against_cost(panels),
        f"Accuracy vs training cost. {words}",
        note="relative to the baseline; hollow: points of a sweep, whose line is drawn at the sweep's seeds",
    )


def prediction_figure(experiment: Experiment) -> ReportFigure | None:
    """PD against PerQueryAUC; None where no arm has a PD."""
    places = arm_places(experiment)
    spots = []
    for result in experiment.arms:
        late, accuracy = prediction_difference_of(result.arm, "late"), result.arm.metric(ACCURACY)
        if late is None or accuracy is None or not np.isfinite([late.point, accuracy.point]).all():
            continue
        pairs = [100 * float(one.point) for one in result.arm.prediction_pairs.pairs["late"].values()]
        plan = result.arm.plan
        spots.append(
            Spot(
                name=plan.name,
                index=places[plan.name],
                x=100 * float(late.point),
                y=float(accuracy.point),
                x_span=(min(pairs), max(pairs)),
                y_span=_paired_span(result, accuracy),
                curve=plan.of is not None,
            )
        )
    if not spots:
        return None
    words = " ".join(f"{spot.name}: {display.fixed(spot.x, 2)}%, {display.fixed(spot.y)}." for spot in spots)
    return figure_of(
        "Prediction difference vs PerQueryAUC",
        difference_against_accuracy(spots),
        f"Prediction difference and accuracy of each arm. {words}",
        note="bars: all pairs of seeds, and the interval of the difference from the reference",
    )


def bias_figures(experiment: Experiment) -> list[tuple[ArmResult, ArmResult | None, ReportFigure]]:
    """Calibration bias of each arm beside its reference's, with both; points of sweeps are left out."""
    places = arm_places(experiment)
    by_name = {result.arm.plan.name: result for result in experiment.arms}
    figures = []
    for result in experiment.arms:
        plan, deciles = result.arm.plan, result.arm.deciles
        if deciles is None or plan.of is not None:
            continue
        reference = None if result.reference is None else by_name[result.reference]
        tables = [(places[plan.name], deciles)]
        beside = ""
        if reference is not None and reference.arm.deciles is not None:
            tables.insert(0, (places[reference.arm.plan.name], reference.arm.deciles))
            beside = f", compared with {reference.arm.plan.name}"
        ends = [display.fixed(end, signed=True) for end in (deciles["bias"].min(), deciles["bias"].max())]
        figure = figure_of(
            f"bias by decile of prediction{beside}",
            bias_by_decile(tables),
            f"Calibration bias of {plan.name} by decile of prediction: between {ends[0]} and {ends[1]}.",
        )
        figures.append((result, reference, figure))
    return figures


def _panel(experiment: Experiment, places: Mapping[str, int], cost: str, label: str) -> Panel | None:
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
        spots[plan.name] = Spot(
            name=plan.name if plan.of is None else plan.point or "",
            index=places[plan.name],
            x=100 * (multiple.value - 1),
            y=0.0 if change is None else float(change.percent.point),
            x_span=spans,
            y_span=None if change is None else _span(change.percent),
            curve=plan.of is not None,
        )
    if len(spots) < 2:
        return None
    baseline = experiment.plan.baseline
    steps = [
        (spots[result.reference], spots[result.arm.plan.name])
        for result in experiment.arms
        if result.reference not in (None, baseline)
        and result.arm.plan.of is None
        and result.reference in spots
        and result.arm.plan.name in spots
    ]
    curves = [
        sorted(curve, key=lambda spot: spot.x)
        for result in experiment.arms
        if len(curve := _sweep_curve(experiment, result, spots)) > 1
    ]
    return Panel(label, list(spots.values()), steps, curves)


def _sweep_curve(experiment: Experiment, result: ArmResult, spots: Mapping[str, Spot]) -> Sequence[Spot]:
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
        own = replace(own, y=sum(swept) / len(swept))
    return [own, *curve]


def _paired_span(result: ArmResult, accuracy: Estimate) -> tuple[float, float] | None:
    change = result.changes.get(ACCURACY)
    ends = None if change is None else _span(change.difference)
    if change is None or ends is None:
        return None
    middle = float(accuracy.point) - float(change.difference.point)
    return middle + ends[0], middle + ends[1]


def _span(estimate: Estimate) -> tuple[float, float] | None:
    low, high = (float(end) for end in estimate.interval())
    return (low, high) if low <= high else None
