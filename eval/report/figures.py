"""The figures of a report: plots with their words."""

import hashlib
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from ctr.eval import display
from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.intervals import difference
from ctr.eval.logistic import sigmoid
from ctr.eval.logit_histogram import LOGIT_LIMIT
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.report import plots
from ctr.eval.report.data_health import FeatureHealth, id_name
from ctr.eval.report.plot_style import COLORS
from ctr.eval.report.shown_run import ShownRun
from ctr.eval.run_files import LOSS_TERMS, METRICS
from ctr.eval.weight_spectra import WeightSpectrum, rank_keeping, top_half_share

_ORDERS = (2, 1)


_PAIRED = {
    "per_query_auc": "PerQueryAUC",
    "logloss": "logloss",
    "calibration_ratio": "predicted / actual clicks",
}
_LIFT_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class ReportFigure:
    """A plot with its words.

    Attributes:
        title: what it shows.
        svg: the image, an element of the page.
        alt: what is to be seen in it, for those who do not see it.
        run: the run it is about, if it is about one alone.
    """

    title: str
    svg: Markup
    alt: str
    run: ShownRun | None = None


@dataclass(frozen=True)
class SliceRow:
    """A slice in the runs.

    Attributes:
        name: what it holds.
        weight: of its examples.
        click_rate: observed.
        cells: for each run predicted over actual clicks, logloss and AUC; None for a run without the slice.
    """

    name: str
    weight: str
    click_rate: str
    cells: list[tuple[str, str, str] | None]


@dataclass(frozen=True)
class SliceTable:
    """Metrics by the values of one feature.

    Attributes:
        feature: its name.
        slices: how many values occur.
        figure: predicted over actual clicks by value.
        rows: those with the most weight.
    """

    feature: str
    slices: int
    figure: ReportFigure
    rows: list[SliceRow]


@dataclass(frozen=True)
class HealthTable:
    """The ids of a log's features.

    Attributes:
        runs: those that found the same.
        features: of each feature what is known, with the color and the dashes of its line in the plots.
        figures: over time.
    """

    runs: list[ShownRun]
    features: list[tuple[FeatureHealth, str, str]]
    figures: list[ReportFigure]

    @property
    def grows(self) -> bool:
        """Whether ids of a feature grow."""
        return any(feature.slots is not None for feature, _, _ in self.features)


