"""The frontier: PerQueryAUC against PD, over the last half of the pass. The same results give the same bytes."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from reproducibility_report import CONDITIONS, Measured

from ctr.eval.plot_style import COLORS, MARKERS, QUIET, STYLE

_STYLE = {**STYLE, "font.size": 8.0}
KINDS = ("relu", "smelu", "swish", "gelu", "ensemble", "anti-distillation")
"""How the names of the arms that are drawn begin; a logistic regression has no PD, and is far below them."""
_PART = "half"
_SIZE = (4.6, 3.8)
"""Of a panel, in inches."""


def frontier_svg(measured: Sequence[Measured], base: str, path: Path) -> None:
    """Draws one panel for each condition under which there are pairs; nothing where there are none.

    Horizontal bars go from the lowest to the highest pair of seeds. Vertical ones are the paired interval of the
    difference from the base, whose own interval is the band.
    """
    shown = [one for one in measured if one.pairs[_PART] and one.arm.startswith(KINDS)]
    conditions = [name for name in CONDITIONS if any(one.condition == name for one in shown)]
    if not conditions:
        return
    with matplotlib.rc_context(_STYLE):
        size = _SIZE[0] * len(conditions), _SIZE[1]
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(conditions), sharex=True, sharey=True, squeeze=False)[0]
        for axes, condition in zip(panels, conditions, strict=True):
            _panel(axes, [one for one in shown if one.condition == condition], base)
            axes.set_title(CONDITIONS[condition])
            axes.set_xlabel("prediction difference of two runs, last half, %")
        panels[0].set_ylabel("PerQueryAUC, last half")
        marks = [
            Line2D(
                [], [], color=_color(kind), marker=_marker(kind), markersize=4.5, linestyle="none", label=kind
            )
            for kind in KINDS
            if any(one.arm.startswith(kind) for one in shown)
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False)
        figure.draw_without_rendering()
        for axes, condition in zip(panels, conditions, strict=True):
            _name_points(axes, [one for one in shown if one.condition == condition])
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _place(one: Measured) -> tuple[float, float]:
    difference = one.pd(_PART)
    assert difference is not None
    return 100 * float(difference.point), float(one.metric(_PART, "per_query_auc").point)


def _panel(axes: Axes, members: Sequence[Measured], base: str) -> None:
    relu = next((one for one in members if one.arm == base), None)
    if relu is not None:
        low, high = (float(end) for end in relu.metric(_PART, "per_query_auc").interval())
        axes.axhspan(low, high, color="#e8eef5", zorder=0)
        axes.axvline(_place(relu)[0], color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
    swept = [_place(one) for one in members if one.arm.startswith("smelu ")]
    axes.plot(*np.array(swept).reshape(-1, 2).T, color=_color("smelu"), linewidth=0.8, alpha=0.6)
    for one in members:
        x, y = _place(one)
        pairs = [100 * float(pair.point) for pair in one.pairs[_PART].values()]
        change = None if relu is None or relu is one else one.against(relu, _PART, "per_query_auc")
        margin = 0.0 if change is None else float(change.point - change.interval()[0])
        axes.errorbar(
            x,
            y,
            xerr=[[x - min(pairs)], [max(pairs) - x]],
            yerr=np.nan_to_num(margin),
            color=_color(one.arm),
            marker=_marker(one.arm),
            markersize=4.5,
            elinewidth=0.8,
            linestyle="none",
        )


def _kind(arm: str) -> int:
    return next(place for place, start in enumerate(KINDS) if arm.startswith(start))


def _color(arm: str) -> str:
    return COLORS[_kind(arm) % len(COLORS)]


def _marker(arm: str) -> str:
    return MARKERS[_kind(arm) % len(MARKERS)]


def _label(arm: str) -> str:
    """What the legend does not say of an arm."""
    return arm.removeprefix(KINDS[_kind(arm)]).strip()


def _name_points(axes: Axes, members: Sequence[Measured]) -> None:
    """Writes a label beside each point, where it hides the fewest other labels and points."""
    places = [_place(one) for one in members]
    points = axes.transData.transform(np.array(places))
    frame = axes.get_window_extent()
    # In pixels, from the font's usual proportions: the text is laid out by whoever shows the picture.
    pixel = axes.figure.dpi / 72
    boxes = np.column_stack([points - 3 * pixel, points + 3 * pixel])
    for one, place, (x, y) in zip(members, places, points, strict=True):
        label = _label(one.arm)
        if not label:
            continue
        size = np.array([3.6 * len(label), 7.5]) * pixel
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
        axes.annotate(
            label,
            place,
            (across * distance, up * distance),
            textcoords="offset points",
            ha={1: "left", 0: "center", -1: "right"}[across],
            va="center",
            fontsize=6.5,
            color=_color(one.arm),
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.4} if distance > 10 else None,
        )


def _hidden(box: np.ndarray, others: np.ndarray) -> float:
    """The area that a box [4] (left, bottom, right, top) shares with others [N, 4]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    return float(np.prod(np.maximum(high - low, 0), axis=1).sum())
