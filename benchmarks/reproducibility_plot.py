"""The frontier: PerQueryAUC against PD, over the last half of the pass. The same results give the same bytes."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from reproducibility_report import CONDITIONS, Measured

from ctr.eval.plot_labels import name_points
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
            named = [one for one in shown if one.condition == condition]
            name_points(
                axes,
                [_place(one) for one in named],
                [_label(one.arm) for one in named],
                [_color(one.arm) for one in named],
            )
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
