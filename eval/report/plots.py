"""The plots of a report, as SVG.

Runs are told apart by color and marker (`COLORS`, `MARKERS`, in the order of the runs), which the page around
explains: no text of a run's files is drawn. The same data give the same bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ctr.eval import display
from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.logit_histogram import LOGIT_LIMIT
from ctr.eval.per_query_auc import SIZE_NAMES
from ctr.eval.report.plot_style import (
    COLORS,
    DASHES,
    MARKERS,
    OTHER,
    QUIET,
    STYLE,
    Hover,
    new_figure,
    of_run,
    thousands,
    to_svg,
)
from ctr.eval.timeline import Timeline
from ctr.eval.weight_spectra import KEPT_SHARE, cumulative_shares

Course = tuple[FloatArray, FloatArray, FloatArray]
"""A quantity over time [W], and the low and the high ends of its intervals."""

_SIZE = (4.9, 2.7)
_FEW_WINDOWS = 40
_BASELINES = {"calibration_bias": 0.0, "normalized_entropy": 1.0}
_RATE_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_SUMMED_BY = {"per_query_auc": "queries_scored", "logloss": "weight_sum", "calibration_bias": "weight_sum"}
"""The metrics whose value over several windows is the mean of theirs, and its weights."""

_FIRST_TIME, _LAST_TIME = np.array(["0001-01-02", "9999-12-30"], "datetime64[us]").astype(np.int64)
_DATES = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%S.%f"]
_DATES_BESIDE = ["", "%Y", "%Y", "%d %b %Y", "%d %b %Y", "%d %b %Y %H:%M"]
"""What stands at ticks of years, months, ..., seconds, and what stands once beside the axis."""
_HISTOGRAM_BINS = 80
_TAIL = 0.0005
_PROBABILITIES = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999, 0.9999)


def has_running_mean(metric: str) -> bool:
    """Whether `progressive_metric` also draws the value of all windows so far."""
    return metric in _SUMMED_BY


def uses_event_time(windows: Sequence[pd.DataFrame]) -> bool:
    """Whether the windows' times spread them out: else they are drawn by the number of examples."""
    for table in windows:
        times = table[["window_begin", "window_end"]].to_numpy()
        if len(times) and (times.min() < _FIRST_TIME or times.max() > _LAST_TIME):
            return False
        middle = _middle_time(table)
        if 2 * len(np.unique(middle)) <= len(middle) or np.any(np.diff(middle) < 0):
            return len(middle) == 1
    return True