@dataclass(frozen=True)
class WeightRow:
    """What the spectrum of a weight says, as numbers and text.

    Attributes:
        spectrum: where it is from.
        color: of its line in the plot, for a style; empty without one.
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
    """Each metric over time."""
    windows = [shown.windows for shown in runs]
    figures = []
    for metric in METRICS:
        title = display.METRIC_TITLES[metric]
        figures.append(
            figure_of(
                f"{title} (dashed: cumulative)" if plots.has_running_mean(metric) else title,
                plots.progressive_metric(windows, metric),
                f"{title} of each window over time. {_courses(runs, metric, 4)}",
            )
        )
    return figures


def traffic_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """Traffic, observed and predicted click-through rate, and throughput over time."""
    windows = [shown.windows for shown in runs]
    figures = []
    unit = plots.traffic_unit(windows)
    if unit is not None:
        figures.append(
            figure_of(
                f"Traffic, examples per {unit} of event time",
                plots.traffic(windows, unit),
                f"Examples per {unit} of event time in each window.",
            )
        )
    timelines = [shown.timeline for shown in runs]
    if any(timeline is not None and len(timeline) for timeline in timelines):
        rates = " ".join(
            f"{shown.name}: observed {display.fixed(observed, 4)}, predicted {display.fixed(predicted, 4)}."
            for shown in runs
            for observed, predicted in [_rates(shown)]
        )
        figures.append(
            figure_of(
                "Observed vs predicted CTR",
                plots.click_rates(timelines),
                f"Observed and predicted click-through rate of each window. Of all windows: {rates}",
            )
        )
    speeds = _courses(runs, "examples_per_second", 0)
    throughput = figure_of(
        "Training throughput, examples/s",
        plots.throughput(windows),
        f"Examples per second over time. {speeds}",
    )
    return [*figures, throughput]


def _rates(shown: ShownRun) -> tuple[float, float]:
    """Observed and predicted click-through rate over the whole pass."""
    weight, clicks, predicted = shown.run.metrics.calibration.sums.sum(axis=0)
    return float(ratio(clicks, weight)), float(ratio(predicted, weight))


def loss_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """The terms of the loss over time, for each run whose loss has several."""
    figures = []
    for shown in runs:
        terms = {name: title for name, title in LOSS_TERMS.items() if shown.windows[name].notna().any()}
        if len(terms) > 1:
            ends = ", ".join(
                f"{title} {display.fixed(shown.windows[name].dropna().iloc[-1], 4)}"
                for name, title in terms.items()
            )
            figures.append(
                figure_of(
                    "terms of the loss",
                    plots.loss_terms(shown.windows, terms, shown.index),
                    f"Terms of the loss of {shown.name} over time. In the last window: {ends}.",
                    shown,
                )
            )
    return figures


def paired_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """The paired difference from the first run over time, for the runs that scored the same examples."""
    first = runs[0].timeline
    others = [
        (shown, shown.timeline)
        for shown in runs[1:]
        if first is not None and shown.timeline is not None and len(first) and shown.timeline.matches(first)
    ]
    if first is None or not others:
        return []
    figures = []
    for metric, title in _PAIRED.items():
        courses, words = [], []
        for shown, own in others:
            window = difference(first.estimate(metric), own.estimate(metric))
            so_far = difference(
                first.estimate(metric, cumulative=True), own.estimate(metric, cumulative=True)
            )
            low, high = so_far.interval()
            courses.append((shown.index, own, (window.point, *window.interval()), (so_far.point, low, high)))
            text = display.with_margin(so_far.point[-1], low[-1], high[-1], signed=True)
            words.append(f"{shown.name}: {text} over all windows.")
        figures.append(
            figure_of(
                f"Difference in {title}, run minus {runs[0].name}",
                plots.over_time(courses, "difference", 0.0, signed=True),
                f"Paired difference in {title} from {runs[0].name} over time. {' '.join(words)}",
            )
        )
    return figures


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
            "Predicted / actual clicks by decile of prediction",
            plots.by_group(deciles, columns, names, ("decile", "predicted / actual clicks"), 1.0),
            f"Predicted over actual clicks for ten deciles of prediction. {highest}",
        ),
        figure_of(
            "Observed vs predicted CTR, by decile of prediction",
            plots.reliability(deciles),
            f"Observed against predicted click-through rate for ten deciles of prediction. {worst}",
        ),
        figure_of(
            "Bias by decile of prediction",
            plots.by_group(
                deciles,
                ("bias", "ci95_low", "ci95_high"),
                names,
                ("decile", "observed − predicted CTR"),
                0.0,
            ),
            f"Observed minus predicted click-through rate for ten deciles of prediction. {worst}",
        ),
    ]


def _click_ratio_over_time(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """Predicted over actual clicks over time, of the runs that kept a timeline."""
    courses, words = [], []
    for shown in runs:
        if shown.timeline is not None and len(shown.timeline):
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
            "Predicted / actual clicks (dashed: cumulative)",
            plots.over_time(courses, "predicted / actual clicks", 1.0),
            f"Predicted over actual clicks in each window over time. {' '.join(words)}",
        )
    ]


def gain_figure(runs: Sequence[ShownRun]) -> ReportFigure | None:
    """The gain curves; None where no run has clicks."""
    if not any(histogram[:, 1].sum() > 0 for histogram in _histograms(runs)):
        return None
    words = " ".join(
        f"{shown.name}: {row[2]} times the clicks." for shown, row in zip(runs, lift_rows(runs), strict=True)
    )
    return figure_of(
        "Gain: share of clicks in the examples with the highest predictions (dashed: at random)",
        plots.gain_curves(_histograms(runs)),
        f"Gain curves. In the tenth of examples with the highest predictions, over a random tenth: {words}",
    )


def lift_shares() -> list[str]:
    """The heads of the columns of `lift_rows`."""
    return [f"top {100 * share:g}%" for share in _LIFT_SHARES]


def lift_rows(runs: Sequence[ShownRun]) -> list[list[str]]:
    """For each run how many times as many clicks its highest predictions have as the same number of random examples."""
    rows = []
    for histogram in _histograms(runs):
        if not histogram[:, 1].sum() > 0:
            rows.append([display.ABSENT] * len(_LIFT_SHARES))
            continue
        gains = plots.gain(histogram, _LIFT_SHARES)
        rows.append([f"{share / part:.2f}×" for share, part in zip(gains, _LIFT_SHARES, strict=True)])
    return rows


def _histograms(runs: Sequence[ShownRun]) -> list[FloatArray]:
    return [shown.run.metrics.auc.fine for shown in runs]


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
    histograms = _histograms(runs)
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
    """Metrics by slice, for each feature that a run was sliced by."""
    features = dict.fromkeys(name for shown in runs for name in shown.run.metrics.slices)
    return [_slice_table(runs, feature) for feature in features]


def _slice_table(runs: Sequence[ShownRun], feature: str) -> SliceTable:
    tables = []
    for shown in runs:
        state = shown.run.metrics.slices.get(feature)
        tables.append(None if state is None else state.result().set_index("id"))
    first = next(table for table in tables if table is not None)
    # Stable: of equal weight the smaller id.
    heaviest = first.sort_values("weight", ascending=False, kind="stable").head(SLICES_SHOWN)
    known = [shown.health for shown in runs if shown.health is not None]
    values = next((found for one in known if (found := one.slice_values.get(feature))), {})
    health = next((own for one in known for own in one.features if own.name == feature), None)
    is_hashed = health is not None and health.hashed
    if values and not is_hashed and all(values.get(one) is not None for one in heaviest.index):
        # What has an order of its own, numbers or a vocabulary, keeps it.
        heaviest = heaviest.sort_index()
    grows = health is not None and health.buckets is None
    names = [id_name(values.get(one), one, grows) for one in heaviest.index.tolist()]
    records = [
        {} if table is None else table.loc[table.index.isin(heaviest.index)].to_dict("index")
        for table in tables
    ]
    rows = []
    for name, one in zip(names, heaviest.index, strict=True):
        own = heaviest.loc[[one]].to_dict("records")[0]
        cells = [_slice_cells(found[one]) if one in found else None for found in records]
        rows.append(SliceRow(name, display.amount(own["weight"]), display.fixed(own["mean_label"], 4), cells))
    columns = ("calibration_ratio", "calibration_ratio_low", "calibration_ratio_high")
    aligned = [first.iloc[:0] if table is None else table for table in tables]
    return SliceTable(
        feature=feature,
        slices=max(len(table) for table in tables if table is not None),
        figure=figure_of(
            "Predicted / actual clicks",
            plots.by_group(
                [table.reindex(heaviest.index) for table in aligned],
                columns,
                # Names of values may be anything, and are in the table.
                [str(place) for place in range(1, len(names) + 1)],
                ("row of the table", "predicted / actual clicks"),
                1.0,
            ),
            f"Predicted over actual clicks for the most frequent values of {feature}; the table has the numbers.",
        ),
        rows=rows,
    )


def _slice_cells(row: Mapping[Hashable, float]) -> tuple[str, str, str]:
    ends = row["calibration_ratio_low"], row["calibration_ratio_high"]
    return (
        display.with_margin(row["calibration_ratio"], *ends),
        display.with_margin(row["logloss"], row["logloss_low"], row["logloss_high"]),
        display.fixed(row["auc"], 3),
    )


def health_tables(runs: Sequence[ShownRun]) -> list[HealthTable]:
    """What the runs found of the features' ids; runs that found the same share a table."""
    tables: list[HealthTable] = []
    for shown in runs:
        if shown.health is None:
            continue
        same = next((table for table in tables if table.runs[0].health == shown.health), None)
        if same is not None:
            same.runs.append(shown)
            continue
        features = []
        for place, feature in enumerate(shown.health.features):
            color, dashes = plots.line_look(place)
            features.append((feature, style_color(color), " ".join(f"{dash:g}" for dash in dashes)))
        tables.append(HealthTable([shown], features, _health_figures(shown)))
    return tables


