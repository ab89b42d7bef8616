"""Figures of an experiment's report: which arms are drawn where, their words, and their plots as SVG.

Arms have the color and the marker of their place among the arms, points of a sweep those of their arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ctr.eval import display
from ctr.eval.arrays import FloatArray
from ctr.eval.intervals import Estimate
from ctr.eval.report.figures.figure import ReportFigure, figure_of
from ctr.eval.report.plot_style import (
    QUIET,
    STYLE,
    Hover,
    color_of,
    marker_of,
    new_figure,
    of_run,
    to_svg,
)
from ctr.experiments.report.arms import prediction_difference_of
from ctr.experiments.report.results import ACCURACY, ArmResult, Experiment

_PANELS = {
    "train_time": "change in training time, %",
    "train_flops": "change in training FLOPs, %",
}
_PANEL = (5.2, 4.0)
_DECILES = 10
_ARROW: dict[str, Any] = {"arrowstyle": "-|>", "color": QUIET, "linewidth": 0.8, "shrinkA": 5, "shrinkB": 5}


@dataclass(frozen=True)
class Spot:
    """Point of a plot with its spans."""

    name: str  # written beside it; empty for none
    index: int  # place of its arm among the arms
    x: float
    y: float
    x_span: tuple[float, float] | None = None
    y_span: tuple[float, float] | None = None
    curve: bool = False  # whether it is a point of its arm's sweep


@dataclass(frozen=True)
class Panel:
    """Spots over one kind of cost."""

    label: str  # of the axis
    spots: Sequence[Spot]
    steps: Sequence[tuple[Spot, Spot]]  # joined by arrows, from a reference other than the baseline to an arm
    curves: Sequence[Sequence[Spot]]  # joined by a line, by ascending x


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


def accuracy_against_cost(panels: Sequence[Panel]) -> str:
    """Plots change of accuracy against that of cost, both in percent of the baseline's, as in FF figure 1."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_PANEL[0] * len(panels), _PANEL[1]), layout="constrained")
        hover = Hover(near=True)
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            axes.axhline(0, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
            axes.axvline(0, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
            for curve in panel.curves:
                color = color_of(curve[0].index)
                x, y = [spot.x for spot in curve], [spot.y for spot in curve]
                of_run(curve[0].index, axes.plot(x, y, color=color, linewidth=1, alpha=0.7))
            for begin, end in panel.steps:
                axes.annotate("", (end.x, end.y), (begin.x, begin.y), arrowprops=_ARROW)
            _draw_spots(axes, panel.spots, hover)
            axes.set_xlabel(panel.label)
        all_axes[0].set_ylabel("change in PerQueryAUC, %")
        _write_names(figure, [(axes, panel.spots) for axes, panel in zip(all_axes, panels, strict=True)])
        return to_svg(figure, hover)


def difference_against_accuracy(spots: Sequence[Spot]) -> str:
    """Plots PD over the last half of the pass, in percent, against PerQueryAUC."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((6.4, 4.2))
        hover = Hover(near=True)
        _draw_spots(axes, spots, hover)
        axes.set_xlabel("prediction difference of two runs, last half, %")
        axes.set_ylabel("PerQueryAUC")
        _write_names(figure, [(axes, spots)])
        return to_svg(figure, hover)


def bias_by_decile(tables: Sequence[tuple[int, pd.DataFrame]]) -> str:
    """Plots calibration bias by decile of prediction, as in FF figure 5b.

    ``tables``: place of the arm among the arms, and the table of `ctr.eval.calibration.calibration_buckets`.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((4.9, 3.2))
        axes.axhline(0, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        for place, (index, table) in enumerate(tables):
            bias = table["bias"].to_numpy()
            margins = np.stack([bias - table["ci95_low"].to_numpy(), table["ci95_high"].to_numpy() - bias])
            container = axes.errorbar(
                np.arange(1, _DECILES + 1) + 0.12 * (place - (len(tables) - 1) / 2),
                bias,
                yerr=np.maximum(np.nan_to_num(margins), 0.0),
                color=color_of(index),
                marker=marker_of(index),
                markersize=4,
                linewidth=1.2,
                elinewidth=1,
                capsize=2,
            )
            of_run(index, container.lines)
        axes.set_xticks(range(1, _DECILES + 1))
        axes.grid(False, axis="x")
        axes.set_xlabel("decile of predicted CTR")
        axes.set_ylabel("observed − predicted CTR")
        return to_svg(figure)


def _draw_spots(axes: Axes, spots: Sequence[Spot], hover: Hover) -> None:
    for spot in spots:
        height = display.with_margin(spot.y, *(spot.y_span or (None, None)))
        place = f"{display.fixed(spot.x, 2)}%, {height}"
        hover.add(spot.index, axes, [spot.x], [spot.y], [spot.name or "sweep"], [place])
        container = axes.errorbar(
            spot.x,
            spot.y,
            xerr=_margins(spot.x, spot.x_span),
            yerr=_margins(spot.y, spot.y_span),
            color=color_of(spot.index),
            marker=marker_of(spot.index),
            markersize=3.5 if spot.curve else 5.5,
            markerfacecolor="white" if spot.curve else color_of(spot.index),
            linestyle="none",
            elinewidth=0.9,
            alpha=0.8 if spot.curve else 1.0,
        )
        of_run(spot.index, container.lines)


def _margins(value: float, span: tuple[float, float] | None) -> list[list[float]] | None:
    return None if span is None else [[max(value - span[0], 0.0)], [max(span[1] - value, 0.0)]]


def _write_names(figure: Figure, drawn: Sequence[tuple[Axes, Sequence[Spot]]]) -> None:
    figure.set_dpi(72)
    # Once laid out, the axes stay where the names were fitted.
    figure.draw_without_rendering()
    for axes, spots in drawn:
        name_points(
            axes,
            [(spot.x, spot.y) for spot in spots],
            [spot.name for spot in spots],
            [color_of(spot.index) for spot in spots],
            [spot.index for spot in spots],
        )


def name_points(
    axes: Axes,
    places: Sequence[tuple[float, float]],
    labels: Sequence[str],
    colors: Sequence[str],
    runs: Sequence[int],
) -> None:
    """Writes a label beside each point, where it hides the fewest other labels and points.

    The axes are laid out already, so that they know where the points lie. An empty label is not written.
    """
    if not places:
        return
    points = axes.transData.transform(np.array(places))
    frame = axes.get_window_extent()
    # In pixels, from the font's usual proportions: the text is laid out by whoever shows the picture.
    pixel = axes.figure.dpi / 72
    boxes = np.column_stack([points - 3 * pixel, points + 3 * pixel])
    for place, label, color, run, (x, y) in zip(places, labels, colors, runs, points, strict=True):
        if not label:
            continue
        size = np.array([4.1 * len(label), 8.5]) * pixel
        tries = []
        for distance in (5, 10, 17, 26):
            for across, up in ((0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0)):
                low = np.array([x, y]) + np.array([across, up]) * distance * pixel
                low -= size * [(1 - across) / 2, 0.5]
                box = np.concatenate([low, low + size])
                outside = low[0] < frame.x0 or box[2] > frame.x1 or low[1] < frame.y0 or box[3] > frame.y1
                cost = _hidden(box, boxes) + 1e6 * outside + distance
                tries.append((cost, distance, across, up, box))
        _, distance, across, up, box = min(tries, key=lambda found: found[0])
        boxes = np.vstack([boxes, box])
        text = axes.annotate(
            label,
            place,
            (across * distance, up * distance),
            textcoords="offset points",
            ha={1: "left", 0: "center", -1: "right"}[across],
            va="center",
            fontsize=7.5,
            color=color,
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.4} if distance > 10 else None,
        )
        of_run(run, text)


def _hidden(box: FloatArray, others: FloatArray) -> float:
    """Area that a box [4] (left, bottom, right, top) shares with others [N, 4]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    return float(np.prod(np.maximum(high - low, 0), axis=1).sum())
