"""A whole search by weight sharing on a small log: the plain model's bits, kills, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.config import load_model, parse_model
from ctr.io.errors import InputError
from ctr.search.config import SearchConfig
from ctr.search.shared_weights import Plan, progress_of
from ctr.search.space import space_of
from ctr.search.supernet import check_supernet
from ctr.training.config import TrainConfig
from ctr.training.run import checkpoint
from ctr.training.session import train
from small_runs import draw_examples, merged
from small_searches import BASE, SPACE, search

ROWS = len(draw_examples())


@pytest.fixture(scope="module")
def found(log, tmp_path_factory) -> tuple[Path, Any, list[str]]:
    """A search: its folder, its result, and what it said."""
    out, said = tmp_path_factory.mktemp("search") / "out", []
    result = search(log, out, changes=SHAMPOO, progress=said.append, target=0.8)
    return out, result, said


def last_arrays(run: Path) -> dict[str, np.ndarray]:
    arrays, _ = checkpoint.read(run / "checkpoints")
    return {name.removeprefix("weights|"): array for name, array in arrays.items() if "weights|" in name}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same_search(one: Path, other: Path) -> None:
    """Whether two searches came to the same bits."""
    assert lines(one / "controller.jsonl") == lines(other / "controller.jsonl")
    found, expected = (last_arrays(out / "run") for out in (one, other))
    assert found.keys() == expected.keys() and "search" in found
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


FACTORIZED: dict[str, Any] = {"model": {"factorized": {"width": 4, "ui_units": [5]}}}
ALONE: dict[str, Any] = {"model": {"experts": ["network"]}}
SHAMPOO: dict[str, Any] = {
    "optimizer": {
        "dense": {"preconditioned_from_rows": 1, "shampoo": {"preset": "ff", "precondition_frequency": 5}}
    }
}
RANKING: dict[str, Any] = {"objective": {"ranking": {"weight": 0.4, "max_pairs": 5, "ramp": [200, 500]}}}


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    "changes",
    [{}, ALONE, FACTORIZED, RANKING, SHAMPOO],
    ids=["default", "network", "factorized", "ranking", "shampoo"],
)
def test_with_one_candidate_it_is_the_plain_model_bit_for_bit(log, tmp_path, changes):
    space = {"model.deep.units.0": [8], "features.tags": [True]}
    result = search(log, tmp_path / "search", space, changes)
    # A supernet does without pairs.
    experts = ["network"] if changes in (FACTORIZED, ALONE) else ["linear", "network"]
    content = merged(merged(BASE, changes), {"model": {"experts": experts}})
    train(log, parse_model(TrainConfig, content, "test"), tmp_path / "plain")
    ours, plain = last_arrays(tmp_path / "search" / "run"), last_arrays(tmp_path / "plain")
    ours.pop("search")
    assert ours.keys() == plain.keys() and len(plain) > 10
    for name in plain:
        np.testing.assert_array_equal(ours[name], plain[name], err_msg=name)
    # All metrics are of the predictions before each step.
    both = [lines(tmp_path / run / "metrics.jsonl") for run in ("search/run", "plain")]
    for line in (line for written in both for line in written):
        line.pop("examples_per_second", None)
    assert len(both[0]) >= 4 and both[0] == both[1][: len(both[0])] and result.choice == (0, 0)


@pytest.mark.slow
def test_a_search_learns_from_all_and_accounts_for_what_it_costs(found):
    out, result, said = found
    assert result.examples == ROWS
    # Passes of the largest network, which is the baseline, by two learners, and at most four predictions of all but
    # the first quarter of the rows.
    assert 2.0 < result.passes < 4.0
    written = lines(out / "controller.jsonl")
    assert [line["examples"] for line in written] == sorted({line["examples"] for line in written})
    quarter = [line for line in written if line["examples"] < ROWS / 4]
    assert quarter and all(line["steps"] == 0 and line["mean_reward"] is None for line in quarter)
    assert written[-1]["steps"] > 10 and written[-1]["mean_cost"] > 0
    for name, choices in SPACE.items():
        assert len(written[-1]["probabilities"][name]) == len(choices)
        assert sum(written[-1]["probabilities"][name]) == pytest.approx(1)
    # Candidates are drawn by the number of the batch.
    remembered = progress_of(last_arrays(out / "run")["search"], [len(own) for own in SPACE.values()])
    assert remembered.examples == result.examples
    assert remembered.batches >= result.examples / BASE["batch"]["rows"]
    assert "entropy" in said[-1]
    # Pairs are no part of it, which is said once.
    of_experts = [line for line in said if "model.experts" in line]
    assert of_experts == ["supernet: model.experts is without pairs, as no mask is on them"]
    used = load_model(TrainConfig, out / "run" / "config.yaml", "config")
    assert used.model.experts == ("linear", "network")


@pytest.mark.soak
def test_a_search_that_broke_off_goes_on_to_the_same_bits(log, found, tmp_path):
    class Stop(BaseException):
        pass

    said: list[str] = []

    def progress(line: str) -> None:
        said.append(line)
        if len(said) == 13:
            raise Stop

    given = {"changes": SHAMPOO, "target": 0.8}
    with pytest.raises(Stop):
        search(log, tmp_path / "out", progress=progress, **given)
    assert list((tmp_path / "out" / "run" / "checkpoints").iterdir())
    out, result, _ = found
    assert search(log, tmp_path / "out", **given) == result
    assert_same_search(tmp_path / "out", out)
    # What is whole is not made again.
    assert search(log, tmp_path / "out", **given) == result
    assert_same_search(tmp_path / "out", out)


def test_what_masks_cannot_be_is_refused_in_one_line(log, tmp_path):
    for changes, words in (
        ({"optimizer": {"embeddings": {"rule": "one_sided"}}}, "embeddings.rule is one_sided"),
        ({"model": {"ensemble": {"components": 2}}}, "ensemble.components"),
        ({"model": {"experts": ["network", "pairs"]}}, "model.experts names pairs, .* allowed: auto, linear"),
        (
            merged(RANKING, {"objective": {"ranking": {"setup": "multi_task"}}}),
            "no mask is on the head that ranks",
        ),
    ):
        with pytest.raises(InputError, match=words) as caught:
            search(log, tmp_path / "out", changes=changes)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no candidate was found"):
        search(log, tmp_path / "out", target=0.01, controller={"mode": "rejection"})


def test_shampoo_waits_for_the_largest_network():
    base = parse_model(TrainConfig, merged(BASE, SHAMPOO), "test")
    made = space_of(parse_model(SearchConfig, {"space": SPACE}, "test"))
    assert [check_supernet(made, base, learns).preconditions for learns in (True, False)] == [True, False]


def test_who_learns_from_every_batch():
    base = parse_model(TrainConfig, BASE, "test")
    for extremes, space, drawn, values in (
        ("none", SPACE, 2, []),
        ("largest", SPACE, 2, [8]),
        ("sandwich", SPACE, 2, [8, 3]),
        # Several of the same would only round otherwise.
        ("sandwich", {"model.deep.units.0": [8]}, 1, []),
    ):
        content = {"space": space, "controller": {"extremes": extremes, "learners": 2}}
        config = parse_model(SearchConfig, content, "test")
        made = space_of(config)
        plan = Plan(config, made, base, None, 100, Path("records"))
        assert plan.drawn == drawn
        assert [made.values(choice)["model.deep.units.0"] for choice in plan.always] == values


def test_the_rate_of_the_controller_is_the_published_one_unless_steps_are_few():
    base = parse_model(TrainConfig, {"batch": {"rows": 100}}, "test")
    by_examples = [(None, 10**8, 0.0048), (None, 100_000, 20 / 750), (None, 100, 0.1)]
    for given, examples, rate in (*by_examples, (0.3, 100_000, 0.3)):
        config = parse_model(SearchConfig, {"space": SPACE, "controller": {"learning_rate": given}}, "test")
        plan = Plan(config, None, base, None, examples, Path("records"))
        assert plan.controller_rate == pytest.approx(rate)
