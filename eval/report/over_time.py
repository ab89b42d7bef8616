"""Figures over time: metrics, differences from the first run, traffic, and the terms of the loss."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctr.eval import display
from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.intervals import difference
from ctr.eval.report import page
from ctr.eval.report.shown_run import ShownRun
from ctr.eval.run_files import ADDED_TERMS, LOSS_TERMS, METRICS
from ctr.eval.timeline import Timeline

Course = tuple[FloatArray, FloatArray, FloatArray]
"""Quantity over time [W], and the low and the high ends of its intervals."""

_FIRST_TIME, _LAST_TIME = np.array(["0001-01-02", "9999-12-30"], "datetime64[us]").astype(np.int64)
_BASELINES = {"calibration_bias": 0.0, "normalized_entropy": 1.0}
_SUMMED_BY = {"per_query_auc": "queries_scored", "logloss": "weight_sum", "calibration_bias": "weight_sum"}
"""Metrics whose value over several windows is the mean of theirs, and its weights."""
_PAIRED = {
    "per_query_auc": "PerQueryAUC",
    "logloss": "logloss",
    "calibration_ratio": "predicted / actual clicks",
}
_RATE_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def uses_event_time(windows: Sequence[pd.DataFrame]) -> bool:
    """Tells whether the windows' times spread them out: else they are drawn by the number of examples."""
    for table in windows:
        times = table[["window_begin", "window_end"]].to_numpy()
        if len(times) and (times.min() < _FIRST_TIME or times.max() > _LAST_TIME):
            return False
        middle = _middle_time(table)
        if 2 * len(np.unique(middle)) <= len(middle) or np.any(np.diff(middle) < 0):
            return len(middle) == 1
    return True


