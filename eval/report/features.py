"""Features of a run's log: the health of their ids, and metrics by their values."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from ctr.eval import display
from ctr.eval.arrays import ratio
from ctr.eval.display import Number
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.report import page
from ctr.eval.report.data_health import FeatureHealth, Slots, id_name
from ctr.eval.report.groups import by_group
from ctr.eval.report.over_time import Pass, line_of
from ctr.eval.report.shown_run import ShownRun

_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_QUERY_SIZE = "query_size"
"""The feature by which runs that have it are always sliced."""
_HEALTH = (
    "Missing: rows without a value. Ids used: distinct ids that occurred, of those that the feature has. Values per "
    "id: the number of distinct values, estimated from the unused ids, over the ids used; values that share an id "
    "(hash collisions) share its embedding; more buckets separate them, and without buckets each value has an id of "
    "its own. New: values whose id no earlier batch had. Most frequent: shares of all values, from every eighth batch."
)
_GROWING = (
    " Features without buckets: ids used are those that have a row of their own now, of the capacity; values that "
    "share are occurrences that were trained on a shared row, because their id was not admitted or found no room; new "
    "are ids that were admitted, over all values; most frequent ids are those of all batches."
)


def health_section(runs: Sequence[ShownRun]) -> page.Section:
    """Health of the features' ids; runs that found the same share a table."""
    alike: list[list[ShownRun]] = []
    for shown in runs:
        same = next((group for group in alike if group[0].health == shown.health), None)
        if same is None:
            alike.append([shown])
        else:
            same.append(shown)
    grows = any(feature.slots is not None for group in alike for feature in group[0].health.features)
    blocks: list[page.Block] = [page.Words(_HEALTH + (_GROWING if grows else ""), "quiet")]
    for group in alike:
        if len(alike) > 1 or len(group) < len(runs):
            blocks.append(page.heading(tuple(part for shown in group for part in (shown.mark, " "))))
        blocks += _health(group[0])
    return page.Section("data", "Data", "Data health", blocks)


def _health(shown: ShownRun) -> list[page.Block]:
    features = shown.health.features
    growing = [(feature.name, feature.slots) for feature in features if feature.slots is not None]
    heads = ("feature", "kind", "missing", "ids used", "values per id", "values that share an id", "new")
    return [
        page.Table(
            (*heads, page.Column("most frequent", words=True)),
            [_health_row(place, feature) for place, feature in enumerate(features)],
        ),
        *(
            page.Words(
                (
                    page.code(name),
                    f" is full: {display.amount(slots.refused)} occurrences ({display.percent(slots.refused_share)}) "
                    "were of ids for which no row was left. A larger ",
                    *(
                        page.code("ids.capacity"),
                        " has room for them; ",
                        page.code("ids.eviction"),
                        " lets old ids go.",
                    ),
                ),
                "wrong",
            )
            for name, slots in growing
            if slots.refused
        ),
        *(
            page.Words(
                (
                    page.code(name),
                    f": {display.amount(slots.evicted)} of {display.amount(slots.admitted)} ids that were admitted "
                    "were evicted again.",
                ),
                "quiet",
            )
            for name, slots in growing
            if slots.evicted and not slots.refused
        ),
        page.Figures(_share_figures(shown) + _slot_figures(shown)),
    ]


def _health_row(place: int, feature: FeatureHealth) -> page.Row:
    slots, buckets = feature.slots, feature.buckets or 0
    used, shared = display.amount(feature.distinct_ids), display.percent(feature.shared_share)
    ids: list[page.Cell | page.Text]
    if slots is not None:
        of = f"of {display.amount(slots.capacity)}, {display.amount(slots.evicted)} evicted"
        shared = display.percent(slots.shared_share)
        ids = [page.Cell(used, (of,)), page.Cell("1", ("ids grow",)), shared]
    else:
        ids = [page.Cell(used, (f"of {display.amount(buckets - 1)}",))]
        if not feature.hashed:
            ids += [page.Cell("1", ("not hashed",)), display.ABSENT]
        elif feature.distinct_ids >= buckets - 1:
            ids += [page.Cell("many", ("every id is used",)), "nearly all"]
        else:
            each = feature.distinct_values / feature.distinct_ids if feature.distinct_ids else 0
            about = f"about {display.amount(round(feature.distinct_values))} values"
            ids += [page.Cell(display.fixed(each, 2), (about,)), shared]
    top = tuple(f"{one.name} {display.percent(one.share)}" for one in feature.top[:3])
    return [
        page.Cell(page.code(feature.name), look=place),
        feature.kind,
        display.percent(feature.missing_share),
        *ids,
        display.percent(feature.new_share),
        page.Cell("", top),
    ]


