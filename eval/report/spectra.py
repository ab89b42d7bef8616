"""Spectra: of Shampoo's statistics over the pass (PSO fig. 6 and 7), and of weight matrices (FF 3.1)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ctr.eval import display, weight_spectra
from ctr.eval.arrays import FloatArray
from ctr.eval.report import page
from ctr.eval.report.over_time import Pass, line_of
from ctr.eval.report.shown_run import ShownRun

MOST_WEIGHTS = len(page.COLORS)
"""As many lines as have colors of their own: dashes tell the smallest values from the largest."""
_ORDERS = {2: "Frobenius norm", 1: "sum"}


def statistics_blocks(runs: Sequence[ShownRun]) -> list[page.Block]:
    """Spectra of the runs that have any, of the weights whose statistics have the largest condition at the end."""
    blocks: list[page.Block] = []
    for shown in runs:
        known = {name: course[_is_known(course)] for name, course in shown.spectra.items()}
        ends = {name: course[-1] for name, course in known.items() if len(course)}
        if ends:
            blocks += _statistics(shown, ends)
    return blocks


def _is_known(course: FloatArray) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = np.isfinite(course).all(axis=1) & (course[:, 1] > 0)
    return known


def _statistics(shown: ShownRun, ends: dict[str, FloatArray]) -> list[page.Block]:
    chosen = sorted(ends, key=lambda name: -ends[name][2])[:MOST_WEIGHTS]
    values = {name: [f"{value:.3g}" for value in ends[name]] for name in chosen}
    fewer = f", of the {len(chosen)} of {len(ends)} weights with the largest condition numbers"
    table = page.Table(
        ("weight", "smallest", "largest", "condition", "after damping"),
        [
            [page.Cell(page.code(name), look=place), *cells]
            for place, (name, cells) in enumerate(values.items())
        ],
        f"At the end of the pass{fewer if len(chosen) < len(ends) else ''}",
    )
    extremes = " ".join(f"{name}: {low} to {high}." for name, (low, high, _, _) in values.items())
    conditions = " ".join(f"{name}: {before}, {after}." for name, (_, _, before, after) in values.items())
    figures = [
        page.Figure(
            "Singular values of the statistics",
            [_courses(shown, chosen, {1: "largest", 0: "smallest"}, "singular value")],
            f"Smallest (dashed) and largest (solid) singular values of Shampoo's statistics. At the end: {extremes}",
            shown.mark,
            note="solid: largest; dashed: smallest",
        ),
        page.Figure(
            "Condition numbers of the statistics",
            [_courses(shown, chosen, {2: "condition", 3: "after damping"}, "largest / smallest")],
            "Condition numbers of Shampoo's statistics before (solid) and after damping (dashed). "
            f"At the end: {conditions}",
            shown.mark,
            note="solid: before damping; dashed: after it",
        ),
    ]
    return [
        page.Figures(figures, run=shown.index),
        page.Words(_damping(np.array([*ends.values()])), run=shown.index),
        table,
    ]


def _damping(ends: FloatArray) -> str:
    """Says what damping does to the condition numbers; ``ends``: the spectrum of each weight at the end, [N, 4]."""
    before, after = ends[:, 2], ends[:, 3]
    return (
        f"At the end, the largest condition number is {before.max():.3g} before damping and {after.max():.3g} after "
        "it. Damping is larger than the smallest singular value where it more than halves the condition number: for "
        f"{np.sum(before > 2 * after)} of {len(ends)} weights."
    )


def _courses(shown: ShownRun, names: Sequence[str], columns: Mapping[int, str], label: str) -> page.Panel:
    """Draws two columns of the spectra of up to `MOST_WEIGHTS` weights; what is not above 0 is not drawn."""
    along = Pass([shown.windows], by_time=False)
    lines = []
    for place, name in enumerate(names):
        course = shown.spectra[name]
        drawn = np.where(np.isfinite(course) & (course > 0), course, np.nan)
        for second, (column, title) in enumerate(columns.items()):
            # Both in the color of the weight, the second dashed.
            look = place + second * len(page.COLORS)
            lines.append(line_of(shown, along, look, drawn[:, column], "{:.3g}".format, f"{name} {title}"))
    return along.panel(lines, page.Axis(label, "log", log=True))


def weights_section(runs: Sequence[ShownRun]) -> page.Section:
    """Spectra of each run's weight matrices."""
    blocks: list[page.Block] = [
        page.Words(
            "Singular values of the weight matrices at the end of training: how much of their Frobenius norm (the root "
            "of the sum of squares) and of their sum is in the larger half of them, and the smallest rank that keeps "
            "90%. A matrix of m × n takes m n multiply-adds per example; a bottleneck of rank k in its place takes "
            "k (m + n). The cost of the bottleneck is given as a multiple of the present cost: below 1× it saves time. "
            "An existing bottleneck appears as its factors u and v and as their product uv.",
            "quiet",
        )
    ]
    for shown in runs:
        blocks.append(page.heading(shown.mark))
        if shown.weights is None:
            blocks.append(page.Words("Unknown: the run has no weight_spectra.json."))
        elif not shown.weights:
            blocks.append(page.Words("The model has no weight matrix with both sides above 1."))
        else:
            blocks += _weights(shown, shown.weights)
    return page.Section("weights", "Weights", "Weights", blocks)


