"""Features of a run's log: shares of missing and outlying values, and metrics by their values."""

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from ctr.eval import display
from ctr.eval.display import Number
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.report import page
from ctr.eval.report.groups import by_group
from ctr.eval.report.shown_run import ShownRun

_QUERY_SIZE = "query_size"
"""The feature by which runs that have it are always sliced."""
_SHARES = (
    "Missing: rows without a value. Out of range: numbers that are more than 1,000 deviations from the others, and no "
    "part of their mean and deviation."
)


def shares_section(runs: Sequence[ShownRun]) -> page.Section:
    """Shares of missing and of outlying values by feature; runs that found the same share a table."""
    alike: list[list[ShownRun]] = []
    for shown in runs:
        same = next((group for group in alike if group[0].features == shown.features), None)
        if same is None:
            alike.append([shown])
        else:
            same.append(shown)
    blocks: list[page.Block] = [page.Words(_SHARES, "quiet")]
    for group in alike:
        if len(alike) > 1:
            blocks.append(page.heading(tuple(part for shown in group for part in (shown.mark, " "))))
        rows: list[page.Row] = [
            [
                page.Cell(page.code(feature.name), look=index),
                feature.kind,
                *(
                    display.ABSENT if share is None else display.percent(share)
                    for share in (feature.missing, feature.out_of_range)
                ),
            ]
            for index, feature in enumerate(group[0].features)
        ]
        blocks.append(page.Table(("feature", "kind", "missing", "out of range"), rows))
    return page.Section("data", "Data", "Data", blocks)


def slices_section(runs: Sequence[ShownRun]) -> page.Section | None:
    """Metrics by the values of each feature that a run was sliced by; None without any."""
    features = dict.fromkeys(name for shown in runs for name in shown.run.metrics.slices)
    if not features:
        return None
    about: page.Text = (
        "Metrics by value, of the values with the most weight. Where a log keeps no names of a feature's values, they "
        "have the numbers of their ids. AUC is from bins of 1/16 logit and has no interval."
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
    names = next((found for shown in runs if (found := shown.slice_names.get(feature))), {})
    if all(one in names for one in heaviest.index):
        heaviest = heaviest.loc[[one for one in names if one in heaviest.index]]
    return [names.get(one, f"id {one}") for one in heaviest.index.tolist()], heaviest


def _slice_cells(row: Mapping[Hashable, float]) -> tuple[str, str, str]:
    """Predicted over actual clicks, logloss and AUC of a slice in a run."""
    clicks, loss = (
        Number(row[name], row[f"{name}_low"], row[f"{name}_high"])
        for name in ("calibration_ratio", "logloss")
    )
    return clicks.margin(), loss.margin(), display.fixed(row["auc"], 3)