def progressive_metric(windows: Sequence[pd.DataFrame], metric: str) -> str:
    """A metric of each window over time, with its interval as a band.

    Args:
        windows: for each run its windows, as `ctr.eval.run_files.read_windows` gives them.
        metric: one of `ctr.eval.run_files.METRICS`.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        by_time = uses_event_time(windows)
        shown = []
        for index, table in enumerate(windows):
            x = _position(table, by_time)
            y = table[metric].to_numpy()
            low, high = table[f"{metric}_low"].to_numpy(), table[f"{metric}_high"].to_numpy()
            hover.add(index, axes, x, y, _heads(table, by_time), _values(y, low, high))
            if len(table) == 1:
                _with_bars(axes, x, y, low, high, index)
            else:
                alpha = min(0.15, 0.5 / len(windows))
                _with_band(axes, x, low, high, index, alpha)
                _with_line(axes, x, y, index)
                if has_running_mean(metric):
                    mean = _running_mean(y, table[_SUMMED_BY[metric]].to_numpy())
                    color = COLORS[index % len(COLORS)]
                    of_run(index, axes.plot(x, mean, color=color, linestyle=(0, (5, 2)), linewidth=1))
            # Windows with few examples, and the outer half of the bands, may lie outside the frame.
            full = table["window_examples"].to_numpy() >= table["window_examples"].median() / 4
            inner = (y + low) / 2, (y + high) / 2
            shown += [y[full], *(bound[full] for bound in (inner if len(table) > 1 else (low, high)))]
        _frame(axes, np.concatenate(shown), _BASELINES.get(metric))
        _frame_pass(axes, windows, by_time)
        return to_svg(figure, hover)


def throughput(windows: Sequence[pd.DataFrame]) -> str:
    """Examples per second in each window over time."""
    return _rates(windows, [table["examples_per_second"].to_numpy() for table in windows], "examples/s")


def traffic_unit(windows: Sequence[pd.DataFrame]) -> str | None:
    """The longest stretch of event time that `traffic` counts by, so that it has at least one example; None without."""
    if not uses_event_time(windows):
        return None
    rates = np.concatenate([_traffic(table) for table in windows])
    rates = rates[np.isfinite(rates)]
    if not len(rates):
        return None
    return next((unit for unit, seconds in _RATE_UNITS.items() if np.median(rates) * seconds >= 1), "day")


def traffic(windows: Sequence[pd.DataFrame], unit: str) -> str:
    """Examples per stretch of event time in each window; `unit` is that of `traffic_unit`."""
    rates = [_traffic(table) * _RATE_UNITS[unit] for table in windows]
    return _rates(windows, rates, f"examples per {unit}")


def _traffic(table: pd.DataFrame) -> FloatArray:
    """Examples per second of event time, [W]; NaN for a window that has no duration."""
    seconds = (table["window_end"].to_numpy() - table["window_begin"].to_numpy()) / 1e6
    return ratio(table["window_examples"].to_numpy(), np.where(seconds > 0, seconds, 0.0))


def _rates(windows: Sequence[pd.DataFrame], rates: Sequence[FloatArray], unit: str) -> str:
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        by_time = uses_event_time(windows)
        for index, (table, rate) in enumerate(zip(windows, rates, strict=True)):
            x = _position(table, by_time)
            _with_line(axes, x, rate, index)
            texts = [f"{display.amount(value)} {unit}" for value in np.round(rate, 1)]
            hover.add(index, axes, x, rate, _heads(table, by_time), texts)
        axes.yaxis.set_major_formatter(thousands())
        _frame(axes, np.concatenate(rates), None)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        _frame_pass(axes, windows, by_time)
        return to_svg(figure, hover)


def click_rates(timelines: Sequence[Timeline | None]) -> str:
    """Observed click-through rate over time, with its interval, and the mean prediction of each run."""
    known = [(index, one) for index, one in enumerate(timelines) if one is not None and len(one)]
    tables = [_places(one) for _, one in known]
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        by_time = uses_event_time(tables)
        same = all(one.matches(known[0][1]) for _, one in known)
        shown: list[FloatArray] = []
        for place, ((index, timeline), table) in enumerate(zip(known, tables, strict=True)):
            x, heads = _position(table, by_time), _heads(table, by_time)
            observed = timeline.estimate("click_rate")
            low, high = observed.interval()
            if place == 0 or not same:
                band = axes.fill_between(x, low, high, color=OTHER, alpha=0.2, linewidth=0)
                line = axes.plot(
                    x, observed.point, color=OTHER, linewidth=1.6, label="" if place else "observed"
                )
                if not same:
                    of_run(index, [band, *line])
                shown += [observed.point, (observed.point + low) / 2, (observed.point + high) / 2]
            predicted = timeline.estimate("predicted_click_rate").point
            _with_line(axes, x, predicted, index)
            shown.append(predicted)
            texts = [
                f"predicted {display.fixed(one, 4)}, observed {text}"
                for one, text in zip(predicted, _values(observed.point, low, high), strict=True)
            ]
            hover.add(index, axes, x, predicted, heads, texts)
        _frame(axes, np.concatenate(shown) if shown else np.zeros(0), None)
        if known:
            axes.legend(loc="upper right", fontsize=8.5)
        axes.set_ylabel("click-through rate")
        _frame_pass(axes, tables, by_time)
        return to_svg(figure, hover)


def loss_terms(table: pd.DataFrame, terms: Mapping[str, str], run: int) -> str:
    """What each term contributed to the loss of the steps in each window of a run.

    Args:
        table: the run's windows.
        terms: titles of the columns to draw.
        run: its number.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        by_time = uses_event_time([table])
        x, heads = _position(table, by_time), _heads(table, by_time)
        for place, (column, title) in enumerate(terms.items()):
            y = table[column].to_numpy()
            color, dashes = line_look(place)
            style: Any = (0, dashes) if dashes else "solid"
            axes.plot(x, y, color=color, linestyle=style, linewidth=1.4, label=title)
            hover.add(run, axes, x, y, heads, [f"{title} {display.fixed(value, 4)}" for value in y])
        axes.legend(loc="best", fontsize=8.5)
        axes.set_ylabel("loss, nats per example")
        _frame_pass(axes, [table], by_time)
        return to_svg(figure, hover)


