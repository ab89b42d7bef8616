"""Pages of every kind of block: their words stay words, and the same page gives the same bytes."""

import re

import pytest

from ctr.eval.report.draw import draw
from ctr.eval.report.html import render_page
from ctr.eval.report.page import (
    Axis,
    Beside,
    Card,
    Cards,
    Cell,
    Column,
    Definitions,
    Details,
    Figure,
    Figures,
    Mark,
    Page,
    Panel,
    Part,
    Section,
    Series,
    Table,
    Words,
    code,
    heading,
    quiet,
)
from report_pages import Html, check_page, words_of

BAD = """</script><script>alert(1)</script>"'><img src=x onerror=alert(1)>{{ 7*7 }}{% raw %}&lt;"""
MARK = Mark(BAD, 8)


def line(*y: float, **more: object) -> Series:
    heads, texts = [[BAD] * len(y)] * 2
    return Series(range(len(y)), y, heads=heads, texts=texts, **more)


def figure(*y: float) -> Figure:
    return Figure(BAD, [Panel([line(*y, run=0)], Axis("x"), Axis("y"))], BAD, MARK, note=BAD)


TABLE = Table(
    ("", Column(BAD, words=True), BAD),
    [
        [
            MARK,
            Cell(code(BAD), (BAD, quiet(BAD)), BAD, BAD, 3, (1.0, 60.0, 90.0)),
            (BAD, Part(BAD, "line", MARK)),
        ]
    ],
    BAD,
)
PAGE = Page(
    title=BAD,
    heading=BAD,
    lead=[Words((BAD, MARK)), Words(BAD, "note", 8)],
    sections=[
        Section("one", BAD, (BAD, MARK), [heading(BAD), TABLE, Words(BAD, "file")]),
        Section(
            "two", BAD, BAD, [Cards([Card(BAD, [(MARK, 8, BAD, "good", BAD)])]), Figures([figure(1, 2)])]
        ),
        Section("three", BAD, BAD, [Figures([figure(3, 4)], beside=TABLE), Figures([figure(1)])]),
        Section("four", BAD, BAD, [Details(BAD, [Definitions([(BAD, (BAD, code(BAD)))])]), Beside([TABLE])]),
    ],
    legend=[MARK],
)


def test_no_text_becomes_part_of_a_page():
    check_page(PAGE)
    html = render_page(PAGE)
    page = Html(html)
    page.check()
    assert html.count("<script") == 1 and "<img" not in html and "49" not in page.words
    assert page.words.count(BAD) > 40 and words_of(PAGE).count(BAD) > 30
    assert len(page.images()) == 2
    assert not any("alert" in text for svg in page.images() for text in re.findall(r">([^<>]+)</text>", svg))
    assert html == render_page(PAGE)


@pytest.mark.parametrize(
    ("series", "near", "drawn"),
    [
        ([line(1, 2)], False, True),
        ([line(1, float("nan"))], False, False),
        ([line(1), line(2)], False, False),
        ([line(1), line(2)], True, True),
        ([Series([1], [1])], False, True),
        ([], True, False),
    ],
)
def test_less_than_two_points_are_no_plot(series, near, drawn):
    shown = Figure("a", [Panel(series, Axis(), Axis())], "what is to be seen in it", near=near)
    assert shown.is_drawn == drawn == bool(draw(shown))


def test_an_interval_is_a_band_of_a_line_and_a_bar_of_points():
    for kind, band, bars in (("line", 1, 0), ("points", 0, 2)):
        one = line(1, 2, kind=kind, low=[0.5, 1.0], high=[1.5, 3.0], run=2)
        svg = draw(Figure("a", [Panel([one], Axis(), Axis())], "what is to be seen in it"))
        assert svg.count("fill-opacity: 0.15") == band
        assert len(re.findall(r'style="fill: none; stroke: var\(--run-2\); stroke-width: 1.2"', svg)) == bars
        assert 'data-run="2"' in svg
