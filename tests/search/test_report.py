"""The report of a search."""

import json
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ctr.eval.display import Number
from ctr.eval.report.draw import draw
from ctr.eval.report.page import Figure
from ctr.search.report import Point, frontier, loss_against_cost, search_page, write_search
from report_pages import check_page, figures_of, tables_of, words_of
from search_records import course, record


@pytest.mark.parametrize("costs", [(0.2, 0.3), (2.5, 4.0), (0.5,)])
def test_the_frontier_reaches_the_baseline(costs):
    change = Number(-0.4, -0.6, -0.2)
    points = [Point(f"c{place}", cost, change, "tried") for place, cost in enumerate(costs)]
    figure = Figure("Cost", [loss_against_cost({"tried": points}, 0.5)], "cost and loss", near=True)
    root = ElementTree.fromstring(draw(figure))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    series = json.loads(unescape(root.attrib["data-hover"]))["series"]
    [(x, y, _, says)] = next(own for _, own in series if own[0][2] == "baseline")
    assert 0 < x < width and 0 < y < height and says.startswith("cost 1, change 0%")
    assert "baseline" in [text.strip() for text in root.itertext()]


def test_the_frontier_is_what_nothing_beats():
    points = [Point(name, cost, Number(change), "") for name, cost, change in
              (("a", 1.0, 0.0), ("b", 0.5, 0.2), ("c", 0.6, 0.3), ("d", 2.0, -0.1))]  # fmt: skip
    assert [point.name for point in frontier(points)] == ["b", "a", "d"]


def test_the_page_has_every_candidate_and_the_text_the_best(tmp_path: Path):
    page = search_page(record(), course())
    check_page(page)
    assert [section.name for section in page.sections] == ["frontier", "controller", "tables", "repeat"]
    _, judged, _, trials = tables_of(page)
    assert judged.texts()[1] == [
        *("PerQueryAUC", "0.50000", "0.51000", "+0.01000 ± 0.00100", "+2.000"),
        *("+0.01000 +0.01100", "better"),
    ]
    assert len(trials.rows) == 16 and trials.texts()[1][0] == "c3 *"
    assert "Not known: no <run>." in words_of(page) and "out of <memory>" in words_of(page)
    assert len(figures_of(page)) == 1 + 2 + 3
    frontier = figures_of(page)[0].panels[0].series
    assert [one.label for one in frontier if one.label] == [
        *("tried", "result, rest of the log", "baseline"),
    ]
    (tmp_path / "search.json").write_text(record().model_dump_json())
    text = write_search(tmp_path)
    assert "6 more are in report.html" in text and "c99" not in text
    assert text == (tmp_path / "table.txt").read_text()


def test_a_search_that_chose_the_baseline_without_held_out_rows():
    found = record(tried=[], judged=[], prefix_end=None, chosen="baseline", note="")
    page = search_page(found, [])
    check_page(page)
    assert [section.name for section in page.sections] == ["tables", "repeat"]
    assert "The result is the baseline itself." in words_of(page) and "no held-out rows" in words_of(page)
