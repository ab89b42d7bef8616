"""What candidates cost: counted operations are those of a run, and times are sums of a table's."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests, read_schema
from ctr.experiments.measure import measure
from ctr.io.errors import InputError
from ctr.search.config import CostConfig, SearchConfig
from ctr.search.cost import make_cost
from ctr.search.space import Space, make_space
from ctr.search.times import Layer, layers_of, layers_to_measure
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
    cost = make_cost(CostConfig(purpose=purpose), space, BASE, log, log / "none.json")
    choices = [space.number(index) for index in range(0, space.size, 101)]
    configs = {str(choice): space.apply(BASE, choice).model_dump(mode="json") for choice in choices}
    found = measure(log, {**configs, "base": BASE}, "base", 0)
    for choice in choices:
        assert cost(choice) == found[str(choice)][key] / found["base"][key]
    assert cost(space.baseline(BASE)) == 1.0


def test_times_are_those_of_the_layers_and_of_a_rest(log, tmp_path):
    space = space_of(log, {"model.deep.units.1": [0, 8], "model.widths.user": [2, 4]})
    m = 4 + 4 + 4 + 2
    table = {
        "device": "none",
        "batch_rows": 50,
        "rest": {"training": 10.0, "serving": 1.0},
        "layers": [
            {"kind": "cross", "inputs": m - 2, "rank": 3, "outputs": m - 2, "training": 2.0, "serving": 0.5},
            {"kind": "cross", "inputs": m + 2, "rank": 3, "outputs": m + 2, "training": 4.0, "serving": 0.7},
            {"kind": "deep", "inputs": m - 2, "rank": 4, "outputs": 16, "training": 5.0, "serving": 0.25},
            {"kind": "deep", "inputs": m + 2, "rank": 4, "outputs": 16, "training": 7.0, "serving": 0.25},
            {"kind": "deep", "inputs": 16, "rank": 0, "outputs": 8, "training": 1.0, "serving": 0.25},
        ],
    }
    path = tmp_path / "times.json"
    path.write_text(json.dumps(table))
    cost = make_cost(CostConfig(measure="times", times=path), space, BASE, log, path)
    base = 10 + 2 * 3 + 6 + 1
    assert cost((1, 1)) == 1.0
    assert cost((0, 1)) == pytest.approx((base - 1) / base)
    assert cost((1, 0)) == pytest.approx((10 + 2 * 2 + 5 + 1) / base)
    serving = make_cost(CostConfig(measure="times", purpose="serving"), space, BASE, log, path)
    assert serving((0, 1)) == pytest.approx((1 + 2 * 0.6 + 0.25) / (1 + 2 * 0.6 + 0.5))
    wider = space_of(log, {"model.widths.user": [4, 8]})
    with pytest.raises(
        InputError, match=r"no time of a cross layer from 18 to 18 numbers of rank 3; those with 12"
    ):
        make_cost(CostConfig(measure="times"), wider, BASE, log, path)((1,))
    path.write_text(json.dumps({**table, "batch_rows": 60}))
    with pytest.raises(InputError, match=r"its times are of batches of 60 rows, and batch\.rows is 50"):
        make_cost(CostConfig(measure="times"), space, BASE, log, path)


def test_the_layers_that_are_measured_are_enough_for_every_candidate(log):
    choices = {**CHOICES, "model.deep.units.2": [0, 6], "model.deep.layers": [0, 1, 2, 3]}
    del choices["batch.rows"]
    space = space_of(log, choices)
    schema, manifests = read_schema(log), read_manifests(log)
    known = set(layers_to_measure(space, BASE, schema, manifests))
    ranges: dict[tuple[str, int, int], list[int]] = {}
    for one in known:
        ranges.setdefault((one.kind, one.rank, one.outputs * (one.kind == "deep")), []).append(one.inputs)
    for index in range(0, space.size, 11):
        config = space.apply(BASE, space.number(index))
        for layer in layers_of(config, config.table_layouts(schema)):
            inputs = ranges[layer.kind, layer.rank, layer.outputs * (layer.kind == "deep")]
            assert min(inputs) <= layer.inputs <= max(inputs), layer
    assert Layer("deep", 16, 0, 8) in known


@pytest.mark.slow
def test_times_are_measured_once(log, tmp_path):
    space = space_of(log, {"model.deep.units.1": [0, 8]})
    path = tmp_path / "new" / "times.json"
    lines: list[str] = []
    cost = make_cost(CostConfig(measure="times"), space, BASE, log, path, lines.append)
    assert cost((0,)) > 0 and cost((1,)) == 1.0
    written = path.read_bytes()
    again = make_cost(CostConfig(measure="times"), space, BASE, log, path, lines.append)
    assert again((0,)) == cost((0,))
    assert path.read_bytes() == written
    assert lines == ["measuring the times of 3 layers"]
