"""PerQueryAUC by the size of the query."""

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ctr.eval import display
from ctr.eval.per_query_auc import SIZE_NAMES
from ctr.eval.report.figures.axes import draw_bars, interval_texts
from ctr.eval.report.figures.figure import ReportFigure, figure_of
from ctr.eval.report.figures.groups import name_groups, offset
from ctr.eval.report.plot_style import COLORS, OTHER, STYLE, Hover, of_run, thousands, to_svg
from ctr.eval.report.shown_run import ShownRun


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
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.9, 3.6), layout="constrained")
        hover = Hover(near=True)
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
                bars = below.bar(x, table["queries"].to_numpy(), width, color=COLORS[index % len(COLORS)])
                of_run(index, bars)
        if same:
            below.bar(np.arange(len(sizes)), rows[0]["queries"].to_numpy(), 0.5, color=OTHER, alpha=0.5)
        low, high = above.get_ylim()
        above.set_ylim(max(low, -0.03), min(high, 1.03))
        above.set_ylabel("PerQueryAUC")
        above.tick_params(bottom=False)
        below.set_ylabel("queries")
        below.yaxis.set_major_formatter(thousands())
        below.yaxis.get_major_locator().set_params(nbins=3)
        name_groups(below, sizes, "rows in the query")
        return to_svg(figure, hover)
