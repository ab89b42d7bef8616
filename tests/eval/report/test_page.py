"""Pages of every kind of part: their words stay words, and the same context gives the same bytes."""

import re

import numpy as np
import pandas as pd
import pytest

from ctr.eval.display import Number
from ctr.eval.report import figures
from ctr.eval.report.figures import Line, Point
from ctr.eval.report.page import PageContext, Section, render_page
from report_pages import Html, check_context, words_of

BAD = """</script><script>alert(1)</script>"'><img src=x onerror=alert(1)>{{ 7*7 }}{% raw %}&lt;$x^2$"""
TABLE = pd.DataFrame([[BAD, BAD, "better"]], columns=["run", BAD, BAD])
X = np.arange(3)
Y = np.array([0.1, 0.3, 0.2])


def test_no_text_becomes_part_of_a_page():
    drawn = [
        figures.courses(BAD, [Line(X, Y, Y - 0.05, Y + 0.05, label=BAD)], note=BAD),
        figures.by_name(BAD, [{BAD: Number(0.1, 0.0, 0.2)}], [BAD], note=BAD),
        figures.plane(BAD, [[Point(BAD, Number(1.0), Number(2.0))] * 2], (BAD, BAD), note=BAD),
    ]
    tables = [(BAD, TABLE), ("empty", TABLE[:0])]
    section = Section(BAD, [BAD], [one for one in drawn if one], tables, [(BAD, BAD), (BAD, TABLE)])
    context = PageContext(BAD, [BAD], [BAD], [BAD], [section], [BAD, "other"])
    check_context(context)
    html = render_page(context)
    page = Html(html)
    page.check()
    assert "<script" not in html and "<img" not in html and "49" not in page.words
    assert page.words.count(BAD) > 20 and words_of(context).count(BAD) > 20
    assert len(page.images()) == 3
    starts = [svg.replace("&lt;", "").split("<text", 1)[0].split(">", 1)[1] for svg in page.images()]
    assert "alert(1)" not in "".join(starts)
    assert html == render_page(context)
    assert "empty" not in html
    # The run of the first column has its color and its sign.
    assert 'style="color: var(--run-0)">●' in html


def test_a_wide_band_leaves_the_course_to_be_seen():
    y = np.array([0.6, 0.62, 0.61, 0.63, 0.6])
    low, high = y - 0.05, y + 0.05
    low[2], high[2] = -40.0, 90.0
    figure = figures.courses("AUC", [Line(np.arange(5), y, low, high)], within=(0.0, 1.0))
    labels = [float(text) for text in re.findall(r">(-?\d+\.\d+)</text>", figure.svg)]
    assert 0.5 < min(labels) < max(labels) < 0.7


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hours", [1e-4, 2.7, 62, 24 * 20, 24 * 900, 24 * 9000])
def test_any_stretch_of_time_has_a_few_ticks(hours):
    x = (1_767_571_200_000_000 + np.arange(3) * int(hours * 1.8e9)).astype("datetime64[us]")
    figure = figures.courses("AUC", [Line(x, Y)])
    ticks = re.findall(r"<text[^>]*text-anchor: middle[^>]*>([^<]+)</text>", figure.svg)
    assert 2 <= len(ticks) <= 9, ticks
    # In the width of a plot they do not touch: DejaVu's digits are 0.64 of their height wide.
    assert sum(map(len, ticks)) * 0.64 * 9.5 < 4.3 * 72
