"""Metrics by group: by decile of prediction, and by size of query; and the distribution of predictions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctr.eval import display
from ctr.eval.arrays import FloatArray, ratio, sigmoid
from ctr.eval.auc import LOGIT_LIMIT
from ctr.eval.per_query_auc import SIZE_NAMES
from ctr.eval.report import page
from ctr.eval.report.over_time import click_ratio_figures, margins
from ctr.eval.report.shown_run import ShownRun

_LIFT_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
_HISTOGRAM_BINS = 80
_TAIL = 0.0005
_PROBABILITIES = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999, 0.9999)


def by_group(
    tables: Sequence[pd.DataFrame],
    columns: tuple[str, str, str],
    groups: Sequence[str],
    labels: tuple[str, str],
    best: float,
) -> page.Panel:
    """A metric by group, the runs beside one another.

    ``tables``: for each run one row for each group; NaN where it has none. ``columns``: the metric's and
    those of its interval's ends. ``labels``: of both axes: what the groups are, and the metric.
    """
    series: list[page.Series] = []
    framed: list[npt.NDArray[Any]] = [np.array([best])]
    for index, table in enumerate(tables):
        y, low, high = (table[name].to_numpy(np.float64) for name in columns)
        series.append(
            page.Series(
                _places(groups, index, len(tables)), y, index, "points", low, high,
                heads=[f"{labels[0]} {group}" for group in groups], texts=margins(y, low, high),
            )
        )  # fmt: skip
        # The ends of unusually long intervals may lie outside the frame.
        usual = high - low <= 3 * np.nanmedian(high - low) if np.isfinite(high - low).any() else low > high
        framed += [y, *(np.where(usual, end, y) for end in (low, high))]
    y_axis = page.Axis(labels[1], frame=np.concatenate(framed), level=best)
    return page.Panel(series, page.Axis(labels[0], names=groups), y_axis)


def _places(groups: Sequence[str], index: int, runs: int) -> FloatArray:
    """Places of a run's points, beside the middles of their groups."""
    places: FloatArray = np.arange(float(len(groups))) + (index - (runs - 1) / 2) * min(0.7 / runs, 0.25)
    return places


def calibration_section(runs: Sequence[ShownRun]) -> page.Section:
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
    label = "decile of prediction"
    look: dict[str, Any] = {"size": (4.9, 3.2), "near": True}
    figures = [
        *click_ratio_figures(runs),
        page.Figure(
            "Predicted / actual clicks by decile",
            [by_group(deciles, columns, names, (label, "predicted / actual clicks"), 1.0)],
            f"Predicted over actual clicks for ten deciles of prediction. {highest}",
            **look,
        ),
        page.Figure(
            "Observed vs predicted CTR by decile",
            [_reliability(deciles)],
            f"Observed against predicted click-through rate for ten deciles of prediction. {worst}",
            **look,
        ),
        page.Figure(
            "Bias by decile",
            [
                by_group(
                    deciles,
                    ("bias", "ci95_low", "ci95_high"),
                    names,
                    (label, "observed − predicted CTR"),
                    0.0,
                )
            ],
            f"Observed minus predicted click-through rate for ten deciles of prediction. {worst}",
            **look,
        ),
    ]
    about = (
        "Each decile holds a tenth of the examples by weight, by ascending prediction. Above the diagonal the model "
        "under-predicts, below it over-predicts."
    )
    warnings = [
        page.Words((shown.mark, f": {warning}"), "wrong", shown.index)
        for shown in runs
        if (warning := shown.run.summary.get("calibration_warning"))
    ]
    return page.Section(
        "calibration",
        "Calibration",
        "Calibration",
        [page.Words(about, "quiet"), *warnings, page.Figures(figures)],
    )