def _health_figures(shown: ShownRun) -> list[ReportFigure]:
    timeline, health = shown.timeline, shown.health
    if timeline is None or health is None or not len(timeline):
        return []
    names = [feature.name for feature in health.features if feature.name in timeline.ids]
    figures = []
    if names:
        words = " ".join(
            f"{feature.name}: {display.percent(feature.new_share)}." for feature in health.features
        )
        figures.append(
            figure_of(
                "Share of values with an id that was not seen before",
                plots.id_shares(timeline, names, "new", shown.index),
                f"Share of values with a new id over time, for each feature. Overall: {words}",
            )
        )
    if any(feature.missing for feature in health.features):
        words = " ".join(
            f"{feature.name}: {display.percent(feature.missing_share)}." for feature in health.features
        )
        figures.append(
            figure_of(
                "Share of rows without a value",
                plots.id_shares(timeline, names, "missing", shown.index),
                f"Share of rows without a value over time, for each feature. Overall: {words}",
            )
        )
    return [*figures, *_slot_figures(shown)]


def _slot_figures(shown: ShownRun) -> list[ReportFigure]:
    """How many rows the ids that grow have of their own, which came and went, and how many values share rows."""
    timeline, health = shown.timeline, shown.health
    if timeline is None or health is None:
        return []
    # In the colors of the table.
    features = {
        feature.name: (place, feature.slots)
        for place, feature in enumerate(health.features)
        if feature.slots is not None and feature.name in timeline.slots
    }
    if not features:
        return []
    looks = {name: place for name, (place, _) in features.items()}
    words = {
        "occupied": [
            f"{name}: {slots.occupancy:,} of {slots.capacity:,}." for name, (_, slots) in features.items()
        ],
        "moved": [
            f"{name}: {slots.admitted:,} admitted, {slots.evicted:,} evicted."
            for name, (_, slots) in features.items()
        ],
        "shared": [
            f"{name}: {display.percent(slots.shared_share)}." for name, (_, slots) in features.items()
        ],
    }
    titles = {
        "occupied": "Share of the capacity that ids occupy",
        "moved": "Ids admitted in each window, and evicted (below 0)",
        "shared": "Share of values whose id shares a row",
    }
    return [
        figure_of(
            title,
            plots.id_slots(timeline, looks, kind, shown.index),
            f"{title}, over time, for each feature whose ids grow. At the end, or overall: {' '.join(words[kind])}",
        )
        for kind, title in titles.items()
    ]


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
    color = style_color(color) if color else ""
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
    """A plot given as an SVG element, with its words as in `ReportFigure`."""
    # An element of a page may refer to parts of another one that have the same id.
    prefix = hashlib.sha256(f"{title}\0{alt}\0{svg}".encode()).hexdigest()[:8]
    svg = re.sub(r'(\sid="|\shref="#|:href="#|url\(#)', rf"\g<1>p{prefix}-", svg)
    words = f'class="plot" role="img" aria-label="{escape(alt)}" '
    return ReportFigure(title, Markup(svg.replace("<svg ", f"<svg {words}", 1)), alt, run)


def style_color(color: str) -> str:
    """One of `COLORS` as the page's style knows it."""
    return f"var(--run-{COLORS.index(color)})"


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
