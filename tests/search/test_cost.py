"""Costs of candidates: the counted operations are those of a run."""

from pathlib import Path
from typing import Any

import pytest

from ctr.config import parse_model
from ctr.data.log import read_schema
from ctr.experiments.measure import measure
from ctr.search.config import SearchConfig
from ctr.search.problem import cost_of, counted
from ctr.search.space import Space, make_space
from small_runs import SMALL, merged

WIDTHS = {"user": 4, "item": 4}
BASE = merged(SMALL, {"model": {"deep": {"units": [16, 8], "ranks": [4, 0]}, "widths": WIDTHS}})
CHOICES = {
    "model.deep.units.0": [8, 16],
    "model.deep.units.1": [0, 4, 8],
    "model.deep.ranks.0": [0, 2, 4],
    "model.crosses.layers": [0, 2],
    "model.crosses.rank": [1, 3],
    "model.widths.user,item": [0, 2, 4],
    "features.tags": [True, False],
    "batch.rows": [25, 50],
}


def space_of(log: Path, choices: dict[str, Any], method: str = "random") -> Space:
    search = parse_model(SearchConfig, {"method": method, "space": choices}, "search")
    return make_space(search, BASE, read_schema(log), "search")


@pytest.mark.parametrize(("purpose", "key"), [("training", "train_flops"), ("serving", "inference_flops")])
def test_the_cost_is_what_an_experiment_counts(log, purpose, key):
    space = space_of(log, CHOICES)
    cost = cost_of(space, BASE, counted(log, purpose))
    choices = [space.number(index) for index in range(0, space.size, 101)]
    configs = {str(choice): space.apply(BASE, choice).model_dump(mode="json") for choice in choices}
    found = measure(log, {**configs, "base": BASE}, "base", 0)
    for choice in choices:
        assert cost(choice) == found[str(choice)][key] / found["base"][key]
    assert cost(space.baseline(BASE)) == 1.0