def _reliability(deciles: Sequence[pd.DataFrame]) -> page.Panel:
    """The share of clicks against mean prediction, by decile of prediction; the diagonal is perfect."""
    predictions = np.concatenate([table["mean_prediction"].to_numpy() for table in deciles])
    labels = np.concatenate([table["mean_label"].to_numpy() for table in deciles])
    positive = predictions[predictions > 0]
    logarithmic = len(positive) > 0 and bool(positive.max() > 20 * positive.min())
    values = np.concatenate([predictions, labels])
    values = values[np.isfinite(values) & ((values > 0) | (not logarithmic))]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.01
    limits = (low / 1.5, high * 1.5) if logarithmic else (low - margin, high + margin)
    series = [page.Series(limits, limits, color=page.QUIET, dashes=page.LEVEL, width=1.0)]
    for index, table in enumerate(deciles):
        mean, label = table["mean_prediction"].to_numpy(), table["mean_label"].to_numpy()
        lowest, highest = (mean + table[f"ci95_{end}"].to_numpy() for end in ("low", "high"))
        if logarithmic:
            lowest = np.maximum(lowest, limits[0] / 10)
        series.append(
            page.Series(
                mean, label, index, "points", lowest, highest,
                heads=[f"decile {decile}" for decile in range(1, len(table) + 1)],
                texts=[f"predicted {display.fixed(one, 4)}, observed {display.fixed(other, 4)}"
                       for one, other in zip(mean, label, strict=True)],
            )
        )  # fmt: skip
    x, y = (
        page.Axis(f"{what} CTR", "short", limits=limits, log=logarithmic)
        for what in ("predicted", "observed")
    )
    return page.Panel(series, x, y)


def query_size_section(runs: Sequence[ShownRun]) -> page.Section:
    """PerQueryAUC by query size."""
    title = "PerQueryAUC by query size"
    if not any(len(shown.sizes) for shown in runs):
        none = page.Words("No query has both a click and a non-click.")
        return page.Section("query-size", "Query size", title, [none])
    ranges = " ".join(
        f"{shown.name}: between {display.fixed(shown.sizes['auc'].min(), 3)} "
        f"and {display.fixed(shown.sizes['auc'].max(), 3)}."
        for shown in runs
    )
    sizes = [size for size in SIZE_NAMES if any((shown.sizes["size"] == size).any() for shown in runs)]
    figure = page.Figure(
        "PerQueryAUC by rows in the query",
        _by_query_size([shown.sizes.set_index("size").reindex(sizes) for shown in runs], sizes),
        f"PerQueryAUC for queries of different sizes. {ranges}",
        note="below: the number of such queries",
        size=(4.9, 3.6),
        near=True,
        heights=(3, 1),
    )
    table = page.Table(
        ("rows", *(shown.mark for shown in runs)),
        [[size, *(_size_cell(shown.sizes, size) for shown in runs)] for size in sizes],
        "Scored queries, those with both a click and a non-click, by size",
    )
    return page.Section("query-size", "Query size", title, [page.Figures([figure], beside=table)])


def _size_cell(table: pd.DataFrame, size: str) -> page.Cell:
    """PerQueryAUC of the queries of a size, its interval, and their number."""
    for row in table[table["size"] == size].to_dict("records"):
        number = display.Number(row["auc"], row["ci95_low"], row["ci95_high"])
        return page.Cell(number.text(), (number.bounds(), f"{display.amount(row['queries'])} queries"))
    return page.Cell(display.ABSENT, (display.ABSENT, "0 queries"))


def _by_query_size(tables: Sequence[pd.DataFrame], sizes: Sequence[str]) -> list[page.Panel]:
    """PerQueryAUC by the number of a query's rows, over how many queries have that many."""
    same = all(table["queries"].equals(tables[0]["queries"]) for table in tables)
    above, below = [], []
    for index, table in enumerate(tables):
        x = _places(sizes, index, len(tables))
        y, low, high = (table[name].to_numpy() for name in ("auc", "ci95_low", "ci95_high"))
        heads = [
            f"{size} rows, {display.amount(queries)} queries"
            for size, queries in zip(sizes, table["queries"], strict=True)
        ]
        above.append(page.Series(x, y, index, "points", low, high, heads=heads, texts=margins(y, low, high)))
        width = min(0.7 / len(tables), 0.25)
        below.append(page.Series(x, table["queries"].to_numpy(), index, "bars", width=width))
    if same:
        below = [
            page.Series(
                range(len(sizes)),
                tables[0]["queries"].to_numpy(),
                kind="bars",
                color=page.OTHER,
                width=0.5,
                alpha=0.5,
            )
        ]
    rows = page.Axis("rows in the query", names=sizes)
    return [
        page.Panel(above, page.Axis(), page.Axis("PerQueryAUC", within=(-0.03, 1.03))),
        page.Panel(below, rows, page.Axis("queries", "thousands")),
    ]


