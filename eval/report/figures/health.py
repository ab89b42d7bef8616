"""Ids of a log's features: new and missing ones, and the rows that growing ids have of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from matplotlib.axes import Axes

from ctr.eval import display
from ctr.eval.arrays import ratio
from ctr.eval.report.data_health import FeatureHealth, Slots
from ctr.eval.report.figures.along_pass import Lines, lines_over_time, places_of
from ctr.eval.report.figures.figure import ReportFigure, figure_of, line_look, percent_ticks, style_color
from ctr.eval.report.plot_style import QUIET, thousands
from ctr.eval.report.shown_run import ShownRun
from ctr.eval.timeline import Timeline


@dataclass(frozen=True)
class HealthTable:
    """Ids of a log's features, for the runs that found the same."""

    runs: list[ShownRun]
    features: list[tuple[FeatureHealth, str, str]]  # with color and dashes of their lines in the plots
    figures: list[ReportFigure]

    @property
    def grows(self) -> bool:
        return any(feature.slots is not None for feature, _, _ in self.features)


def health_tables(runs: Sequence[ShownRun]) -> list[HealthTable]:
    """Health of the features' ids; runs that found the same share a table."""
    tables: list[HealthTable] = []
    for shown in runs:
        same = next((table for table in tables if table.runs[0].health == shown.health), None)
        if same is not None:
            same.runs.append(shown)
            continue
        features = []
        for place, feature in enumerate(shown.health.features):
            color, dashes = line_look(place)
            features.append((feature, style_color(color), " ".join(f"{dash:g}" for dash in dashes)))
        tables.append(HealthTable([shown], features, _health_figures(shown)))
    return tables


def _health_figures(shown: ShownRun) -> list[ReportFigure]:
    timeline, health = shown.timeline, shown.health
    if not len(timeline):
        return []
    names = [feature.name for feature in health.features if feature.name in timeline.ids]
    figures = []
    for kind, title, is_shown in (
        ("new", "Values with a new id", bool(names)),
        ("missing", "Rows without a value", any(feature.missing for feature in health.features)),
    ):
        if is_shown:
            shares = ((feature.name, getattr(feature, f"{kind}_share")) for feature in health.features)
            words = " ".join(f"{name}: {display.percent(share)}." for name, share in shares)
            alt = f"Share of {title[0].lower()}{title[1:]} over time, for each feature. Overall: {words}"
            figures.append(figure_of(title, id_shares(timeline, names, kind, shown.index), alt))
    return [*figures, *_slot_figures(shown)]


def _slot_figures(shown: ShownRun) -> list[ReportFigure]:
    # In the colors of the table.
    features = {
        feature.name: (place, feature.slots)
        for place, feature in enumerate(shown.health.features)
        if feature.slots is not None and feature.name in shown.timeline.slots
    }
    if not features:
        return []

    def each(describe: Callable[[Slots], str]) -> str:
        return " ".join(f"{name}: {describe(slots)}." for name, (_, slots) in features.items())

    evicts, shares = (
        any(getattr(slots, key) for _, slots in features.values()) for key in ("evicted", "shared")
    )
    kinds = {
        "occupied": (
            "Share of the capacity that ids occupy",
            each(lambda s: f"{s.occupancy:,} of {s.capacity:,}"),
        ),
        "moved": (
            "Ids admitted, and evicted (below 0)" if evicts else "Ids admitted in each window",
            each(lambda s: f"{s.admitted:,} admitted, {s.evicted:,} evicted"),
        ),
    }
    # The table says so where none shares a row.
    if shares:
        kinds["shared"] = ("Values whose id shares a row", each(lambda s: display.percent(s.shared_share)))
    looks = {name: place for name, (place, _) in features.items()}
    return [
        figure_of(
            title,
            id_slots(shown.timeline, looks, kind, shown.index),
            f"{title}, over time, for each feature whose ids grow. At the end, or overall: {words}",
        )
        for kind, (title, words) in kinds.items()
    ]


def id_shares(timeline: Timeline, features: Sequence[str], kind: str, run: int) -> str:
    """Plots over time the share of values with a new id (`kind` "new"), or of rows without a value.

    Lines look as `line_look` says, in the order of `features`.
    """
    lines = []
    for place, name in enumerate(features):
        share = timeline.new_share(name) if kind == "new" else timeline.missing_share(name)
        lines.append(Lines(place, [share], [f"{name} {display.percent(one)}" for one in share]))
    label = "values with a new id" if kind == "new" else "rows without a value"
    return lines_over_time(places_of(timeline), lines, run, lambda axes: _dress_shares(axes, label))


def id_slots(timeline: Timeline, looks: Mapping[str, int], kind: str, run: int) -> str:
    """Plots over time, of each feature whose ids grow, how its slots are used.

    ``looks``: by feature the number of its line, as in `line_look`. ``kind``: ``occupied``, the share of the
    capacity; ``moved``, ids admitted, and below 0 those evicted; ``shared``, the share of values on shared
    rows.
    """
    lines = []
    for name, look in looks.items():
        counts = timeline.slot_series(name)
        if kind == "moved":
            courses: list[npt.NDArray[Any]] = [counts["admitted"]]
            if counts["evicted"].any():
                courses.append(-counts["evicted"])
            texts = [
                f"{name} {one:,} admitted, {other:,} evicted"
                for one, other in zip(counts["admitted"], counts["evicted"], strict=True)
            ]
        else:
            over = ("occupancy", "capacity") if kind == "occupied" else ("shared", "occurrences")
            courses = [ratio(*(counts[one] for one in over))]
            texts = [f"{name} {display.percent(float(one))}" for one in courses[0]]
        lines.append(Lines(look, courses, texts))

    def dress(axes: Axes) -> None:
        if kind == "moved":
            axes.axhline(0, color=QUIET, linewidth=0.8)
            axes.yaxis.set_major_formatter(thousands())
            axes.set_ylabel("ids")
        else:
            _dress_shares(axes, "occupied" if kind == "occupied" else "values on shared rows")

    return lines_over_time(places_of(timeline), lines, run, dress)


def _dress_shares(axes: Axes, label: str) -> None:
    axes.yaxis.set_major_formatter(percent_ticks())
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
