"""Predicted over actual clicks, reliability and bias."""

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from ctr.eval import display
from ctr.eval.report.figures.along_pass import over_time
from ctr.eval.report.figures.figure import ReportFigure, draw_bars, figure_of
from ctr.eval.report.figures.groups import by_group
from ctr.eval.report.plot_style import QUIET, STYLE, Hover, new_figure, to_svg
from ctr.eval.report.shown_run import ShownRun


def calibration_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """Predicted over actual clicks over time and by decile, reliability, and bias by decile."""
    deciles = [shown.deciles for shown in runs]
    names = [str(decile) for decile in range(1, 11)]
    columns = ("calibration_ratio", "calibration_ratio_low", "calibration_ratio_high")
    highest = " ".join(
        f"{shown.name}: {display.with_margin(*shown.deciles.iloc[-1][list(columns)])} in the highest decile."
        for shown in runs
    )
    worst = " ".join(
        f"{shown.name}: bias between {display.fixed(shown.deciles['bias'].min(), signed=True)} "
        f"and {display.fixed(shown.deciles['bias'].max(), signed=True)}."
        for shown in runs
    )
    return [
        *_click_ratio_over_time(runs),
        figure_of(
            "Predicted / actual clicks by decile",
            by_group(deciles, columns, names, ("decile of prediction", "predicted / actual clicks"), 1.0),
            f"Predicted over actual clicks for ten deciles of prediction. {highest}",
        ),
        figure_of(
            "Observed vs predicted CTR by decile",
            reliability(deciles),
            f"Observed against predicted click-through rate for ten deciles of prediction. {worst}",
        ),
        figure_of(
            "Bias by decile",
            by_group(
                deciles,
                ("bias", "ci95_low", "ci95_high"),
                names,
                ("decile of prediction", "observed − predicted CTR"),
                0.0,
            ),
            f"Observed minus predicted click-through rate for ten deciles of prediction. {worst}",
        ),
    ]


def _click_ratio_over_time(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    courses, words = [], []
    for shown in runs:
        if len(shown.timeline):
            courses.append(
                (
                    shown.index,
                    shown.timeline,
                    shown.timeline.click_ratio(),
                    shown.timeline.click_ratio(cumulative=True),
                )
            )
            last = (float(one[0]) for one in shown.timeline.last_window().click_ratio())
            words.append(f"{shown.name}: {display.with_margin(*last)} at the end of the pass.")
    if not courses:
        return []
    return [
        figure_of(
            "Predicted / actual clicks over time",
            over_time(courses, "predicted / actual clicks", 1.0),
            f"Predicted over actual clicks in each window over time. {' '.join(words)}",
            note="dashed: cumulative",
        )
    ]


def reliability(deciles: Sequence[pd.DataFrame]) -> str:
    """Plots the share of clicks against mean prediction, by decile of prediction; the diagonal is perfect."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((4.9, 3.2))
        hover = Hover(near=True)
        predictions = np.concatenate([table["mean_prediction"].to_numpy() for table in deciles])
        labels = np.concatenate([table["mean_label"].to_numpy() for table in deciles])
        positive = predictions[predictions > 0]
        logarithmic = len(positive) > 0 and positive.max() > 20 * positive.min()
        values = np.concatenate([predictions, labels])
        values = values[np.isfinite(values) & ((values > 0) | ~logarithmic)]
        low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
        if logarithmic:
            low, high = low / 1.5, high * 1.5
            axes.set_xscale("log")
            axes.set_yscale("log")
        else:
            margin = 0.06 * (high - low) or 0.01
            low, high = low - margin, high + margin
        axes.plot([low, high], [low, high], color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        for index, table in enumerate(deciles):
            mean = table["mean_prediction"].to_numpy()
            lowest = mean + table["ci95_low"].to_numpy()
            if logarithmic:
                lowest = np.maximum(lowest, low / 10)
            highest = mean + table["ci95_high"].to_numpy()
            labels = table["mean_label"].to_numpy()
            draw_bars(axes, mean, labels, lowest, highest, index)
            texts = [
                f"predicted {display.fixed(one, 4)}, observed {display.fixed(other, 4)}"
                for one, other in zip(mean, labels, strict=True)
            ]
            hover.add(
                index, axes, mean, labels, [f"decile {decile}" for decile in range(1, len(table) + 1)], texts
            )
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_xlabel("predicted CTR")
        axes.set_ylabel("observed CTR")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
            axis.set_minor_formatter("")
        return to_svg(figure, hover)