def over_time(
    courses: Sequence[tuple[int, Timeline, Course, Course]], label: str, best: float, *, signed: bool = False
) -> str:
    """A quantity of runs over time, with bands of 95%: of each window, and of all windows so far.

    Args:
        courses: for each run its number, its timeline, and the course by window and so far.
        label: what it is.
        best: its best value.
        signed: whether values are shown with their sign.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        tables = [_places(timeline) for _, timeline, _, _ in courses]
        by_time = uses_event_time(tables)
        shown = [np.array([best])]
        for (index, _, window, so_far), table in zip(courses, tables, strict=True):
            x, heads = _position(table, by_time), _heads(table, by_time)
            color = COLORS[index % len(COLORS)]
            point, low, high = window
            _with_band(axes, x, low, high, index, min(0.15, 0.3 / len(courses)))
            _with_line(axes, x, point, index)
            middle, below, above = so_far
            of_run(index, axes.plot(x, middle, color=color, linestyle=(0, (5, 2)), linewidth=1.2))
            for bound in (below, above):
                of_run(index, axes.plot(x, bound, color=color, linestyle=(0, (1, 2)), linewidth=0.9))
            texts = [
                f"{own}; so far {total}"
                for own, total in zip(
                    _values(point, low, high, signed=signed),
                    _values(middle, below, above, signed=signed),
                    strict=True,
                )
            ]
            hover.add(index, axes, x, point, heads, texts)
            shown += [point, (point + low) / 2, (point + high) / 2]
        _frame(axes, np.concatenate(shown), best)
        axes.set_ylabel(label)
        _frame_pass(axes, tables, by_time)
        return to_svg(figure, hover)


def id_shares(timeline: Timeline, features: Sequence[str], kind: str, run: int) -> str:
    """Over time, of each feature the share of values with a new id (`kind` "new"), or of rows without a value.

    Lines look as `line_look` says, in the order of `features`.
    """
    table = _places(timeline)
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        by_time = uses_event_time([table])
        x, heads = _position(table, by_time), _heads(table, by_time)
        for place, name in enumerate(features):
            share = timeline.new_share(name) if kind == "new" else timeline.missing_share(name)
            color, dashes = line_look(place)
            style: Any = (0, dashes) if dashes else "solid"
            axes.plot(x, share, color=color, linestyle=style, linewidth=1.4)
            hover.add(run, axes, x, share, heads, [f"{name} {display.percent(one)}" for one in share])
        axes.yaxis.set_major_formatter(_percent())
        axes.set_ylim(bottom=0)
        axes.set_ylabel("values with a new id" if kind == "new" else "rows without a value")
        _frame_pass(axes, [table], by_time)
        return to_svg(figure, hover)


def id_slots(timeline: Timeline, looks: Mapping[str, int], kind: str, run: int) -> str:
    """Over time, of each feature whose ids grow, how its slots are used.

    Args:
        timeline: of the run.
        looks: by feature the number of its line, as in `line_look`.
        kind: ``occupied``, the share of the capacity; ``moved``, ids admitted, and below 0 those evicted; ``shared``,
            the share of values on shared rows.
        run: its number.
    """
    table = _places(timeline)
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        hover = Hover()
        by_time = uses_event_time([table])
        x, heads = _position(table, by_time), _heads(table, by_time)
        for name, look in looks.items():
            counts = timeline.slot_series(name)
            color, dashes = line_look(look)
            style: Any = (0, dashes) if dashes else "solid"
            if kind == "moved":
                lines: list[npt.NDArray[Any]] = [counts["admitted"]]
                if counts["evicted"].any():
                    lines.append(-counts["evicted"])
                texts = [
                    f"{name} {one:,} admitted, {other:,} evicted"
                    for one, other in zip(counts["admitted"], counts["evicted"], strict=True)
                ]
            else:
                over = ("occupancy", "capacity") if kind == "occupied" else ("shared", "occurrences")
                lines = [ratio(*(counts[one] for one in over))]
                texts = [f"{name} {display.percent(float(one))}" for one in lines[0]]
            for y in lines:
                axes.plot(x, y, color=color, linestyle=style, linewidth=1.4)
            hover.add(run, axes, x, lines[0], heads, texts)
        if kind == "moved":
            axes.axhline(0, color=QUIET, linewidth=0.8)
            axes.yaxis.set_major_formatter(thousands())
        else:
            axes.yaxis.set_major_formatter(_percent())
            axes.set_ylim(bottom=0)
        axes.set_ylabel({"occupied": "occupied", "moved": "ids", "shared": "values on shared rows"}[kind])
        _frame_pass(axes, [table], by_time)
        return to_svg(figure, hover)


def gain_curves(histograms: Sequence[FloatArray]) -> str:
    """Share of clicks among the examples with the highest predictions, by the share of examples that these are."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((4.9, 3.6))
        hover = Hover()
        axes.plot([0, 1], [0, 1], color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        for index, histogram in enumerate(histograms):
            if not histogram[:, 1].sum() > 0:
                continue
            x = np.linspace(0, 1, 201)
            y = gain(histogram, x)
            of_run(index, axes.plot(x, y, color=COLORS[index % len(COLORS)], linewidth=1.4))
            heads = [f"top {display.percent(share)} of examples" for share in x]
            texts = [f"{display.percent(share)} of clicks" for share in y]
            hover.add(index, axes, x, y, heads, texts)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_percent())
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.01)
        axes.set_xlabel("share of examples, highest predictions first")
        axes.set_ylabel("share of clicks")
        return to_svg(figure, hover)