def gain_section(runs: Sequence[ShownRun]) -> page.Section | None:
    """Share of clicks in the highest predictions, and their lift; None where no run has clicks."""
    curves = {shown.index: histogram for shown in runs if (histogram := _histogram(shown))[:, 1].sum() > 0}
    if not curves:
        return None
    lifts = {
        index: [
            f"{share / part:.2f}×"
            for share, part in zip(gain(histogram, _LIFT_SHARES), _LIFT_SHARES, strict=True)
        ]
        for index, histogram in curves.items()
    }
    absent = [display.ABSENT] * len(_LIFT_SHARES)
    words = " ".join(f"{shown.name}: {lifts.get(shown.index, absent)[2]} times the clicks." for shown in runs)
    shares = np.linspace(0, 1, 201)
    lines = [page.Series([0, 1], [0, 1], color=page.QUIET, dashes=page.LEVEL, width=1.0)]
    for index, histogram in curves.items():
        y = gain(histogram, shares)
        lines.append(
            page.Series(
                shares, y, index,
                heads=[f"top {display.percent(share)} of examples" for share in shares],
                texts=[f"{display.percent(share)} of clicks" for share in y],
            )
        )  # fmt: skip
    figure = page.Figure(
        "Gain",
        [
            page.Panel(
                lines,
                page.Axis("share of examples, highest predictions first", "percent", limits=(0, 1)),
                page.Axis("share of clicks", "percent", limits=(0, 1.01)),
            )
        ],
        f"Gain curves. In the tenth of examples with the highest predictions, over a random tenth: {words}",
        note="share of clicks in the examples with the highest predictions; dashed: at random",
        size=(4.9, 3.6),
    )
    table = page.Table(
        ("examples", *(shown.mark for shown in runs)),
        [
            [f"top {100 * share:g}%", *(lifts.get(shown.index, absent)[place] for shown in runs)]
            for place, share in enumerate(_LIFT_SHARES)
        ],
        "Lift: clicks in the examples with the highest predictions, relative to the same number of random examples",
    )
    return page.Section("gain", "Gain", "Gain and lift", [page.Figures([figure], beside=table)])


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


def predictions_section(runs: Sequence[ShownRun]) -> page.Section:
    """Histograms of each run's predictions for clicked and for not clicked examples."""
    limits = prediction_range([_histogram(shown) for shown in runs])
    figures = []
    for shown in runs:
        histogram = _histogram(shown)
        means = [
            f"{display.fixed(mean, 4)} {where}"
            for clicked, where in ((1, "where clicked"), (0, "where not"))
            if not math.isnan(mean := _mean_prediction(histogram, clicked))
        ]
        words = "mean prediction " + ", ".join(means or [display.ABSENT])
        figures.append(
            page.Figure(
                words.capitalize(),
                [_prediction_panel(histogram, limits, shown.index)],
                f"Histogram of the predictions of {shown.name}: {words}.",
                shown.mark,
            )
        )
    about = (
        "Distribution of the predictions for clicked and for not clicked examples, each as shares of its class. The "
        "outermost 0.05% on each side are not drawn."
    )
    blocks: list[page.Block] = [page.Words(about, "quiet"), page.Figures(figures)]
    return page.Section("predictions", "Predictions", "Predictions", blocks)


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


def _prediction_panel(histogram: FloatArray, limits: tuple[int, int], index: int) -> page.Panel:
    """Predictions by class, as shares of it, on the scale of logits; ``limits``: the fine bins to draw."""
    step = -(-(limits[1] - limits[0]) // _HISTOGRAM_BINS)
    edges = np.arange(limits[0], limits[1] + step, step)
    padded = np.concatenate([histogram, np.zeros((step, 2))])
    weight = np.add.reduceat(padded, edges, axis=0)[:-1]
    logits = edges * (2 * LOGIT_LIMIT / len(histogram)) - LOGIT_LIMIT
    series = [
        page.Series(logits, weight[:, clicked] / total, kind="steps", look=index, color=color, label=name)
        for clicked, color, name in ((0, page.OTHER, "not clicked"), (1, "", "clicked"))
        if (total := histogram[:, clicked].sum()) > 0
    ]
    places = [
        (float(np.log(p / (1 - p))), f"{p:g}")
        for p in _PROBABILITIES
        if logits[0] <= np.log(p / (1 - p)) <= logits[-1]
    ]
    x = page.Axis("predicted probability of a click", places=places, limits=(logits[0], logits[-1]))
    return page.Panel(series, x, page.Axis("share of the class", "percent", bottom=0.0), "upper right")


def _histogram(shown: ShownRun) -> FloatArray:
    return shown.run.metrics.auc.fine