def _weights(shown: ShownRun, weights: Sequence[weight_spectra.WeightSpectrum]) -> list[page.Block]:
    of_each = ("rank for 90% of the {}", "cost at this rank")
    table = page.Table(
        (
            *(
                "weight",
                "shape",
                "full rank",
                "multiply-adds now",
                "top half, of the norm",
                "top half, of the sum",
            ),
            *(head.format(name) for name in ("norm", "sum") for head in of_each),
        ),
        [_weight_row(index, spectrum) for index, spectrum in enumerate(weights)],
    )
    drawn = {
        index: (spectrum, values)
        for index, spectrum in enumerate(weights)
        if (values := spectrum.singular_values) is not None and values.any()
    }
    if not drawn:
        return [table]
    words = " ".join(
        f"{spectrum.name}: 90% of the norm at rank {weight_spectra.rank_keeping(values, 2)} of {spectrum.full_rank}, "
        f"of the sum at {weight_spectra.rank_keeping(values, 1)}."
        for spectrum, values in drawn.values()
    )
    figure = page.Figure(
        "Largest singular values",
        cumulative_spectra({index: values for index, (_, values) in drawn.items()}),
        f"Cumulative singular values of the weights of {shown.name}. {words}",
        note="their share in the Frobenius norm and in the sum",
        size=(9.6, 3.6),
    )
    return [table, page.Figures([figure], wide="wide")]


def _weight_row(index: int, spectrum: weight_spectra.WeightSpectrum) -> list[page.Cell | str]:
    values = spectrum.singular_values
    is_product = spectrum.inner_rank is not None
    now = display.times(spectrum.multiply_adds / math.prod(spectrum.shape))
    look = index if values is not None and values.any() else None
    row: list[page.Cell | str] = [
        page.Cell(page.code(spectrum.name), look=look),
        page.Cell(
            f"{spectrum.shape[0]} × {spectrum.shape[1]}",
            (f"product, inner rank {spectrum.inner_rank}",) if is_product else (),
        ),
        display.amount(spectrum.full_rank),
        page.Cell(display.amount(spectrum.multiply_adds), (f"{now} of m n",) if is_product else ()),
    ]
    if values is None:
        return [*row, page.Cell(spectrum.omitted, span=6)]
    row += [display.percent(weight_spectra.top_half_share(values, order)) for order in _ORDERS]
    for order in _ORDERS:
        rank = weight_spectra.rank_keeping(values, order)
        row += [
            display.amount(rank),
            display.times(spectrum.through_bottleneck(rank) / spectrum.multiply_adds),
        ]
    return row


def cumulative_spectra(spectra: dict[int, FloatArray]) -> list[page.Panel]:
    """Shares of the norm and of the sum of singular values in the largest, by the share that these are.

    ``spectra``: by the look of its line the singular values of a weight, descending, one of them above 0.
    """
    shares = page.Axis("rank, as a share of the full one", "percent", limits=(0, 1), level=0.5)
    return [
        page.Panel(
            [
                page.Series(
                    np.linspace(0, 1, len(values) + 1),
                    weight_spectra.cumulative_shares(values, order),
                    look=look,
                    dashes=page.dashes_of(look),
                )
                for look, values in spectra.items()
            ],
            shares,
            page.Axis(f"share of the {name}", "percent", limits=(0, 1.02), level=weight_spectra.KEPT_SHARE),
        )
        for order, name in _ORDERS.items()
    ]