def gain(histogram: FloatArray, shares: Sequence[float] | FloatArray) -> FloatArray:
    """The share of clicks in the given shares of examples with the highest predictions, [S].

    Args:
        histogram: float64 [B, 2], weight of non-clicks and of clicks by fine logit bin; with clicks.
        shares: from 0 to 1 [S]. Within a bin the examples count as alike.
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


def reliability(deciles: Sequence[pd.DataFrame]) -> str:
    """Share of clicks against mean prediction, by decile of prediction; the diagonal is perfect.

    Args:
        deciles: for each run the table of `ctr.eval.calibration.calibration_buckets`.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((4.4, 4.0))
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
            _with_bars(axes, mean, labels, lowest, highest, index)
            texts = [
                f"predicted {display.fixed(one, 4)}, observed {display.fixed(other, 4)}"
                for one, other in zip(mean, labels, strict=True)
            ]
            hover.add(
                index, axes, mean, labels, [f"decile {decile}" for decile in range(1, len(table) + 1)], texts
            )
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_aspect("equal")
        axes.set_xlabel("predicted CTR")
        axes.set_ylabel("observed CTR")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
            axis.set_minor_formatter("")
        return to_svg(figure, hover)


def by_group(
    tables: Sequence[pd.DataFrame],
    columns: tuple[str, str, str],
    groups: Sequence[str],
    labels: tuple[str, str],
    best: float,
) -> str:
    """A metric by group, the runs beside one another.

    Args:
        tables: for each run one row for each group; NaN where it has none.
        columns: the metric's and those of its interval's ends.
        groups: names of the groups.
        labels: of both axes: what the groups are, and the metric.
        best: the metric's best value.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure((4.9, 3.2))
        hover = Hover(near=True)
        axes.axhline(best, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
        shown = [np.array([best])]
        for index, table in enumerate(tables):
            x = np.arange(len(groups)) + _offset(index, len(tables))
            y, low, high = (table[name].to_numpy(np.float64) for name in columns)
            _with_bars(axes, x, y, low, high, index)
            hover.add(index, axes, x, y, [f"{labels[0]} {group}" for group in groups], _values(y, low, high))
            # The ends of unusually long intervals may lie outside the frame.
            usual = (
                high - low <= 3 * np.nanmedian(high - low) if np.isfinite(high - low).any() else low > high
            )
            shown += [y, np.where(usual, low, y), np.where(usual, high, y)]
        _frame(axes, np.concatenate(shown), None)
        _name_groups(axes, groups, labels[0])
        axes.set_ylabel(labels[1])
        return to_svg(figure, hover)


def auc_by_query_size(tables: Sequence[pd.DataFrame]) -> str:
    """PerQueryAUC by the number of a query's rows, over how many queries have that many.

    Args:
        tables: for each run the table of `ctr.eval.per_query_auc.PerQueryAUC.by_size`.
    """
    sizes = [name for name in SIZE_NAMES if any(name in set(table["size"]) for table in tables)]
    rows = [table.set_index("size").reindex(sizes) for table in tables]
    same = all(table["queries"].equals(rows[0]["queries"]) for table in rows)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.9, 3.6), layout="constrained")
        hover = Hover(near=True)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for index, table in enumerate(rows):
            x = np.arange(len(sizes)) + _offset(index, len(rows))
            bounds = table["ci95_low"].to_numpy(), table["ci95_high"].to_numpy()
            _with_bars(above, x, table["auc"].to_numpy(), *bounds, index)
            heads = [
                f"{size} rows, {display.amount(queries)} queries"
                for size, queries in zip(sizes, table["queries"], strict=True)
            ]
            hover.add(index, above, x, table["auc"], heads, _values(table["auc"].to_numpy(), *bounds))
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
        _name_groups(below, sizes, "rows in the query")
        return to_svg(figure, hover)


def prediction_range(histograms: Sequence[FloatArray]) -> tuple[int, int]:
    """The fine logit bins, from and up to, outside which each run has at most `_TAIL` of its weight on a side."""
    begin, end = len(histograms[0]), 0
    for histogram in histograms:
        up_to = np.cumsum(histogram.sum(axis=1))
        if up_to[-1] > 0:
            inside = np.searchsorted(up_to, np.array([_TAIL, 1 - _TAIL]) * up_to[-1])
            begin, end = min(begin, int(inside[0])), max(end, int(inside[1]) + 1)
    return (begin, end) if begin < end else (0, len(histograms[0]))


def prediction_histogram(histogram: FloatArray, limits: tuple[int, int], index: int) -> str:
    """Predictions of clicked and of not clicked examples, each as shares of its class, on the scale of logits.

    Args:
        histogram: float64 [B, 2], weight of non-clicks and of clicks by fine logit bin.
        limits: the fine bins to draw, from and up to.
        index: of the run.
    """
    step = -(-(limits[1] - limits[0]) // _HISTOGRAM_BINS)
    edges = np.arange(limits[0], limits[1] + step, step)
    padded = np.concatenate([histogram, np.zeros((step, 2))])
    weight = np.add.reduceat(padded, edges, axis=0)[:-1]
    logits = edges * (2 * LOGIT_LIMIT / len(histogram)) - LOGIT_LIMIT
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(_SIZE)
        for clicked, color, name in (
            (0, OTHER, "not clicked"),
            (1, COLORS[index % len(COLORS)], "clicked"),
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
        axes.yaxis.set_major_formatter(_percent())
        axes.set_xlabel("predicted probability of a click")
        axes.set_ylabel("share of the class")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper right")
        return to_svg(figure)


def cumulative_spectra(spectra: Sequence[FloatArray | None]) -> str:
    """Shares of the norm and of the sum of singular values in the largest, by the share of them that these are.

    Args:
        spectra: for each weight its singular values, descending; without any, or with none above 0, it has no line.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, order, label in zip(panels, (2, 1), ("Frobenius norm", "sum"), strict=True):
            axes.axhline(KEPT_SHARE, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
            axes.axvline(0.5, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
            for index, values in enumerate(spectra):
                if values is not None and values.any():
                    x = np.linspace(0, 1, len(values) + 1)
                    color, dashes = line_look(index)
                    style: Any = (0, dashes) if dashes else "solid"
                    axes.plot(
                        x, cumulative_shares(values, order), color=color, linestyle=style, linewidth=1.4
                    )
            axes.set_xlim(0, 1)
            axes.set_ylim(0, 1.02)
            axes.xaxis.set_major_formatter(_percent())
            axes.set_xlabel("rank, as a share of the full one")
            axes.set_ylabel(f"share of the {label}")
        panels[0].yaxis.set_major_formatter(_percent())
        return to_svg(figure)


def line_look(index: int) -> tuple[str, tuple[float, ...]]:
    """Color, and strokes and gaps, of the line of a weight."""
    return COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)]


