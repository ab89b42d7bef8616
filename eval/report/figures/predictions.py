"""Distribution of predictions, and the share of clicks among the highest of them."""

import math
from collections.abc import Sequence

import matplotlib
import numpy as np

from ctr.eval import display
from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.auc import LOGIT_LIMIT
from ctr.eval.logistic import sigmoid
from ctr.eval.report.figures.figure import FIGURE_SIZE, ReportFigure, figure_of, percent_ticks
from ctr.eval.report.plot_style import (
    OTHER,
    QUIET,
    STYLE,
    Hover,
    color_of,
    new_figure,
    of_run,
    to_svg,
)
from ctr.eval.report.shown_run import ShownRun

_LIFT_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
_HISTOGRAM_BINS = 80
_TAIL = 0.0005
_PROBABILITIES = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999, 0.9999)


def gain_figure(runs: Sequence[ShownRun]) -> ReportFigure | None:
    """Gain curves; None where no run has clicks."""
    if not any(histogram[:, 1].sum() > 0 for histogram in _histograms(runs)):
        return None
    words = " ".join(
        f"{shown.name}: {row[2]} times the clicks." for shown, row in zip(runs, lift_rows(runs), strict=True)
    )
    return figure_of(
        "Gain",
        gain_curves(_histograms(runs)),
        f"Gain curves. In the tenth of examples with the highest predictions, over a random tenth: {words}",
        note="share of clicks in the examples with the highest predictions; dashed: at random",
    )


def gain_curves(histograms: Sequence[FloatArray]) -> str:
    """Plots the share of clicks among the examples with the highest predictions, by their share."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((4.9, 3.6))
        hover = Hover()
        axes.plot([0, 1], [0, 1], color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        for index, histogram in enumerate(histograms):
            if not histogram[:, 1].sum() > 0:
                continue
            x = np.linspace(0, 1, 201)
            y = gain(histogram, x)
            of_run(index, axes.plot(x, y, color=color_of(index), linewidth=1.4))
            heads = [f"top {display.percent(share)} of examples" for share in x]
            texts = [f"{display.percent(share)} of clicks" for share in y]
            hover.add(index, axes, x, y, heads, texts)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(percent_ticks())
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.01)
        axes.set_xlabel("share of examples, highest predictions first")
        axes.set_ylabel("share of clicks")
        return to_svg(figure, hover)


def gain(histogram: FloatArray, shares: Sequence[float] | FloatArray) -> FloatArray:
    """Share of clicks in the given shares [S], from 0 to 1, of examples with the highest predictions.

    ``histogram`` has weights of non-clicks and of clicks, [B, 2]; examples of a bin count as alike.
    """
    falling = histogram[::-1]
    used = np.flatnonzero(falling.sum(axis=1))
    weight, clicks = falling[used].sum(axis=1), falling[used, 1]
    examples_until = np.concatenate([[0.0], np.cumsum(weight)])
    clicks_until = np.concatenate([[0.0], np.cumsum(clicks)])
    found: FloatArray = np.interp(
        shares, examples_until / examples_until[-1], clicks_until / clicks_until[-1]
    )
    return found


def lift_shares() -> list[str]:
    """Heads of the columns of `lift_rows`."""
    return [f"top {100 * share:g}%" for share in _LIFT_SHARES]


def lift_rows(runs: Sequence[ShownRun]) -> list[list[str]]:
    """Lift: how many times as many clicks the highest predictions have as the same number of random examples."""
    rows = []
    for histogram in _histograms(runs):
        if not histogram[:, 1].sum() > 0:
            rows.append([display.ABSENT] * len(_LIFT_SHARES))
            continue
        gains = gain(histogram, _LIFT_SHARES)
        rows.append([f"{share / part:.2f}×" for share, part in zip(gains, _LIFT_SHARES, strict=True)])
    return rows


def histogram_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """Histograms of each run's predictions for clicked and for not clicked examples."""
    histograms = _histograms(runs)
    limits = prediction_range(histograms)
    figures = []
    for index, (shown, histogram) in enumerate(zip(runs, histograms, strict=True)):
        means = [
            f"{display.fixed(mean, 4)} {where}"
            for clicked, where in ((1, "where clicked"), (0, "where not"))
            if not math.isnan(mean := _mean_prediction(histogram, clicked))
        ]
        words = "mean prediction " + ", ".join(means or [display.ABSENT])
        figures.append(
            figure_of(
                words.capitalize(),
                prediction_histogram(histogram, limits, index),
                f"Histogram of the predictions of {shown.name}: {words}.",
                shown,
            )
        )
    return figures


def _mean_prediction(histogram: FloatArray, clicked: int) -> float:
    """Mean prediction of a class, from the middles of the fine logit bins [B, 2]; NaN without examples."""
    middles = (np.arange(len(histogram)) + 0.5) * (2 * LOGIT_LIMIT / len(histogram)) - LOGIT_LIMIT
    return float(ratio(histogram[:, clicked] @ sigmoid(middles), histogram[:, clicked].sum()))


def prediction_range(histograms: Sequence[FloatArray]) -> tuple[int, int]:
    """Fine logit bins, from and up to, outside which each run has at most `_TAIL` of its weight on a side."""
    begin, end = len(histograms[0]), 0
    for histogram in histograms:
        up_to = np.cumsum(histogram.sum(axis=1))
        if up_to[-1] > 0:
            inside = np.searchsorted(up_to, np.array([_TAIL, 1 - _TAIL]) * up_to[-1])
            begin, end = min(begin, int(inside[0])), max(end, int(inside[1]) + 1)
    return (begin, end) if begin < end else (0, len(histograms[0]))


def prediction_histogram(histogram: FloatArray, limits: tuple[int, int], index: int) -> str:
    """Plots predictions by class, as shares of it, on the scale of logits; ``limits``: the fine bins to draw."""
    step = -(-(limits[1] - limits[0]) // _HISTOGRAM_BINS)
    edges = np.arange(limits[0], limits[1] + step, step)
    padded = np.concatenate([histogram, np.zeros((step, 2))])
    weight = np.add.reduceat(padded, edges, axis=0)[:-1]
    logits = edges * (2 * LOGIT_LIMIT / len(histogram)) - LOGIT_LIMIT
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(FIGURE_SIZE)
        for clicked, color, name in (
            (0, OTHER, "not clicked"),
            (1, color_of(index), "clicked"),
        ):
            total = histogram[:, clicked].sum()
            if total > 0:
                share = weight[:, clicked] / total
                axes.stairs(share, logits, fill=True, color=color, alpha=0.22)
                axes.stairs(share, logits, color=color, linewidth=1.4, label=name)
        ticks = np.array([p for p in _PROBABILITIES if logits[0] <= np.log(p / (1 - p)) <= logits[-1]])
        axes.set_xticks(np.log(ticks / (1 - ticks)), [f"{tick:g}" for tick in ticks])
        axes.set_xlim(logits[0], logits[-1])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(percent_ticks())
        axes.set_xlabel("predicted probability of a click")
        axes.set_ylabel("share of the class")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper right")
        return to_svg(figure)


def _histograms(runs: Sequence[ShownRun]) -> list[FloatArray]:
    return [shown.run.metrics.auc.fine for shown in runs]
