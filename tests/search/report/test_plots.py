"""The plots of a search."""

import json
from html import unescape
from xml.etree import ElementTree

import pytest

from ctr.search.report.write import Point, loss_against_cost


@pytest.mark.parametrize("costs", [(0.2, 0.3), (2.5, 4.0), (0.5,)])
def test_the_frontier_reaches_the_baseline(costs):
    points = [Point(f"c{place}", 0, cost, -0.4, (-0.6, -0.2), "tried") for place, cost in enumerate(costs)]
    svg = loss_against_cost(points, ["tried"], 0.5)
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    series = json.loads(unescape(root.attrib["data-hover"]))["series"]
    [(x, y, _, says)] = next(own for _, own in series if own[0][2] == "baseline")
    assert 0 < x < width and 0 < y < height and says.startswith("cost 1, change 0%")
    assert "baseline" in [text.strip() for text in root.itertext()]
