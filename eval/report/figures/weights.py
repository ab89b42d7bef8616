"""Spectra of weight matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ctr.eval import display, weight_spectra
from ctr.eval.arrays import FloatArray
from ctr.eval.report.figures.figure import ReportFigure, figure_of, line_look, percent_ticks, style_color
from ctr.eval.report.plot_style import QUIET, STYLE, to_svg
from ctr.eval.report.shown_run import ShownRun

_ORDERS = (2, 1)


@dataclass(frozen=True)
class WeightRow:
    """Spectrum of a weight as numbers and text."""

    spectrum: weight_spectra.WeightSpectrum
    color: str  # of its line in the plot; empty without one
    dashes: str
    now: float | None  # of a product, its multiply-adds as a share of those of the full matrix
    kept: list[tuple[int, float]]  # by norm: the rank that keeps 90%, its share of multiply-adds
    top_half: list[str]  # by norm: the share in the larger half


@dataclass(frozen=True)
class WeightTable:
    """Weight matrices of a run."""

    run: ShownRun
    rows: list[WeightRow] | None  # None when the run did not write their spectra
    figure: ReportFigure | None  # None when there is none to draw


def weight_tables(runs: Sequence[ShownRun]) -> list[WeightTable]:
    """Spectra of each run's weight matrices."""
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
            "Largest singular values",
            cumulative_spectra([spectrum.singular_values for spectrum in shown.weights]),
            f"Cumulative singular values of the weights of {shown.name}. {words}",
            note="their share in the Frobenius norm and in the sum",
        )
    return WeightTable(shown, rows, figure)


def _weight_row(index: int, spectrum: weight_spectra.WeightSpectrum) -> WeightRow:
    values = spectrum.singular_values
    now = None if spectrum.inner_rank is None else spectrum.multiply_adds / math.prod(spectrum.shape)
    if values is None:
        return WeightRow(spectrum, "", "", now, [], [])
    color, dashes = line_look(index) if values.any() else ("", ())
    color = style_color(color) if color else ""
    ranks = [weight_spectra.rank_keeping(values, order) for order in _ORDERS]
    return WeightRow(
        spectrum=spectrum,
        color=color,
        dashes=" ".join(f"{dash:g}" for dash in dashes),
        now=now,
        kept=[(rank, spectrum.through_bottleneck(rank) / spectrum.multiply_adds) for rank in ranks],
        top_half=[display.percent(weight_spectra.top_half_share(values, order)) for order in _ORDERS],
    )


def cumulative_spectra(spectra: Sequence[FloatArray | None]) -> str:
    """Shares of the norm and of the sum of singular values in the largest, by the share that these are.

    ``spectra``: for each weight its singular values, descending; without any, or with none above 0, it has
    no line.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, order, label in zip(panels, (2, 1), ("Frobenius norm", "sum"), strict=True):
            axes.axhline(weight_spectra.KEPT_SHARE, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
            axes.axvline(0.5, color=QUIET, linestyle=(0, (4, 3)), linewidth=1)
            for index, values in enumerate(spectra):
                if values is not None and values.any():
                    x = np.linspace(0, 1, len(values) + 1)
                    color, dashes = line_look(index)
                    style: Any = (0, dashes) if dashes else "solid"
                    axes.plot(
                        x,
                        weight_spectra.cumulative_shares(values, order),
                        color=color,
                        linestyle=style,
                        linewidth=1.4,
                    )
            axes.set_xlim(0, 1)
            axes.set_ylim(0, 1.02)
            axes.xaxis.set_major_formatter(percent_ticks())
            axes.set_xlabel("rank, as a share of the full one")
            axes.set_ylabel(f"share of the {label}")
        panels[0].yaxis.set_major_formatter(percent_ticks())
        return to_svg(figure)
