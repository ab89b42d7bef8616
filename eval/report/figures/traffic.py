"""Traffic, click-through rates and throughput over time."""

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd

from ctr.eval import display
from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.report.figures import along_pass
from ctr.eval.report.figures.figure import (
    FIGURE_SIZE,
    ReportFigure,
    draw_line,
    figure_of,
    frame_values,
    interval_texts,
)
from ctr.eval.report.plot_style import OTHER, STYLE, Hover, new_figure, of_run, thousands, to_svg
from ctr.eval.report.shown_run import ShownRun
from ctr.eval.timeline import Timeline

_RATE_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def traffic_figures(runs: Sequence[ShownRun]) -> list[ReportFigure]:
    """Traffic, observed and predicted click-through rate, and throughput over time."""
    windows = [shown.windows for shown in runs]
    figures = []
    unit = traffic_unit(windows)
    if unit is not None:
        figures.append(
            figure_of(
                "Traffic",
                traffic(windows, unit),
                f"Examples per {unit} of event time in each window.",
                note=f"examples per {unit} of event time",
            )
        )
    timelines = [shown.timeline for shown in runs]
    if any(map(len, timelines)):
        rates = " ".join(
            f"{shown.name}: observed {display.fixed(observed, 4)}, predicted {display.fixed(predicted, 4)}."
            for shown in runs
            for observed, predicted in [_rates_of_pass(shown)]
        )
        figures.append(
            figure_of(
                "Observed vs predicted CTR",
                click_rates(timelines),
                f"Observed and predicted click-through rate of each window. Of all windows: {rates}",
            )
        )
    speeds = along_pass.describe_courses(runs, "examples_per_second", 0)
    speed = figure_of(
        "Training throughput",
        throughput(windows),
        f"Examples per second over time. {speeds}",
        note="examples/s",
    )
    return [*figures, speed]


def _rates_of_pass(shown: ShownRun) -> tuple[float, float]:
    weight, clicks, predicted = shown.run.metrics.calibration.sums.sum(axis=0)
    return float(ratio(clicks, weight)), float(ratio(predicted, weight))


def throughput(windows: Sequence[pd.DataFrame]) -> str:
    """Plots examples per second in each window over time."""
    return _rate_plot(windows, [table["examples_per_second"].to_numpy() for table in windows], "examples/s")


def traffic_unit(windows: Sequence[pd.DataFrame]) -> str | None:
    """Shortest stretch of event time of which the median window has at least one example; None without times."""
    if not along_pass.uses_event_time(windows):
        return None
    rates = np.concatenate([_traffic(table) for table in windows])
    rates = rates[np.isfinite(rates)]
    if not len(rates):
        return None
    return next((unit for unit, seconds in _RATE_UNITS.items() if np.median(rates) * seconds >= 1), "day")


def traffic(windows: Sequence[pd.DataFrame], unit: str) -> str:
    """Plots examples per stretch of event time in each window; `unit` is that of `traffic_unit`."""
    rates = [_traffic(table) * _RATE_UNITS[unit] for table in windows]
    return _rate_plot(windows, rates, f"examples per {unit}")


def _traffic(table: pd.DataFrame) -> FloatArray:
    """Examples per second of event time, [W]; NaN for a window that has no duration."""
    seconds = (table["window_end"].to_numpy() - table["window_begin"].to_numpy()) / 1e6
    return ratio(table["window_examples"].to_numpy(), np.where(seconds > 0, seconds, 0.0))


def _rate_plot(windows: Sequence[pd.DataFrame], rates: Sequence[FloatArray], unit: str) -> str:
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(FIGURE_SIZE)
        hover = Hover()
        by_time = along_pass.uses_event_time(windows)
        for index, (table, rate) in enumerate(zip(windows, rates, strict=True)):
            x = along_pass.positions(table, by_time)
            draw_line(axes, x, rate, index)
            texts = [f"{display.amount(value)} {unit}" for value in np.round(rate, 1)]
            hover.add(index, axes, x, rate, along_pass.heads_of(table, by_time), texts)
        axes.yaxis.set_major_formatter(thousands())
        frame_values(axes, np.concatenate(rates), None)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        along_pass.frame_pass(axes, windows, by_time)
        return to_svg(figure, hover)


def click_rates(timelines: Sequence[Timeline]) -> str:
    """Plots observed click-through rate over time, with its interval, and the mean prediction of each run."""
    known = [(index, one) for index, one in enumerate(timelines) if len(one)]
    tables = [along_pass.places_of(one) for _, one in known]
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(FIGURE_SIZE)
        hover = Hover()
        by_time = along_pass.uses_event_time(tables)
        same = all(one.matches(known[0][1]) for _, one in known)
        shown: list[FloatArray] = []
        for place, ((index, timeline), table) in enumerate(zip(known, tables, strict=True)):
            x, heads = along_pass.positions(table, by_time), along_pass.heads_of(table, by_time)
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
            draw_line(axes, x, predicted, index)
            shown.append(predicted)
            texts = [
                f"predicted {display.fixed(one, 4)}, observed {text}"
                for one, text in zip(predicted, interval_texts(observed.point, low, high), strict=True)
            ]
            hover.add(index, axes, x, predicted, heads, texts)
        frame_values(axes, np.concatenate(shown) if shown else np.zeros(0), None)
        if known:
            axes.legend(loc="upper right", fontsize=8.5)
        axes.set_ylabel("click-through rate")
        along_pass.frame_pass(axes, tables, by_time)
        return to_svg(figure, hover)
