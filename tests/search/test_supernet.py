"""A whole search by weight sharing on a small log: the plain model's bits, kills, and what it refuses."""

import json
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.search.config import SearchConfig
from ctr.search.cost import cost_of, counted
from ctr.search.shared_weights import Plan
from ctr.search.space import space_of
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run import checkpoint
from small_runs import draw_examples, merged, publish
from small_searches import BASE, SPACE, killed, search


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("log") / "log", draw_examples().table())


def last_arrays(run: Path) -> dict[str, np.ndarray]:
    arrays, _ = checkpoint.read(run / "checkpoints")
    return {name.removeprefix("weights|"): array for name, array in arrays.items() if "weights|" in name}


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "controller.jsonl").read_text().splitlines()]


FACTORIZED: dict[str, Any] = {"model": {"factorized": {"width": 4, "ui_units": [5]}}}


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("changes", [{}, FACTORIZED], ids=["plain", "factorized"])
def test_with_one_candidate_it_is_the_plain_model_bit_for_bit(log, tmp_path, changes):
    space = {"model.deep.units.0": [8], "features.tags": [True]}
    result = search(log, tmp_path / "search", space, changes)
    train(log, parse_model(TrainConfig, merged(BASE, changes), "test"), tmp_path / "plain")
    ours, plain = last_arrays(tmp_path / "search" / "pass-1"), last_arrays(tmp_path / "plain")
    ours.pop("search")
    assert ours.keys() == plain.keys() and len(plain) > 10
    for name in plain:
        np.testing.assert_array_equal(ours[name], plain[name], err_msg=name)
    # All metrics are of the predictions before each step.
    both = [tmp_path / run / "metrics.jsonl" for run in ("search/pass-1", "plain")]
    ours_lines, plain_lines = ([json.loads(line) for line in path.read_text().splitlines()] for path in both)
    speed = {"examples_per_second"}
    for one, other in zip(ours_lines, plain_lines, strict=False):
        assert {k: v for k, v in one.items() if k not in speed} == {
            k: v for k, v in other.items() if k not in speed
        }
    assert len(ours_lines) >= 4 and result.choice == (0, 0)


@pytest.mark.slow
def test_a_search_learns_from_all_and_accounts_for_what_it_costs(log, tmp_path):
    said: list[str] = []
    result = search(log, tmp_path / "out", progress=said.append, target=0.8)
    rows = len(draw_examples())
    assert result.examples == rows
    # Passes of the largest network, which is the baseline, by two learners, and at most four predictions of three
    # quarters of the rows.
    assert 2.0 < result.passes < 4.0
    written = lines(tmp_path / "out")
    assert [line["examples"] for line in written] == sorted({line["examples"] for line in written})
    quarter = [line for line in written if line["examples"] < rows / 4]
    assert quarter and all(line["steps"] == 0 and line["mean_reward"] is None for line in quarter)
    assert written[-1]["steps"] > 10 and written[-1]["mean_cost"] > 0
    for name, choices in SPACE.items():
        assert len(written[-1]["probabilities"][name]) == len(choices)
        assert sum(written[-1]["probabilities"][name]) == pytest.approx(1)
    assert said and "entropy" in said[-1]
    again = search(log, tmp_path / "out", target=0.8)
    assert again == result and lines(tmp_path / "out") == written


@pytest.mark.soak
def test_a_search_decides_on_both_towers(log, tmp_path):
    space = {
        "model.deep.units.1": [0, 6],
        "model.factorized.ui_units.0": [0, 3, 5],
        "model.factorized.ui_units.1": [0, 4],
        "model.factorized.width": [2, 4],
        "model.widths.position": [1, 2],
    }
    result = search(log, tmp_path / "out", space, FACTORIZED, target=0.9)
    found = lines(tmp_path / "out")[-1]["probabilities"]
    assert {name: len(one) for name, one in found.items()} == {name: len(one) for name, one in space.items()}
    # The controller has seen differences in each decision.
    assert all(max(one) - min(one) > 1e-4 for one in found.values())
    assert result.examples == len(draw_examples())
    base = parse_model(TrainConfig, merged(BASE, FACTORIZED), "test")
    made = space_of(parse_model(SearchConfig, {"space": space}, "test"))
    train(log, made.apply(base, result.choice), tmp_path / "alone")