def _share_figures(shown: ShownRun) -> list[page.Figure]:
    timeline, features = shown.timeline, shown.health.features
    names = [feature.name for feature in features if feature.name in timeline.ids]
    along, figures = Pass([timeline]), []
    titles = {"new_share": "Values with a new id"} if names else {}
    if any(feature.missing for feature in features):
        titles["missing_share"] = "Rows without a value"
    for share, title in titles.items() if len(timeline) else ():
        overall = " ".join(f"{one.name}: {display.percent(getattr(one, share))}." for one in features)
        what = f"{title[0].lower()}{title[1:]}"
        lines = [
            line_of(shown, along, place, getattr(timeline, share)(name), display.percent, name)
            for place, name in enumerate(names)
        ]
        alt = f"Share of {what} over time, for each feature. Overall: {overall}"
        figures.append(page.Figure(title, [along.panel(lines, page.Axis(what, "percent", bottom=0.0))], alt))
    return figures


def _slot_figures(shown: ShownRun) -> list[page.Figure]:
    """Returns how the rows of each feature whose ids grow are used; in the colors of the table."""
    features = {
        feature.name: (place, feature.slots)
        for place, feature in enumerate(shown.health.features)
        if feature.slots is not None and feature.name in shown.timeline.slots
    }
    if not len(shown.timeline) or not features:
        return []
    along = Pass([shown.timeline])
    series = {name: shown.timeline.slot_series(name) for name in features}

    def shares(over: str, under: str) -> list[page.Series]:
        courses = {name: ratio(counts[over], counts[under]) for name, counts in series.items()}
        return [
            line_of(shown, along, features[name][0], course, display.percent, name)
            for name, course in courses.items()
        ]

    def figure(
        title: str, lines: Sequence[page.Series], y: page.Axis, describe: Callable[[Slots], str]
    ) -> page.Figure:
        words = " ".join(f"{name}: {describe(slots)}." for name, (_, slots) in features.items())
        about = "over time, for each feature whose ids grow. At the end, or overall:"
        return page.Figure(title, [along.panel(lines, y)], f"{title}, {about} {words}")

    moved: list[page.Series] = []
    for name, (place, _) in features.items():
        admitted, evicted = series[name]["admitted"], series[name]["evicted"]
        pairs = zip(admitted, evicted, strict=True)
        texts = [f"{name} {one:,} admitted, {other:,} evicted" for one, other in pairs]
        line = line_of(shown, along, place, admitted, str, name)
        moved.append(replace(line, texts=texts))
        if evicted.any():
            moved.append(replace(line, y=-evicted, texts=None))
    evicts = any(slots.evicted for _, slots in features.values())
    figures = [
        figure(
            "Share of the capacity that ids occupy",
            shares("occupancy", "capacity"),
            page.Axis("occupied", "percent", bottom=0.0),
            lambda slots: f"{slots.occupancy:,} of {slots.capacity:,}",
        ),
        figure(
            "Ids admitted, and evicted (below 0)" if evicts else "Ids admitted in each window",
            moved,
            page.Axis("ids", "thousands", level=0.0),
            lambda slots: f"{slots.admitted:,} admitted, {slots.evicted:,} evicted",
        ),
    ]
    # The table says so where none shares a row.
    if any(slots.shared for _, slots in features.values()):
        figures.append(
            figure(
                "Values whose id shares a row",
                shares("shared", "occurrences"),
                page.Axis("values on shared rows", "percent", bottom=0.0),
                lambda slots: display.percent(slots.shared_share),
            )
        )
    return figures


