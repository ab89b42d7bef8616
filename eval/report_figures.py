"""The figures of a report: plots with their words."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ctr.eval import display, plots
from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.logistic import sigmoid
from ctr.eval.logit_histogram import LOGIT_LIMIT
from ctr.eval.run_files import METRICS
from ctr.eval.shown_run import ShownRun
from ctr.eval.weight_spectra import WeightSpectrum, rank_keeping, top_half_share

_ORDERS = (2, 1)


@dataclass(frozen=True)
class ReportFigure:
    """A plot with its words.

    Attributes:
        title: what it shows.
        source: the image, as a data URI.
        alt: what is to be seen in it, for those who do not see it.
        run: the run it is about, if it is about one alone.
    """

    title: str
    source: str
    alt: str
    run: ShownRun | None = None


@dataclass(frozen=True)
class SliceTable:
    """Calibration by the ids of one feature.

    Attributes:
        feature: its name.
        slices: how many ids occur.
        figure: bias by id.
        rows: the heaviest ids: id, weight and share of clicks in the first run that has them, and for each run
            its bias with the interval.
    """

    feature: str
    slices: int
    figure: ReportFigure
    rows: list[tuple[str, str, str, list[tuple[str, str]]]]


@dataclass(frozen=True)
class WeightRow:
    """What the spectrum of a weight tells, as numbers and text.

    Attributes:
        spectrum: where it is from.
        color: of its line in the plot, empty without one.
        dashes: its strokes and gaps.
        now: of a product, its multiply-adds as a share of those of the full matrix.
        kept: for the Frobenius norm and for the sum, the rank that keeps 90%, and what a bottleneck of that rank
            costs as a share of the present multiply-adds; empty without singular values.
        top_half: for both, the share in the larger half of the singular values.
    """

    spectrum: WeightSpectrum
    color: str
    dashes: str
    now: float | None
    kept: list[tuple[int, float]]
    top_half: list[str]


@dataclass(frozen=True)
class WeightTable:
    """The weight matrices of a run.

    Attributes:
        run: whose.
        rows: one for each weight; None when the run did not write their spectra.
        figure: the spectra; None when there is none to draw.
    """

    run: ShownRun
    rows: list[WeightRow] | None
    figure: ReportFigure | None


def progressive_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """Each metric over the pass, and the throughput."""
    windows = [shown.windows for shown in runs]
    figures = []
    for metric in METRICS:
        title = display.METRIC_TITLES[metric]
        figures.append(
            figure_of(
                f"{title}, dashed: of all windows so far" if plots.has_running_mean(metric) else title,
                plots.progressive_metric(windows, metric),
                f"{title} of each window over the pass. {_courses(runs, metric, 4)}",
            )
        )
    rates = _courses(runs, "examples_per_second", 0)
    return [
        *figures,
        figure_of(
            "throughput, examples/s", plots.throughput(windows), f"Examples per second over the pass. {rates}"
        ),
    ]


def calibration_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """Reliability, and bias by decile."""
    deciles = [shown.deciles for shown in runs]
    worst = " ".join(
        f"{shown.name}: bias between {display.fixed(shown.deciles['bias'].min(), signed=True)} "
        f"and {display.fixed(shown.deciles['bias'].max(), signed=True)}."
        for shown in runs
    )
    return [
        figure_of(
            "Share of clicks against prediction, by decile of prediction",
            plots.reliability(deciles),
            f"Share of clicks against mean prediction for ten deciles of prediction. {worst}",
        ),
        figure_of(
            "Bias by decile of prediction",
            plots.bias_by_group(
                deciles, [str(decile) for decile in range(1, 11)], "decile of prediction", (7.2, 4.2)
            ),
            f"Share of clicks minus mean prediction for ten deciles of prediction. {worst}",
        ),
    ]


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
        "PerQueryAUC by the number of rows in the query, and the number of such queries",
        plots.auc_by_query_size([shown.sizes for shown in runs]),
        f"PerQueryAUC for queries of different sizes. {ranges}",
    )


def histogram_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """What each run predicted for clicked and for not clicked examples."""
    histograms = [shown.run.metrics.auc.fine for shown in runs]
    limits = plots.prediction_range(histograms)
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
                plots.prediction_histogram(histogram, limits, index),
                f"Histogram of the predictions of {shown.name}: {words}.",
                shown,
            )
        )
    return figures


def _mean_prediction(histogram: FloatArray, clicked: int) -> float:
    """Mean prediction of a class, from the middles of the fine logit bins [B, 2]; NaN without examples."""
    middles = (np.arange(len(histogram)) + 0.5) * (2 * LOGIT_LIMIT / len(histogram)) - LOGIT_LIMIT
    return float(ratio(histogram[:, clicked] @ sigmoid(middles), histogram[:, clicked].sum()))


def slice_tables(runs: Sequence[ShownRun]) -> list[SliceTable]:
    """Calibration by slice, for each feature that a run was sliced by."""
    features = dict.fromkeys(name for shown in runs for name in shown.summary["calibration_slices"])
    return [_slice_table(runs, feature) for feature in features]


def _slice_table(runs: Sequence[ShownRun], feature: str) -> SliceTable:
    sliced = [shown.summary["calibration_slices"].get(feature) for shown in runs]
    tables = [
        pd.DataFrame(
            [
                [row["id"], row["weight"], row["mean_label"], row["bias"], *row["bias_ci95"]]
                for row in part["heaviest"]
            ]
            if part
            else [],
            columns=["id", "weight", "mean_label", "bias", "ci95_low", "ci95_high"],
        ).set_index("id")
        for part in sliced
    ]
    first = next(table for table, part in zip(tables, sliced, strict=True) if part)
    aligned = [table.reindex(first.index).astype(np.float64) for table in tables]
    rows = []
    for place, (index, row) in enumerate(first.iterrows()):
        biases = [
            (
                display.fixed(table["bias"].iloc[place], signed=True),
                display.interval(table["ci95_low"].iloc[place], table["ci95_high"].iloc[place], signed=True),
            )
            for table in aligned
        ]
        rows.append((str(index), display.amount(row["weight"]), display.fixed(row["mean_label"]), biases))
    return SliceTable(
        feature=feature,
        slices=max(part["slices"] for part in sliced if part),
        figure=figure_of(
            "Bias by id, the heaviest first",
            plots.bias_by_group(aligned, [str(index) for index in first.index], "id", (6.4, 3.2)),
            f"Share of clicks minus mean prediction for the heaviest ids of {feature}; the table has the numbers.",
        ),
        rows=rows,
    )


def weight_tables(runs: Sequence[ShownRun]) -> list[WeightTable]:
    """The spectra of each run's weight matrices."""
    return [_weight_table(shown) for shown in runs]


