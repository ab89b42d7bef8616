"""Feature importance in a report."""

from pathlib import Path

import numpy as np
import pytest

from ctr.eval.report import report_context
from ctr.eval.windows import Sums
from report_pages import check_context, figures_of, rows_of, section_of, tables_of, words_of
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


def section(*runs: Path):
    context = report_context(runs)
    check_context(context)
    return context, section_of(context, "Features")


def test_only_what_differs_from_0_has_a_number_and_the_words_name_those_used_most(rows, tmp_path):
    means = {"shared/noise": 0.0, "shared/user": 0.05, "shuffled/price": 0.01}
    means |= {"shared/ad": 0.03, "shared/bad": -0.01}
    context, features = section(measured_run(tmp_path / "run", rows, means))
    found = rows_of(tables_of(features)[0])
    assert list(found) == ["user", "ad", "price", "bad", "noise", "position"]
    increases = {name: cells["increase of logloss"] for name, cells in found.items()}
    assert increases["user"].startswith("+0.05") and increases["bad"].startswith("-0.01")
    assert (increases["noise"], increases["position"]) == ("no certain effect", "not measured")
    assert found["user"]["of the logloss"].startswith("+10.") and found["position"]["missing"] == "12.5%"
    assert [name for name, cells in found.items() if cells["by"]] == ["price"]
    assert figures_of(context)[-1] == "Increase of logloss without a feature"
    svg = features.figures[0].svg
    assert all(f">{name}</text>" in svg for name in ("user", "ad", "price", "bad")) and ">noise<" not in svg
    assert "the features that it uses most are user, ad and price." in words_of(context)