def _middle_time(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    begin = table["window_begin"].to_numpy()
    middle: npt.NDArray[np.int64] = begin + (table["window_end"].to_numpy() - begin) // 2
    return middle


class Pass:
    """Places of the windows of some runs along the pass: by event time where it spreads them out, or by examples."""

    def __init__(self, windows: Sequence[pd.DataFrame | Timeline]) -> None:
        self.tables = [_places_of(one) if isinstance(one, Timeline) else one for one in windows]
        self.by_time = uses_event_time(self.tables)

    def x(self, place: int = 0) -> npt.NDArray[np.generic]:
        table = self.tables[place]
        return _middle_time(table).astype("datetime64[us]") if self.by_time else table["examples"].to_numpy()

    def heads(self, place: int = 0) -> list[str]:
        """Texts of the place of each window."""
        table = self.tables[place]
        if self.by_time:
            return [f"{time:%Y-%m-%d %H:%M} UTC" for time in pd.to_datetime(_middle_time(table), unit="us")]
        return [f"{examples:,} examples" for examples in table["examples"]]

    def axis(self) -> page.Axis:
        if not self.by_time:
            return page.Axis("examples", "thousands")
        begin = min((table["window_begin"].min() for table in self.tables if len(table)), default=0)
        end = max((table["window_end"].max() for table in self.tables if len(table)), default=0)
        # One query alone has no duration.
        margin = (end - begin) // 40 or 1_000_000
        low, high = np.array([begin - margin, end + margin]).astype("datetime64[us]")
        return page.Axis("event time (UTC)", "time", limits=(low, high))

    def panel(
        self, series: Sequence[page.Series], y: page.Axis, legend: Literal["best", "upper right"] = "best"
    ) -> page.Panel:
        return page.Panel(series, self.axis(), y, legend)


def _places_of(timeline: Timeline) -> pd.DataFrame:
    """Entries of a timeline as columns of `ctr.eval.run_files.read_windows`."""
    return pd.DataFrame(
        timeline.windows[:, :4], columns=["examples", "window_begin", "window_end", "window_examples"]
    )


def margins(y: FloatArray, low: FloatArray, high: FloatArray, *, signed: bool = False) -> list[str]:
    """Values with the half-widths of their intervals, as text."""
    return [
        display.with_margin(float(value), float(one), float(other), signed=signed)
        for value, one, other in zip(y, low, high, strict=True)
    ]


def metric_figures(runs: Sequence[ShownRun]) -> list[page.Figure]:
    """Each metric over time."""
    return [
        page.Figure(
            title := display.METRIC_TITLES[metric],
            [metric_panel([shown.windows for shown in runs], metric)],
            f"{title} of each window over time. {_courses(runs, metric, 4)}",
            note="dashed: cumulative" if metric in _SUMMED_BY else "",
        )
        for metric in METRICS
    ]


def metric_panel(windows: Sequence[pd.DataFrame], metric: str) -> page.Panel:
    """A metric of each window, with its interval as a band, and where it has one the mean of all windows so far.

    ``windows``: for each run those of `ctr.eval.run_files.read_windows`.
    """
    along = Pass(windows)
    series: list[page.Series] = []
    framed = []
    for index, table in enumerate(windows):
        x, y = along.x(index), table[metric].to_numpy()
        low, high = table[f"{metric}_low"].to_numpy(), table[f"{metric}_high"].to_numpy()
        series.append(
            page.Series(
                x, y, index, "points" if len(table) == 1 else "line", low, high,
                band=min(0.15, 0.5 / len(windows)), marked=len(table) > 1,
                heads=along.heads(index), texts=margins(y, low, high),
            )
        )  # fmt: skip
        if metric in _SUMMED_BY and len(table) != 1:
            mean = _running_mean(y, table[_SUMMED_BY[metric]].to_numpy())
            series.append(page.Series(x, mean, index, dashes=page.SO_FAR, width=1.0))
        # Windows with few examples, and the outer half of the bands, may lie outside the frame.
        full = table["window_examples"].to_numpy() >= table["window_examples"].median() / 4
        inner = (y + low) / 2, (y + high) / 2
        framed += [y[full], *(bound[full] for bound in (inner if len(table) > 1 else (low, high)))]
    return along.panel(series, page.Axis(frame=np.concatenate(framed), level=_BASELINES.get(metric)))


def _running_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    known = np.isfinite(values) & np.isfinite(weights)
    weights = np.where(known, weights, 0.0)
    return ratio(np.cumsum(weights * np.where(known, values, 0.0)), np.cumsum(weights))


def _courses(runs: Sequence[ShownRun], column: str, decimals: int) -> str:
    """Says where a column of the windows begins and ends in each run."""
    courses = []
    for shown in runs:
        known = shown.windows[column].dropna()
        words = "undefined"
        if len(known):
            first, last = (display.fixed(value, decimals) for value in (known.iloc[0], known.iloc[-1]))
            words = f"{first} in the first window, {last} in the last"
        courses.append(f"{shown.name}: {words}.")
    return " ".join(courses)


def _with_totals(
    courses: Sequence[tuple[int, Timeline, Course, Course]], label: str, best: float, *, signed: bool = False
) -> page.Panel:
    """A quantity of runs over time, with its intervals: of each window, and of all windows so far.

    ``courses``: for each run its number, its timeline, and the course by window and so far. ``best``: the
    best value.
    """
    along = Pass([timeline for _, timeline, _, _ in courses])
    series, framed = [], [np.array([best])]
    for place, (index, _, (point, low, high), (middle, below, above)) in enumerate(courses):
        x = along.x(place)
        totals = margins(middle, below, above, signed=signed)
        own = margins(point, low, high, signed=signed)
        series += [
            page.Series(
                x, point, index, "line", low, high,
                band=min(0.15, 0.3 / len(courses)), marked=True, heads=along.heads(place),
                texts=[f"{one}; so far {total}" for one, total in zip(own, totals, strict=True)],
            ),
            page.Series(x, middle, index, dashes=page.SO_FAR, width=1.2),
            *(page.Series(x, bound, index, dashes=(1.0, 2.0), width=0.9) for bound in (below, above)),
        ]  # fmt: skip
        framed += [point, (point + low) / 2, (point + high) / 2]
    return along.panel(series, page.Axis(label, frame=np.concatenate(framed), level=best))


def click_ratio_figures(runs: Sequence[ShownRun]) -> list[page.Figure]:
    """Predicted over actual clicks over time, where any run has a timeline."""
    courses, words = [], []
    for shown in runs:
        timeline = shown.timeline
        if len(timeline):
            courses.append(
                (shown.index, timeline, timeline.click_ratio(), timeline.click_ratio(cumulative=True))
            )
            last = (float(one[0]) for one in timeline.last_window().click_ratio())
            words.append(f"{shown.name}: {display.with_margin(*last)} at the end of the pass.")
    if not courses:
        return []
    return [
        page.Figure(
            "Predicted / actual clicks over time",
            [_with_totals(courses, "predicted / actual clicks", 1.0)],
            f"Predicted over actual clicks in each window over time. {' '.join(words)}",
            note="dashed: cumulative",
        )
    ]


def paired_figures(runs: Sequence[ShownRun]) -> list[page.Figure]:
    """Paired difference from the first run over time, for the runs that scored the same examples."""
    first = runs[0].timeline
    others = [(shown, shown.timeline) for shown in runs[1:] if len(first) and shown.timeline.matches(first)]
    figures = []
    for metric, title in _PAIRED.items() if others else ():
        courses, words = [], []
        for shown, own in others:
            window, so_far = (
                difference(
                    first.estimate(metric, cumulative=cumulative), own.estimate(metric, cumulative=cumulative)
                )
                for cumulative in (False, True)
            )
            low, high = so_far.interval()
            courses.append((shown.index, own, (window.point, *window.interval()), (so_far.point, low, high)))
            text = display.with_margin(so_far.point[-1], low[-1], high[-1], signed=True)
            words.append(f"{shown.name}: {text} over all windows.")
        figures.append(
            page.Figure(
                title[0].upper() + title[1:],
                [_with_totals(courses, "difference", 0.0, signed=True)],
                f"Paired difference in {title} from {runs[0].name} over time. {' '.join(words)}",
                note="run minus baseline",
            )
        )
    return figures


def traffic_figures(runs: Sequence[ShownRun]) -> list[page.Figure]:
    """Traffic, observed and predicted click-through rate, and throughput over time."""
    windows = [shown.windows for shown in runs]
    figures = []
    if (unit := traffic_unit(windows)) is not None:
        rates = [_traffic(table) * _RATE_UNITS[unit] for table in windows]
        figures.append(
            page.Figure(
                "Traffic",
                [_rate_panel(windows, rates, f"examples per {unit}")],
                f"Examples per {unit} of event time in each window.",
                note=f"examples per {unit} of event time",
            )
        )
    if any(len(shown.timeline) for shown in runs):
        totals = " ".join(
            f"{shown.name}: observed {display.fixed(observed, 4)}, predicted {display.fixed(predicted, 4)}."
            for shown in runs
            for observed, predicted in [_rates_of_pass(shown)]
        )
        figures.append(
            page.Figure(
                "Observed vs predicted CTR",
                [_click_rates([(shown.index, shown.timeline) for shown in runs if len(shown.timeline)])],
                f"Observed and predicted click-through rate of each window. Of all windows: {totals}",
            )
        )
    speeds = [table["examples_per_second"].to_numpy() for table in windows]
    return [
        *figures,
        page.Figure(
            "Training throughput",
            [_rate_panel(windows, speeds, "examples/s")],
            f"Examples per second over time. {_courses(runs, 'examples_per_second', 0)}",
            note="examples/s",
        ),
    ]


def _rates_of_pass(shown: ShownRun) -> tuple[float, float]:
    weight, clicks, predicted = shown.run.metrics.calibration.sums.sum(axis=0)
    return float(ratio(clicks, weight)), float(ratio(predicted, weight))


def traffic_unit(windows: Sequence[pd.DataFrame]) -> str | None:
    """Shortest stretch of event time of which the median window has at least one example; None without times."""
    if not uses_event_time(windows):
        return None
    rates = np.concatenate([_traffic(table) for table in windows])
    rates = rates[np.isfinite(rates)]
    if not len(rates):
        return None
    return next((unit for unit, seconds in _RATE_UNITS.items() if np.median(rates) * seconds >= 1), "day")


def _traffic(table: pd.DataFrame) -> FloatArray:
    """Examples per second of event time, [W]; NaN for a window that has no duration."""
    seconds = (table["window_end"].to_numpy() - table["window_begin"].to_numpy()) / 1e6
    return ratio(table["window_examples"].to_numpy(), np.where(seconds > 0, seconds, 0.0))


def _rate_panel(windows: Sequence[pd.DataFrame], rates: Sequence[FloatArray], unit: str) -> page.Panel:
    along = Pass(windows)
    series = [
        page.Series(
            along.x(index), rate, index, marked=True, heads=along.heads(index),
            texts=[f"{display.amount(value)} {unit}" for value in np.round(rate, 1)],
        )
        for index, rate in enumerate(rates)
    ]  # fmt: skip
    return along.panel(series, page.Axis(unit, "thousands", bottom=0.0, frame=np.concatenate(rates)))


def _click_rates(timelines: Sequence[tuple[int, Timeline]]) -> page.Panel:
    """Observed click-through rate, with its interval, and the mean prediction of each run."""
    along = Pass([timeline for _, timeline in timelines])
    same = all(timeline.matches(timelines[0][1]) for _, timeline in timelines)
    series: list[page.Series] = []
    framed: list[FloatArray] = []
    for place, (index, timeline) in enumerate(timelines):
        x, observed = along.x(place), timeline.estimate("click_rate")
        low, high = observed.interval()
        if place == 0 or not same:
            label = "" if place else "observed"
            run = None if same else index
            series.append(
                page.Series(
                    x,
                    observed.point,
                    run,
                    "line",
                    low,
                    high,
                    color=page.OTHER,
                    band=0.2,
                    width=1.6,
                    label=label,
                )
            )
            framed += [observed.point, (observed.point + low) / 2, (observed.point + high) / 2]
        predicted = timeline.estimate("predicted_click_rate").point
        framed.append(predicted)
        texts = [
            f"predicted {display.fixed(one, 4)}, observed {text}"
            for one, text in zip(predicted, margins(observed.point, low, high), strict=True)
        ]
        series.append(page.Series(x, predicted, index, marked=True, heads=along.heads(place), texts=texts))
    return along.panel(series, page.Axis("click-through rate", frame=np.concatenate(framed)), "upper right")


def loss_figures(runs: Sequence[ShownRun]) -> list[page.Figure]:
    """What each term contributed to the loss of the steps in each window, for each run whose loss has several."""
    figures = []
    for shown in runs:
        extra = [name for name in map(str, shown.windows) if name.startswith(ADDED_TERMS)]
        titles = LOSS_TERMS | {name: name.split("_", 2)[2] for name in extra}
        terms = {name: title for name, title in titles.items() if shown.windows[name].notna().any()}
        if len(terms) > 1:
            ends = ", ".join(
                f"{title} {display.fixed(shown.windows[name].dropna().iloc[-1], 4)}"
                for name, title in terms.items()
            )
            along = Pass([shown.windows])
            lines = [
                replace(
                    line_of(shown, along, place, shown.windows[name].to_numpy(), _four, title), label=title
                )
                for place, (name, title) in enumerate(terms.items())
            ]
            figures.append(
                page.Figure(
                    "terms of the loss",
                    [along.panel(lines, page.Axis("loss, nats per example"))],
                    f"Terms of the loss of {shown.name} over time. In the last window: {ends}.",
                    shown.mark,
                )
            )
    return figures


def _four(value: float) -> str:
    return display.fixed(value, 4)


def line_of(
    shown: ShownRun, along: Pass, look: int, y: npt.NDArray[Any], text: Callable[[float], str], title: str
) -> page.Series:
    """Line of one thing among several of a run, with its title before the text of each value."""
    texts = [f"{title} {text(value)}" for value in y.tolist()]
    dashes = page.dashes_of(look)
    return page.Series(
        along.x(), y, look=look, dashes=dashes, heads=along.heads(), texts=texts, hover=shown.index
    )