def _middle_time(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    begin = table["window_begin"].to_numpy()
    middle: npt.NDArray[np.int64] = begin + (table["window_end"].to_numpy() - begin) // 2
    return middle


def _position(table: pd.DataFrame, by_time: bool) -> npt.NDArray[np.generic]:
    """Where the windows lie along the pass."""
    return _middle_time(table).astype("datetime64[us]") if by_time else table["examples"].to_numpy()


def _running_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    known = np.isfinite(values) & np.isfinite(weights)
    weights = np.where(known, weights, 0.0)
    total = np.cumsum(weights)
    mean: FloatArray = np.full(len(values), np.nan)
    np.divide(np.cumsum(weights * np.where(known, values, 0.0)), total, out=mean, where=total > 0)
    return mean


def _places(timeline: Timeline) -> pd.DataFrame:
    """Where the entries of a timeline lie, as columns of `ctr.eval.run_files.read_windows`."""
    return pd.DataFrame(
        timeline.windows[:, :4], columns=["examples", "window_begin", "window_end", "window_examples"]
    )


def _heads(table: pd.DataFrame, by_time: bool) -> list[str]:
    """What is written of the place of each window."""
    if by_time:
        return [f"{time:%Y-%m-%d %H:%M} UTC" for time in pd.to_datetime(_middle_time(table), unit="us")]
    return [f"{examples:,} examples" for examples in table["examples"]]


def _values(y: FloatArray, low: FloatArray, high: FloatArray, *, signed: bool = False) -> list[str]:
    """Values with the half-widths of their intervals, as text."""
    return [
        display.with_margin(float(value), float(one), float(other), signed=signed)
        for value, one, other in zip(y, low, high, strict=True)
    ]


def _with_band(
    axes: Axes, x: npt.NDArray[np.generic], low: FloatArray, high: FloatArray, index: int, alpha: float
) -> None:
    color = COLORS[index % len(COLORS)]
    of_run(index, axes.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0))