def _weight_table(shown: ShownRun) -> WeightTable:
    if shown.weights is None:
        return WeightTable(shown, None, None)
    rows = [_weight_row(index, spectrum) for index, spectrum in enumerate(shown.weights)]
    words = " ".join(
        f"{row.spectrum.name}: 90% of the norm at rank {row.kept[0][0]} of {row.spectrum.full_rank}, "
        f"of the sum at {row.kept[1][0]}."
        for row in rows
        if row.color
    )
    figure = None
    if words:
        figure = figure_of(
            "Share of the largest singular values, in the Frobenius norm and in the sum",
            plots.cumulative_spectra([spectrum.singular_values for spectrum in shown.weights]),
            f"Cumulative singular values of the weights of {shown.name}. {words}",
        )
    return WeightTable(shown, rows, figure)


def _weight_row(index: int, spectrum: WeightSpectrum) -> WeightRow:
    values = spectrum.singular_values
    now = None if spectrum.inner_rank is None else spectrum.multiply_adds / math.prod(spectrum.shape)
    if values is None:
        return WeightRow(spectrum, "", "", now, [], [])
    color, dashes = plots.line_look(index) if values.any() else ("", ())
    ranks = [rank_keeping(values, order) for order in _ORDERS]
    return WeightRow(
        spectrum=spectrum,
        color=color,
        dashes=" ".join(f"{dash:g}" for dash in dashes),
        now=now,
        kept=[(rank, spectrum.through_bottleneck(rank) / spectrum.multiply_adds) for rank in ranks],
        top_half=[display.percent(top_half_share(values, order)) for order in _ORDERS],
    )


def figure_of(title: str, svg: str, alt: str, run: ShownRun | None = None) -> ReportFigure:
    """A plot given as SVG, with its words as in `ReportFigure`."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return ReportFigure(title, source, alt, run)


def _courses(runs: Sequence[ShownRun], column: str, decimals: int) -> str:
    """Where a column of the windows begins and ends in each run, in words."""
    courses = []
    for shown in runs:
        known = shown.windows[column].dropna()
        words = "undefined"
        if len(known):
            first, last = (display.fixed(value, decimals) for value in (known.iloc[0], known.iloc[-1]))
            words = f"{first} in the first window, {last} in the last"
        courses.append(f"{shown.name}: {words}.")
    return " ".join(courses)
