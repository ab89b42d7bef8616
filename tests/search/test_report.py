"""The report of a search."""

from pathlib import Path

import pandas as pd
import pytest

from ctr.eval.display import Number
from ctr.eval.report.figures import Point
from ctr.search.report import frontier, search_context, search_table, write_search
from report_pages import Html, check_context, figures_of, rows_of, section_of, tables_of, words_of
from search_records import course, record


@pytest.mark.parametrize("cost", [0.2, 2.5])
def test_the_plot_reaches_the_baseline(cost):
    tried = [
        one if one.name == "baseline" else one.model_copy(update={"cost": cost}) for one in record().tried
    ]
    [figure] = section_of(search_context(record(tried=tried), []), "Results").figures
    assert ">baseline</text>" in figure.svg and figure.title == "Logloss over cost"
    # Without any candidate it is there, too.
    [figure] = section_of(search_context(record(tried=[]), []), "Results").figures
    assert ">baseline</text>" in figure.svg


def test_the_frontier_is_what_nothing_beats():
    points = [Point(name, Number(cost), Number(change)) for name, cost, change in
              (("a", 1.0, 0.0), ("b", 0.5, 0.2), ("c", 0.6, 0.3), ("d", 2.0, -0.1))]  # fmt: skip
    assert [point.name for point in frontier(points)] == ["b", "a", "d"]


def test_the_page_has_every_candidate_and_the_text_the_best(tmp_path: Path):
    context = search_context(record(), course())
    check_context(context)
    assert [section.title for section in context.sections] == [
        *("Results", "The controller over time", "How to repeat it"),
    ]
    _, judged, _, trials = tables_of(context.sections[0])
    assert list(rows_of(judged)["PerQueryAUC"].values()) == [
        *("PerQueryAUC", "0.50000", "0.51000", "+0.01000 ± 0.00100", "+2.000"),
        *("+0.01000 +0.01100", "better"),
    ]
    assert context.verdict == [
        "The result is neither better nor worse than the baseline for certain, on the held-out rest, which the search "
        "has not read: logloss -0.0040 [-0.0050, -0.0030]; 0.90× the cost."
    ]
    assert len(trials) == 16 and trials["candidate"][0] == "c3 *"
    assert "Not known: no <run>." in words_of(context) and "out of <memory>" in words_of(context)
    assert len(figures_of(context)) == 1 + 2 + 3
    (tmp_path / "search.json").write_text(record().model_dump_json())
    text = write_search(tmp_path)
    assert "6 more are in report.html" in text and "c99" not in text
    assert text == (tmp_path / "table.txt").read_text()
    Html((tmp_path / "report.html").read_text()).check()
    table = pd.read_csv(
        tmp_path / "table.csv", keep_default_na=False, na_values={"value": "", "low": "", "high": ""}
    )
    pd.testing.assert_frame_equal(table.astype({"seed": str}), search_table(record()), check_dtype=False)
    loss = table[(table["arm"] == "c1") & (table["metric"] == "logloss_difference")].iloc[0]
    assert (loss["value"], loss["low"], loss["high"]) == pytest.approx((-0.01, -0.012, -0.008))


def test_a_search_that_chose_the_baseline_without_held_out_rows():
    found = record(tried=[], judged=None, prefix_end=None, chosen="baseline", note="")
    context = search_context(found, [])
    check_context(context)
    assert context.verdict == ["No candidate within the target is better than the baseline."]
    assert not figures_of(context)
    assert "The result is the baseline itself." in words_of(context) and "no held-out rows" in words_of(
        context
    )
