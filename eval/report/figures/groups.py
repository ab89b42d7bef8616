"""Plots of a metric by group: deciles, values of a feature, sizes of queries."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctr.eval.report.figures.axes import draw_bars, frame_values, interval_texts
from ctr.eval.report.plot_style import QUIET, STYLE, Hover, new_figure, to_svg


def by_group(
    tables: Sequence[pd.DataFrame],
    columns: tuple[str, str, str],
    groups: Sequence[str],
    labels: tuple[str, str],
    best: float,
) -> str:
    """Plots a metric by group, the runs beside one another.

    Args:
        tables: for each run one row for each group; NaN where it has none.
        columns: the metric's and those of its interval's ends.
        labels: of both axes: what the groups are, and the metric.
        best: the metric's best value.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((4.9, 3.2))
        hover = Hover(near=True)
        axes.axhline(best, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        shown = [np.array([best])]
        for index, table in enumerate(tables):
            x = np.arange(len(groups)) + offset(index, len(tables))
            y, low, high = (table[name].to_numpy(np.float64) for name in columns)
            draw_bars(axes, x, y, low, high, index)
            hover.add(
                index, axes, x, y, [f"{labels[0]} {group}" for group in groups], interval_texts(y, low, high)
            )
            # The ends of unusually long intervals may lie outside the frame.
            usual = (
                high - low <= 3 * np.nanmedian(high - low) if np.isfinite(high - low).any() else low > high
            )
            shown += [y, np.where(usual, low, y), np.where(usual, high, y)]
        frame_values(axes, np.concatenate(shown), None)
        name_groups(axes, groups, labels[0])
        axes.set_ylabel(labels[1])
        return to_svg(figure, hover)


def offset(index: int, runs: int) -> float:
    """Distance of a run's points from the middle of their group."""
    return (index - (runs - 1) / 2) * min(0.7 / runs, 0.25)


def name_groups(axes: Axes, groups: Sequence[str], label: str) -> None:
    """Writes the names of the groups below the axis, turned where they are long."""
    crowded = sum(map(len, groups)) > 32
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(np.arange(len(groups)), list(groups), **turned)
    axes.set_xlim(-0.6, max(len(groups), 1) - 0.4)
    axes.grid(False, axis="x")
    axes.set_xlabel(label)