def _with_line(axes: Axes, x: npt.NDArray[np.generic], y: FloatArray, index: int) -> None:
    lines = axes.plot(
        x,
        y,
        color=COLORS[index % len(COLORS)],
        marker=MARKERS[index % len(MARKERS)] if len(x) <= _FEW_WINDOWS else None,
        markersize=3.5,
        linewidth=1.4,
    )
    of_run(index, lines)


def _with_bars(
    axes: Axes, x: npt.NDArray[np.generic], y: FloatArray, low: FloatArray, high: FloatArray, index: int
) -> None:
    margins = np.nan_to_num(np.stack([y - low, high - y]))
    container = axes.errorbar(
        x,
        y,
        yerr=np.maximum(margins, 0.0),
        color=COLORS[index % len(COLORS)],
        marker=MARKERS[index % len(MARKERS)],
        markersize=4.5,
        linestyle="none",
        elinewidth=1.2,
        capsize=2.5,
    )
    of_run(index, container.lines)


def _offset(index: int, runs: int) -> float:
    """How far beside a group's middle a run is drawn."""
    return (index - (runs - 1) / 2) * min(0.7 / runs, 0.25)


def _frame(axes: Axes, values: FloatArray, baseline: float | None) -> None:
    """Frame `values`, and `baseline` where it lies near them."""
    values = values[np.isfinite(values)]
    if not len(values):
        axes.text(0.5, 0.5, "undefined in every window", transform=axes.transAxes, ha="center", color=QUIET)
        axes.set_yticks([])
        return
    low, high = float(values.min()), float(values.max())
    margin = 0.1 * (high - low) or 0.01 * max(abs(high), 0.01)
    if baseline is not None and low - 3 * margin <= baseline <= high + 3 * margin:
        low, high = min(low, baseline), max(high, baseline)
        axes.axhline(baseline, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
    axes.set_ylim(low - margin, high + margin)


def _frame_pass(axes: Axes, windows: Sequence[pd.DataFrame], by_time: bool) -> None:
    if by_time:
        begin = min((table["window_begin"].min() for table in windows if len(table)), default=0)
        end = max((table["window_end"].max() for table in windows if len(table)), default=0)
        # One query alone has no duration.
        margin = (end - begin) // 40 or 1_000_000
        limits = np.array([begin - margin, end + margin]).astype("datetime64[us]")
        axes.set_xlim(limits[0], limits[1])
        # With 3 and 8 some interval fits any stretch of time; with 4 none fits three and a half days.
        locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            ConciseDateFormatter(  # type: ignore[no-untyped-call]
                locator, formats=_DATES, offset_formats=_DATES_BESIDE
            )
        )
        axes.set_xlabel("event time (UTC)")
    else:
        axes.xaxis.set_major_formatter(thousands())
        axes.set_xlabel("examples")


def _name_groups(axes: Axes, groups: Sequence[str], label: str) -> None:
    crowded = sum(map(len, groups)) > 32
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(np.arange(len(groups)), list(groups), **turned)
    axes.set_xlim(-0.6, max(len(groups), 1) - 0.4)
    axes.grid(False, axis="x")
    axes.set_xlabel(label)


def _percent() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{100 * value:.3g}%")
