"""Importance of features: by how much the logloss grows without each of them."""

from collections.abc import Sequence

import numpy as np

from ctr.eval import display
from ctr.eval.importance import FeatureImportance, Importance
from ctr.eval.report import page
from ctr.eval.report.over_time import margins
from ctr.eval.report.shown_run import ShownRun

MOST_DRAWN = 30
_ABOUT = (
    "By how much the logloss of a row grows when the model does not know a feature's value, without learning anew, on "
    "rows of the second half of the log that it had not learned from. It says what this model uses, not what causes "
    "clicks; of features that carry the same information each looks dispensable, because the others stand in for it."
)
_SHUFFLED = (
    " Shuffled: a feature with a fixed number of ids has no row for unknown values, so its values are exchanged "
    "between neighboring rows; wrong values cost more than missing ones, and one that hardly changes within some "
    "thousand rows costs nothing."
)


def importance_section(runs: Sequence[ShownRun]) -> page.Section | None:
    """Features by their importance in the first run that measured it; None where none did."""
    found = [(shown, one) for shown in runs if (one := shown.importance) is not None and one.features]
    if not found:
        return None
    names = list(dict.fromkeys(feature.name for _, one in found for feature in one.features))
    of_runs = [(shown, {feature.name: feature for feature in one.features}) for shown, one in found]
    is_shuffled = any(feature.is_shuffled for _, one in found for feature in one.features)
    drawn, rest = names[:MOST_DRAWN], names[MOST_DRAWN:]
    blocks: list[page.Block] = [page.Words(_ABOUT + (_SHUFFLED if is_shuffled else ""), "quiet")]
    blocks += [page.Words(_measured(shown, one, len(runs) > 1), "quiet", shown.index) for shown, one in found]
    blocks += [
        page.Words((shown.mark, ": not measured (", page.code("metrics.importance_rows"), ")."), "quiet")
        for shown in runs
        if all(shown is not other for other, _ in found)
    ]
    blocks.append(page.Figures([_figure(of_runs, drawn)], beside=_table(of_runs, drawn), share=1))
    if rest:
        blocks.append(page.Details(f"{len(rest)} more features", [_table(of_runs, rest)]))
    return page.Section("importance", "Features", "Feature importance", blocks)


def _measured(shown: ShownRun, one: Importance, is_named: bool) -> page.Text:
    words = f"{display.amount(one.rows)} rows at {one.positions} positions, with 95% intervals over queries."
    return (shown.mark, f": {words}") if is_named else words


_OfRuns = Sequence[tuple[ShownRun, dict[str, FeatureImportance]]]


def _table(of_runs: _OfRuns, names: Sequence[str]) -> page.Table:
    rows: list[page.Row] = []
    for name in names:
        known = [(shown, features.get(name)) for shown, features in of_runs]
        ways = ("shuffled",) if any(one is not None and one.is_shuffled for _, one in known) else ()
        texts = zip(*(_cells(one) for _, one in known), strict=True)
        rows.append(
            [
                page.Cell(page.code(name), ways),
                *(
                    tuple(
                        page.Part(one, "line", shown.mark)
                        for one, (shown, _) in zip(column, known, strict=True)
                    )
                    if len(known) > 1
                    else column[0]
                    for column in texts
                ),
            ]
        )
    return page.Table(("feature", "increase of logloss", "of the logloss", "differs from 0"), rows)


def _cells(one: FeatureImportance | None) -> tuple[str, str, str]:
    """Increase, share and verdict of a feature in a run."""
    if one is None:
        return (display.ABSENT,) * 3
    share = one.share.times(100)
    return one.increase.margin(signed=True), f"{share.text(signed=True)}%", one.verdict


def _figure(of_runs: _OfRuns, names: Sequence[str]) -> page.Figure:
    series: list[page.Series] = []
    for place, (shown, features) in enumerate(of_runs):
        known = [(at, features[name]) for at, name in enumerate(names) if name in features]
        x, low, high = (
            np.array([getattr(one.increase, end) for _, one in known], np.float64)
            for end in ("value", "low", "high")
        )
        beside = (place - (len(of_runs) - 1) / 2) * min(0.7 / len(of_runs), 0.25)
        series.append(
            page.Series(
                x, np.array([at + beside for at, _ in known]), shown.index, "points", x_span=(low, high),
                heads=[one.name for _, one in known], texts=margins(x, low, high, signed=True),
            )
        )  # fmt: skip
    first = next(iter(of_runs[0][1].values()))
    return page.Figure(
        "Increase of logloss without a feature",
        [
            page.Panel(
                series,
                page.Axis("increase of logloss", level=0.0),
                page.Axis(
                    places=[(float(at), page.short(name, 20)) for at, name in enumerate(names)],
                    limits=(len(names) - 0.4, -0.6),
                ),
            )
        ],
        f"Increase of the logloss without each feature, with 95% intervals, the largest first: {first.name} "
        f"{first.increase.margin(signed=True)}; the table has all of them.",
        size=(3.6, 0.8 + 0.27 * len(names)),
        near=True,
    )
