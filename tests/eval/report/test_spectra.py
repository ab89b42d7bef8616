"""Spectra of weights and of Shampoo's statistics in a report: which, what is drawn of them, and what is refused."""

import json
import math
import shutil

import numpy as np
import pytest

from ctr.eval.report import run_page
from ctr.eval.report.draw import draw
from ctr.eval.report.page import COLORS, Figure
from ctr.eval.report.shown_run import show_runs
from ctr.eval.report.spectra import MOST_WEIGHTS, cumulative_spectra, statistics_blocks, weights_section
from report_pages import figures_of, rows_of, tables_of, words_of
from run_directories import make_rows, predict, write_run


@pytest.fixture(scope="module")
def rows():
    return make_rows(1, queries=40)


@pytest.fixture(scope="module")
def plain(rows, tmp_path_factory):
    """A run of three windows."""
    return write_run(tmp_path_factory.mktemp("plain") / "run", rows, predict(rows, 1, 1.0))


def made(run, folder, spectra):
    """A copy of a run whose first windows have these entries."""
    shutil.copytree(run, folder)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, one in zip(lines, spectra, strict=False):
        line["shampoo_spectra"] = one
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def entry(smallest, largest, condition):
    return {"smallest": smallest, "largest": largest, "condition": condition}


def test_the_weights_of_the_largest_condition_are_drawn_from_smallest_to_largest(tmp_path, plain):
    weights = [f"deep/{number}/w" for number in range(MOST_WEIGHTS + 2)]
    # The last weight has roots only from the second window on; of the condition the last window counts.
    spectra = [
        {name: entry(1e-6 * 10**window, 10.0**window, 100.0 - place) for place, name in enumerate(weights)}
        for window in range(3)
    ]
    del spectra[0][weights[-1]]
    spectra[2][weights[-1]] = entry(0, 2.5, 4.5e15)
    run = made(plain, tmp_path / "run", spectra)
    # Without values above 0 nothing is shown.
    none = made(plain, tmp_path / "none", [{"w": entry(-1.0, -2.0, 1e9)}] * 3)
    [block] = statistics_blocks(show_runs([plain, run, none]))
    [figure], table = block.figures, block.beside
    assert f"of the {MOST_WEIGHTS} of {MOST_WEIGHTS + 2} weights" in table.caption
    names = [weights[-1], *weights[: MOST_WEIGHTS - 1]]
    assert [str(first) for first, *_ in table.cells] == names
    assert [row[1:] for row in table.texts()[1:3]] == [["0", "2.5", "4.5e+15"], ["0.0001", "100", "100"]]
    assert f"{weights[0]}: 0.0001 to 100, condition 100." in figure.alt
    [panel] = figure.panels
    texts = [[text for text, y in zip(one.texts, one.y, strict=True) if y == y] for one in panel.series]
    # A singular value of 0 has no place on the axis, which is logarithmic.
    assert panel.y.log
    assert texts[:2] == [
        [f"{weights[-1]} largest {value}" for value in ("10", "2.5")],
        [f"{weights[-1]} smallest 1e-05"],
    ]
    assert texts[3] == [f"{weights[0]} smallest {value}" for value in ("1e-06", "1e-05", "0.0001")]
    # The lines of a weight have its color, and the smallest values alone have dashes.
    looks = [(one.look % len(COLORS), bool(one.dashes)) for one in panel.series]
    assert looks == [(place, dashed) for place in range(MOST_WEIGHTS) for dashed in (False, True)]
    assert [row[0].look for row in table.cells] == list(range(MOST_WEIGHTS))


def test_a_long_pass_is_drawn_by_the_last_window_of_each_point(tmp_path, rows):
    # Windows of an example or so are drawn several at a time.
    spectra = [{"w": entry(1.0, 2.0 + number, 8.0)} for number in range(len(rows))]
    run = write_run(tmp_path / "plain", rows, predict(rows, 1, 1.0), windows=39)
    [shown] = show_runs([made(run, tmp_path / "run", spectra)])
    kept = shown.spectra["w"][:, 1] - 2.0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    examples = [json.loads(line)["examples"] for line in lines]
    assert [examples[int(number)] for number in kept] == shown.windows["examples"].tolist()
    assert len(kept) < len(examples)
    words = words_of(run_page(show_runs([run])))
    assert f"39 windows are drawn as {len(kept)} points" in words


SPECTRA = [
    {"name": "deep_0", "shape": [3, 40], "method": "svd", "singular_values": [2.0, 1.0, 0.5]},
    {"name": "low/uv", "shape": [9, 6], "inner_rank": 2, "singular_values": [3.0, 0.1]},
    {"name": "zero", "shape": [2, 5], "singular_values": [0.0, 0.0]},
    {"name": "broken", "shape": [2, 2], "omitted": "4 of its entries are not finite"},
]


def test_the_weights_of_each_run(plain, tmp_path):
    runs = [plain]
    for name, weights in (("spectra", SPECTRA), ("undrawn", SPECTRA[2:]), ("none", [])):
        runs.append(shutil.copytree(runs[0], tmp_path / name))
        (runs[-1] / "weight_spectra.json").write_text(json.dumps({"weights": weights}))
    section = weights_section(show_runs(runs))
    first, second = tables_of(section)
    # Of 2, 1, 1/2: 4, 5, 5.25 and 2, 3, 3.5. A bottleneck of rank 2 takes 2 * 43 of 3 * 40 multiply-adds.
    rows = {name: " ".join(cells) for name, cells in rows_of(first).items()}
    assert rows["deep_0"] == "3 × 40 3 120 97.6% 85.7% 2 0.72× 3 1.07×"
    # The bottleneck that is there takes 2 * 15 of 54.
    assert rows["low/uv"] == "9 × 6 product, inner rank 2 2 30 0.56× of m n 99.9% 96.8% 1 0.50× 1 0.50×"
    assert rows["zero"] == "2 × 5 2 10 – – 0 0.000× 0 0.000×"
    assert rows["broken"] == "2 × 2 2 4 4 of its entries are not finite"
    assert list(rows_of(second)) == ["zero", "broken"]
    words = words_of(section)
    assert words.count("the run has no weight_spectra.json") == 1
    assert words.count("no weight matrix with both sides above 1") == 1
    # One plot, of two lines; the others have none to draw.
    [figure] = figures_of(section)
    assert "spectra. deep_0: 90% of the norm at rank 2 of 3, of the sum at 3." in figure.alt
    assert "zero" not in figure.alt
    assert [row[0].look for row in first.cells] == [0, 1, None, None]


def test_spectra_are_drawn_from_0_to_the_whole():
    norm, total = cumulative_spectra({0: np.array([3.0, 1.0])})
    for panel, first in ((norm, 3 / math.sqrt(10)), (total, 3 / 4)):
        [line] = panel.series
        assert list(line.x) == [0, 0.5, 1] and list(line.y) == pytest.approx([0, first, 1])
    figure = Figure("Largest", [norm, total], "how much of it is in the largest")
    assert draw(figure) == draw(figure) and draw(figure).count("stroke: var(--run-0)") == 2
