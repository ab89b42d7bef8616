"""Metrics by the values of a feature."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ctr.eval import display
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.report.data_health import id_name
from ctr.eval.report.figures.figure import ReportFigure, figure_of
from ctr.eval.report.figures.groups import by_group
from ctr.eval.report.shown_run import ShownRun


@dataclass(frozen=True)
class SliceRow:
    """A slice in the runs."""

    name: str
    weight: str
    click_rate: str
    cells: list[tuple[str, str, str] | None]  # of each run predicted/actual clicks, logloss, AUC


@dataclass(frozen=True)
class SliceTable:
    """Metrics by the values of one feature; ``rows`` are those with the most weight."""

    feature: str
    slices: int
    figure: ReportFigure
    rows: list[SliceRow]


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
    known = [shown.health for shown in runs]
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
            by_group(
                [table.reindex(heaviest.index) for table in aligned],
                columns,
                [_tick(name) for name in names],
                ("value", "predicted / actual clicks"),
                1.0,
            ),
            f"Predicted over actual clicks for the most frequent values of {feature}; the table has the numbers.",
        ),
        rows=rows,
    )


def _tick(name: str, most: int = 12) -> str:
    """Name as it stands at an axis: printable, and cut where it is long; the table has it whole."""
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _slice_cells(row: Mapping[Hashable, float]) -> tuple[str, str, str]:
    ends = row["calibration_ratio_low"], row["calibration_ratio_high"]
    return (
        display.with_margin(row["calibration_ratio"], *ends),
        display.with_margin(row["logloss"], row["logloss_low"], row["logloss_high"]),
        display.fixed(row["auc"], 3),
    )
