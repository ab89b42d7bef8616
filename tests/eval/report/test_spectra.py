"""Spectra of weights and of Shampoo's statistics in a report: which, what is drawn of them, and what is refused."""

import json
import math
import shutil

import numpy as np
import pytest

import shampoo_reference as reference
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


def entry(smallest, largest, condition, damped=50.0):
    return {"smallest": smallest, "largest": largest, "condition": condition, "damped": damped}


def shown_texts(panel):
    """What whoever points at the drawn points of each line reads."""
    return [[text for text, y in zip(one.texts, one.y, strict=True) if y == y] for one in panel.series]


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
    figures, words, table = statistics_blocks(show_runs([plain, run, none]))
    figure, _ = figures.figures
    assert f"of the {MOST_WEIGHTS} of {MOST_WEIGHTS + 2} weights" in table.caption
    names = [weights[-1], *weights[: MOST_WEIGHTS - 1]]
    assert [str(first) for first, *_ in table.cells] == names
    ends = [["0", "2.5", "4.5e+15", "50"], ["0.0001", "100", "100", "50"]]
    assert [row[1:] for row in table.texts()[1:3]] == ends
    assert f"{weights[0]}: 0.0001 to 100." in figure.alt
    # Of all weights: the others have 100, ..., 93, and 50 after damping.
    assert f"halves the condition number: for 1 of {len(weights)} weights." in words.text
    [panel] = figure.panels
    texts = shown_texts(panel)
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


def test_condition_numbers_are_those_of_a_matrix_made_by_hand(tmp_path, plain):
    # G = U diag(s) V^T: of the sum of t matrices G G^T the eigenvalues are t s^2, of that of G^T G as well.
    singular = np.array([10.0, 1.0, 0.1, 1e-3])
    gradient = reference.orthogonal(4, 1) * singular @ reference.orthogonal(4, 2)
    spectra, expected = [], []
    for steps in (1, 2, 3):
        settings = reference.options(start_preconditioning_step=steps, epsilon=1e-6, beta2=1.0)
        core = reference.make_core(settings, [np.zeros((4, 4))])
        reference.train(core, [[gradient]] * steps, 0.1)
        spectra.append({name: one._asdict() for name, one in core.spectra(["w"]).items()})
        statistics = steps * gradient @ gradient.T
        damped = statistics + 1e-6 * np.linalg.norm(statistics, 2) * np.eye(4)
        expected.append((np.linalg.cond(statistics), np.linalg.cond(damped)))
    [shown] = show_runs([made(plain, tmp_path / "run", spectra)])
    figures, words, table = statistics_blocks([shown])
    _, figure = figures.figures
    [panel] = figure.panels
    assert panel.y.log and panel.x.label == "examples"
    before, after = panel.series
    for one, values in ((before, [row[0] for row in expected]), (after, [row[1] for row in expected])):
        assert list(one.x) == shown.windows["examples"].tolist()
        # The smallest eigenvalue is 1e-8 of the largest: float64 has 8 digits of it.
        np.testing.assert_allclose(one.y, values, rtol=1e-6)
    assert list(before.y) == pytest.approx([1e8] * 3, rel=1e-6)
    # (1 + e) / (1e-8 + e) for e = 1e-6.
    assert list(after.y) == pytest.approx([1.000001 / 1.01e-6] * 3, rel=1e-6)
    assert shown_texts(panel) == [["w condition 1e+08"] * 3, ["w after damping 9.9e+05"] * 3]
    assert not before.dashes and after.dashes
    assert table.texts()[1][3:] == ["1e+08", "9.9e+05"]
    assert "is 1e+08 before damping and 9.9e+05 after it" in words.text and "1 of 1 weights" in words.text
    assert draw(figure).count("stroke: var(--run-0)") > 1


def test_adagrad_has_no_spectra_and_its_run_no_figure_of_them(tmp_path, plain):
    core = reference.make_core(reference.options(start_preconditioning_step=None), [np.zeros((4, 4))])
    reference.train(core, reference.drifting([(4, 4)], 8), 0.1)
    run = made(plain, tmp_path / "run", [core.spectra(["w"])] * 3)
    page = run_page(show_runs([run]))
    assert "statistics" not in " ".join(figure.title for figure in figures_of(page))
    assert "Shampoo" not in words_of(page.section("time"))


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