def slices_section(runs: Sequence[ShownRun]) -> page.Section | None:
    """Metrics by the values of each feature that a run was sliced by; None without any."""
    features = dict.fromkeys(name for shown in runs for name in shown.run.metrics.slices)
    if not features:
        return None
    about: page.Text = (
        "Metrics by value, of the values with the most weight. A hashed feature has only the numbers of its ids: a log "
        "does not keep the values. AUC is from bins of 1/16 logit and has no interval."
    )
    if any(shown.has_default_slices for shown in runs):
        these = " are configured: these are the features whose values differ most in calibration"
        counted = (", beside ", page.code(_QUERY_SIZE)) if _QUERY_SIZE in features else ()
        about = (about, " No ", page.code("metrics.slices"), these, *counted, ".")
    blocks: list[page.Block] = [page.Words(about, "quiet")]
    for feature in features:
        blocks += [page.heading("By ", page.code(feature)), _slices(runs, feature)]
    return page.Section("slices", "Slices", "Slices", blocks)


def _slices(runs: Sequence[ShownRun], feature: str) -> page.Figures:
    states = [shown.run.metrics.slices.get(feature) for shown in runs]
    tables = [None if state is None else state.result().set_index("id") for state in states]
    first = next(table for table in tables if table is not None)
    names, heaviest = _named(runs, feature, first)
    records = [
        {} if table is None else table.loc[table.index.isin(heaviest.index)].to_dict("index")
        for table in tables
    ]
    rows: list[list[page.Cell | page.Text]] = []
    for number, (name, one) in enumerate(zip(names, heaviest.index, strict=True), 1):
        cells = [_slice_cells(found[one]) if one in found else (display.ABSENT,) * 3 for found in records]
        places = zip(*cells, strict=True)
        rows.append(
            [
                str(number),
                name,
                display.amount(heaviest["weight"].loc[one]),
                display.fixed(heaviest["mean_label"].loc[one], 4),
                *(
                    tuple(
                        page.Part(text, "line", shown.mark) for text, shown in zip(texts, runs, strict=True)
                    )
                    if len(runs) > 1
                    else texts[0]
                    for texts in places
                ),
            ]
        )
    count = max(len(table) for table in tables if table is not None)
    heads = ("weight", "observed CTR", "predicted / actual clicks", "logloss", "AUC")
    columns = ("calibration_ratio", "calibration_ratio_low", "calibration_ratio_high")
    aligned = [(first.iloc[:0] if table is None else table).reindex(heaviest.index) for table in tables]
    figure = page.Figure(
        "Predicted / actual clicks",
        [
            by_group(
                aligned,
                columns,
                [page.short(name) for name in names],
                ("value", "predicted / actual clicks"),
                1.0,
            )
        ],
        f"Predicted over actual clicks for the most frequent values of {feature}; the table has the numbers.",
        size=(4.9, 3.2),
        near=True,
    )
    some = f"{len(rows)} of {display.amount(count)} values, those with the most weight"
    details = page.Details(
        f"All {count} values" if len(rows) == count else some,
        [page.Table(("row", page.Column("value", words=True), *heads), rows)],
        open=len(rows) <= SLICES_SHOWN,
    )
    return page.Figures([figure], beside=details, share=1)


def _named(runs: Sequence[ShownRun], feature: str, first: pd.DataFrame) -> tuple[list[str], pd.DataFrame]:
    """Names of the slices with the most weight, and their rows."""
    # Stable: of equal weight the smaller id.
    heaviest = first.sort_values("weight", ascending=False, kind="stable").head(SLICES_SHOWN)
    known = [shown.health for shown in runs]
    values = next((found for one in known if (found := one.slice_values.get(feature))), {})
    health = next((own for one in known for own in one.features if own.name == feature), None)
    is_hashed = health is not None and health.hashed
    if values and all(values.get(one) is not None for one in heaviest.index):
        # What has an order of its own, numbers or a vocabulary, keeps it.
        if not is_hashed:
            heaviest = heaviest.sort_index()
        elif all(_NUMBER.fullmatch(str(values[one])) for one in heaviest.index):
            heaviest = heaviest.loc[sorted(heaviest.index, key=lambda one: float(str(values[one])))]
    grows = health is not None and health.buckets is None
    return [id_name(values.get(one), one, grows) for one in heaviest.index.tolist()], heaviest


def _slice_cells(row: Mapping[Hashable, float]) -> tuple[str, str, str]:
    """Predicted over actual clicks, logloss and AUC of a slice in a run."""
    clicks, loss = (
        Number(row[name], row[f"{name}_low"], row[f"{name}_high"])
        for name in ("calibration_ratio", "logloss")
    )
    return clicks.margin(), loss.margin(), display.fixed(row["auc"], 3)