@pytest.mark.soak
def test_rejection_ends_below_the_target(log, tmp_path):
    base = parse_model(TrainConfig, BASE, "test")
    for samples in (1024, 16):
        result = search(
            log,
            tmp_path / f"out-{samples}",
            target=0.7,
            controller={"mode": "rejection", "rejection_samples": samples, "learning_rate": 0.05},
        )
        own = parse_model(SearchConfig, {"space": SPACE}, "test")
        made = space_of(own)
        assert cost_of(made, base, counted(log, "training"))(result.choice) <= 0.7
        assert all(
            line["mean_cost"] is None or line["mean_cost"] <= 0.7
            for line in lines(tmp_path / f"out-{samples}")
        )


@pytest.mark.soak
def test_a_fraction_of_passes_goes_on_with_the_same_weights(log, tmp_path):
    result = search(log, tmp_path / "out", controller={"passes": 1.4})
    rows = len(draw_examples())
    assert 1.4 * rows <= result.examples < 1.4 * rows + 64
    first, second = (last_arrays(tmp_path / "out" / f"pass-{number}") for number in (1, 2))
    # AdaGrad's sums only grow.
    for name, array in second.items():
        if "accumulator/quality" in name:
            assert (array >= first[name]).all() and (array > first[name]).any()
    assert search(log, tmp_path / "out", controller={"passes": 1.4}) == result


@pytest.mark.soak
def test_killed_and_repeated_it_ends_in_the_same_bits(log, tmp_path):
    whole = search(log, tmp_path / "whole", controller={"passes": 1.3})
    context = multiprocessing.get_context("spawn")
    for at in (13, 14):
        process = context.Process(target=killed, args=(log, tmp_path / "killed", at))
        process.start()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "killed" / "pass-1" / "checkpoints").exists()
    assert search(log, tmp_path / "killed", controller={"passes": 1.3}) == whole
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    for number in (1, 2):
        found, expected = (last_arrays(tmp_path / one / f"pass-{number}") for one in ("killed", "whole"))
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize(
    ("space", "changes", "words"),
    [
        (SPACE, {"optimizer": {"dense": {"shampoo": {"block_size": 64}}}}, "AdaGrad, not by Shampoo"),
        (SPACE, {"optimizer": {"dense": {"rule": "adafactor"}}}, "AdaGrad, not by Shampoo"),
        (SPACE, {"optimizer": {"embeddings": {"rule": "one_sided"}}}, "embeddings.rule is one_sided"),
        (SPACE, {"model": {"ensemble": {"components": 2}}}, "ensemble.components"),
    ],
)
def test_what_masks_cannot_be_is_refused_in_one_line(log, tmp_path, space, changes, words):
    with pytest.raises(InputError, match=words) as caught:
        search(log, tmp_path / "out", space, changes)
    assert "\n" not in str(caught.value)


def test_a_target_that_no_candidate_keeps_to_is_refused(log, tmp_path):
    with pytest.raises(InputError, match="no candidate was found"):
        search(log, tmp_path / "out", target=0.01, controller={"mode": "rejection"})


@pytest.mark.parametrize(
    ("extremes", "space", "drawn", "values"),
    [
        ("none", SPACE, 2, []),
        ("largest", SPACE, 2, [8]),
        ("sandwich", SPACE, 2, [8, 3]),
        # Several of the same would only round otherwise.
        ("sandwich", {"model.deep.units.0": [8]}, 1, []),
    ],
)
def test_who_learns_from_every_batch(extremes, space, drawn, values):
    controller = {"extremes": extremes, "learners": 2}
    config = parse_model(SearchConfig, {"space": space, "controller": controller}, "test")
    made = space_of(config)
    plan = Plan(config, made, parse_model(TrainConfig, BASE, "test"), None, 100, Path("records"))
    assert plan.drawn == drawn
    assert [made.values(choice)["model.deep.units.0"] for choice in plan.always] == values


@pytest.mark.parametrize(
    ("given", "examples", "rate"),
    [(None, 10**8, 0.0048), (None, 100_000, 20 / 750), (None, 100, 0.1), (0.3, 100_000, 0.3)],
)
def test_the_rate_of_the_controller_is_the_published_one_unless_steps_are_few(given, examples, rate):
    config = parse_model(SearchConfig, {"space": SPACE, "controller": {"learning_rate": given}}, "test")
    base = parse_model(TrainConfig, {"batch": {"rows": 100}}, "test")
    plan = Plan(config, None, base, None, examples, Path("records"))
    assert plan.controller_rate == pytest.approx(rate)
