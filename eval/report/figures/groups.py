"""Plots of a metric by group: deciles, values of a feature, sizes of queries."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ctr.eval import display
from ctr.eval.per_query_auc import SIZE_NAMES
from ctr.eval.report import plot_style
from ctr.eval.report.figures.figure import ReportFigure, draw_bars, figure_of, frame_values, interval_texts
from ctr.eval.report.shown_run import ShownRun


def by_group(
    tables: Sequence[pd.DataFrame],
    columns: tuple[str, str, str],
    groups: Sequence[str],
    labels: tuple[str, str],
    best: float,
) -> str:
    """Plots a metric by group, the runs beside one another.

    ``tables``: for each run one row for each group; NaN where it has none. ``columns``: the metric's and
    those of its interval's ends. ``labels``: of both axes: what the groups are, and the metric.
    """
    with matplotlib.rc_context(plot_style.STYLE):
        figure, axes = plot_style.new_figure((4.9, 3.2))
        hover = plot_style.Hover(near=True)
        axes.axhline(best, color=plot_style.QUIET, linestyle=(0, (4, 3)), linewidth=1)
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
        return plot_style.to_svg(figure, hover)


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


def query_size_figure(runs: Sequence[ShownRun]) -> ReportFigure | None:
    """PerQueryAUC by query size; None when no query has both a click and a non-click."""
    if not any(len(shown.sizes) for shown in runs):
        return None
    ranges = " ".join(
        f"{shown.name}: between {display.fixed(shown.sizes['auc'].min(), 3)} "
        f"and {display.fixed(shown.sizes['auc'].max(), 3)}."
        for shown in runs
    )
    return figure_of(
        "PerQueryAUC by rows in the query",
        auc_by_query_size([shown.sizes for shown in runs]),
        f"PerQueryAUC for queries of different sizes. {ranges}",
        note="below: the number of such queries",
    )


def auc_by_query_size(tables: Sequence[pd.DataFrame]) -> str:
    """Plots PerQueryAUC by the number of a query's rows, over how many queries have that many."""
    sizes = [name for name in SIZE_NAMES if any(name in set(table["size"]) for table in tables)]
    rows = [table.set_index("size").reindex(sizes) for table in tables]
    same = all(table["queries"].equals(rows[0]["queries"]) for table in rows)
    with matplotlib.rc_context(plot_style.STYLE):
        figure = Figure(figsize=(4.9, 3.6), layout="constrained")
        hover = plot_style.Hover(near=True)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for index, table in enumerate(rows):
            x = np.arange(len(sizes)) + offset(index, len(rows))
            bounds = table["ci95_low"].to_numpy(), table["ci95_high"].to_numpy()
            draw_bars(above, x, table["auc"].to_numpy(), *bounds, index)
            heads = [
                f"{size} rows, {display.amount(queries)} queries"
                for size, queries in zip(sizes, table["queries"], strict=True)
            ]
            hover.add(index, above, x, table["auc"], heads, interval_texts(table["auc"].to_numpy(), *bounds))
            if not same:
                width = min(0.7 / len(rows), 0.25)
                bars = below.bar(
                    x,
                    table["queries"].to_numpy(),
                    width,
                    color=plot_style.color_of(index),
                )
                plot_style.of_run(index, bars)
        if same:
            below.bar(
                np.arange(len(sizes)), rows[0]["queries"].to_numpy(), 0.5, color=plot_style.OTHER, alpha=0.5
            )
        low, high = above.get_ylim()
        above.set_ylim(max(low, -0.03), min(high, 1.03))
        above.set_ylabel("PerQueryAUC")
        above.tick_params(bottom=False)
        below.set_ylabel("queries")
        below.yaxis.set_major_formatter(plot_style.thousands())
        below.yaxis.get_major_locator().set_params(nbins=3)
        name_groups(below, sizes, "rows in the query")
        return plot_style.to_svg(figure, hover)
