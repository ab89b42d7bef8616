"""Feature importance in a report."""

from pathlib import Path

import numpy as np
import pytest

from ctr.eval.report import run_page
from ctr.eval.report.draw import draw
from ctr.eval.report.importance import MOST_DRAWN
from ctr.eval.report.page import Details
from ctr.eval.report.shown_run import show_runs
from ctr.eval.windows import Sums
from report_pages import blocks_of, check_page, figures_of, rows_of, tables_of, words_of
from run_directories import make_rows, predict, write_run, write_sums


@pytest.fixture(scope="module")
def rows():
    return make_rows(1, queries=100)


def measured_run(folder: Path, rows, means: dict[str, float]) -> Path:
    """A run whose features have such increases of the logloss, with an error of about 0.001."""
    run, rng = write_run(folder, rows, predict(rows, 1, 1.0)), np.random.default_rng(len(means))
    increases = {name: rng.normal(mean, 0.008, (2, 256)) for name, mean in means.items()}
    ones = np.ones((2, 256))
    whole = {"position": np.array([50, 70]), "rows": np.array([256, 256])}
    sums = Sums()
    sums.add_importance({**whole, "weight": ones, "loss": 0.5 * ones, **increases})
    write_sums(run, sums)
    return run


def section_of(*runs: Path):
    page = run_page(show_runs(runs))
    check_page(page)
    return page, page.section("importance")


def test_features_are_sorted_and_the_first_sentence_names_those_used_most(rows, tmp_path):
    means = {
        "shared/noise": 0.0,
        "shared/user": 0.05,
        "shuffled/price": 0.01,
        "shared/ad": 0.03,
        "shared/bad": -0.01,
    }
    page, section = section_of(measured_run(tmp_path / "run", rows, means))
    [table] = tables_of(section)
    found = rows_of(table)
    assert list(found) == ["user", "ad", "price", "noise", "bad"]
    assert [cells[2] for cells in found.values()] == ["yes", "yes", "yes", "no", "yes, below"]
    assert (
        found["user"][0].startswith("+0.05")
        and found["user"][1].startswith("+10.")
        and "%" in found["user"][1]
    )
    assert "shuffled" not in str(found["user"]) and "Shuffled: " in words_of(section)
    assert "512 rows at 2 positions" in words_of(section)
    [figure] = figures_of(section)
    [series] = figure.panels[0].series
    assert np.all(np.diff(series.x) < 0) and list(series.y) == [0, 1, 2, 3, 4]
    low, high = series.x_span
    assert np.all((low < series.x) & (series.x < high)) and "user" in draw(figure)
    words = words_of(page)
    assert "the features that it uses most are user, ad and price." in words
    _, only = section_of(measured_run(tmp_path / "only", rows, {"shared/a": 0.05, "shared/b": 0.0}))
    assert "Shuffled: " not in words_of(only)


def test_runs_stand_side_by_side_and_those_that_measured_nothing_say_so(rows, tmp_path):
    one = measured_run(tmp_path / "one", rows, {"shared/user": 0.05, "shared/ad": 0.03})
    two = measured_run(tmp_path / "two", rows, {"shared/ad": 0.05, "shared/price": 0.02})
    none = write_run(tmp_path / "none", rows, predict(rows, 1, 1.0))
    _, section = section_of(one, none, two)
    found = rows_of(tables_of(section)[0])
    assert list(found) == ["user", "ad", "price"]
    assert found["ad"][0].count("+0.0") == 2 and found["price"][0].startswith("–")
    assert "none: not measured (metrics.importance_rows)." in words_of(section)
    [figure] = figures_of(section)
    assert [series.run for series in figure.panels[0].series] == [0, 2]
    page = run_page(show_runs([none]))
    assert "importance" not in {section.name for section in page.sections}


def test_of_many_features_the_first_are_drawn_and_the_others_folded(rows, tmp_path):
    means = {f"shared/f{number}": 0.1 - number / 1000 for number in range(MOST_DRAWN + 5)}
    _, section = section_of(measured_run(tmp_path / "run", rows, means))
    first, rest = tables_of(section)
    assert (len(first.rows), len(rest.rows)) == (MOST_DRAWN, 5)
    [fold] = [block for block in blocks_of(section) if isinstance(block, Details)]
    assert fold.summary == "5 more features"
