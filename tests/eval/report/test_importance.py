"""Feature importance in a report."""

import numpy as np

from ctr.eval.report import report_context
from ctr.eval.windows import Sums
from report_pages import check_context, figures_of, rows_of, section_of, tables_of, words_of
from run_directories import make_rows, predict, write_run, write_sums


def test_only_what_differs_from_0_has_a_number_and_the_words_name_those_used_most(tmp_path):
    # Increases of the logloss, with an error of about 0.001.
    means = {"shared/noise": 0.0, "shared/user": 0.05, "shuffled/price": 0.01}
    means |= {"shared/ad": 0.03, "shared/bad": -0.01}
    rng, ones, rows, sums = np.random.default_rng(5), np.ones((2, 256)), make_rows(1, queries=100), Sums()
    increases = {name: rng.normal(mean, 0.008, (2, 256)) for name, mean in means.items()}
    whole = {"position": np.array([50, 70]), "rows": np.array([256, 256])}
    sums.add_importance({**whole, "weight": ones, "loss": 0.5 * ones, **increases})
    run = write_run(tmp_path / "run", rows, predict(rows, 1, 1.0))
    write_sums(run, sums)
    context = report_context([run])
    check_context(context)
    features = section_of(context, "Features")
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
