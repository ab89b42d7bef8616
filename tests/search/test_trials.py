"""Successive halving against a list of all losses, drawn candidates, prefixes of a log, and the result judged."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError
from ctr.search.cost import cost_of
from ctr.search.problem import find_prefixes
from ctr.search.record import Rung, Tried
from ctr.search.space import Decision, Space
from ctr.search.trials import draw_candidates, halve
from ctr.training.config import TrainConfig


def rung_of(number: int, tried: list[Tried]) -> Rung:
    return Rung(folder=f"rungs/{number}", end=None, rows=1, tried=tried, kept=[])


def halved(losses: np.ndarray, eta: int) -> tuple[str, list[list[str]], list[list[str]]]:
    """The result of halving, who ran on each rung, and who went on; losses [rungs, candidates]."""
    candidates = [Tried(name=f"c{place}", values={}, cost=1.0) for place in range(losses.shape[1])]
    ran: list[list[str]] = []

    def run(number, contestants):
        ran.append([one.name for one in contestants])
        loss = {one.name: float(losses[number, int(one.name[1:])]) for one in contestants}
        tried = [
            Tried(name=name, values={}, cost=1.0, logloss=loss[name]) for name in sorted(loss, key=loss.get)
        ]
        # The baseline is measured with them, and is no candidate here.
        return rung_of(number, [Tried(name="baseline", values={}, cost=1.0, logloss=-1.0), *tried])

    rungs = halve(candidates, len(losses), eta, run)
    return rungs[-1].kept[0], ran, [rung.kept for rung in rungs]


@settings(max_examples=50)
@given(st.data())
def test_halving_keeps_the_best_of_each_rung(data):
    rungs, eta = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 4))
    count = data.draw(st.integers(1, 40))
    seed = data.draw(st.integers(0, 1000))
    losses = np.random.default_rng(seed).permuted(np.tile(np.arange(count), (rungs, 1)), axis=1).astype(float)
    result, ran, kept = halved(losses, eta)
    left = np.arange(count)
    for number in range(rungs):
        assert ran[number] == [f"c{place}" for place in left]
        # By brute force: how many of those that are left are better.
        better = [(losses[number, left] < losses[number, place]).sum() for place in left]
        places = max(1, len(left) // eta) if number < rungs - 1 else 1
        left = np.array([place for place, before in zip(left, better, strict=True) if before < places])
        assert set(kept[number]) == {f"c{place}" for place in left}
    assert result == f"c{left[0]}"


def test_failed_candidates_do_not_go_on():
    def run(number, contestants):
        tried = [Tried(name=one.name, values={}, cost=1.0, failure="it broke") for one in contestants]
        if number == 0:
            tried[1] = Tried(name="c1", values={}, cost=1.0, logloss=0.5)
        return rung_of(number, tried)

    candidates = [Tried(name=f"c{place}", values={}, cost=1.0) for place in range(6)]
    assert halve(candidates, 1, 2, run)[-1].kept == ["c1"]
    with pytest.raises(InputError, match="no candidate of the search could be trained: c1: it broke"):
        halve(candidates, 2, 2, run)


SPACE = Space(
    (
        Decision("model.deep.layers", (1, 2)),
        Decision("model.deep.units.0", (4, 8)),
        Decision("model.deep.units.1", (2, 4, 8)),
        Decision("model.crosses.layers", (0, 1, 2)),
    )
)
BASE = {"model": {"deep": {"units": [8, 4]}}}


def units_cost(config: TrainConfig) -> float:
    return float(sum(config.model.deep.units) + config.model.crosses.layers)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(0, 5), st.sampled_from([0.5, 0.75, 1.0, 2.0]))
def test_drawn_candidates_differ_and_keep_to_the_target(count, seed, target):
    cost = cost_of(SPACE, BASE, units_cost)
    drawn = draw_candidates(SPACE, BASE, cost, target, count, seed)
    configs = [SPACE.apply(BASE, choice) for choice in drawn]
    assert all(cost(choice) <= target for choice in drawn)
    unlike = {config.sha256() for config in configs}
    assert len(unlike) == len(drawn) and SPACE.apply_values(BASE, {}).sha256() not in unlike
    possible = {
        SPACE.apply(BASE, choice).sha256() for choice in SPACE.candidates() if cost(choice) <= target
    } - {SPACE.apply_values(BASE, {}).sha256()}
    assert len(drawn) == min(count, len(possible))
    assert drawn == draw_candidates(SPACE, BASE, cost, target, count, seed)
    # More of them are the same ones first.
    assert drawn == draw_candidates(SPACE, BASE, cost, target, count + 3, seed)[: len(drawn)]


def test_draws_of_large_spaces_are_spread_evenly():
    space = Space(tuple(Decision(f"features.f{place}", (True, False)) for place in range(70)))

    def free(choice):
        return 1.0

    drawn = draw_candidates(space, {}, free, 1.0, 200, 1)
    assert 0.45 < np.mean(drawn) < 0.55
    assert draw_candidates(space, {}, free, 1.0, 200, 2) != drawn


def times_of(log: Path, time_range: TimeRange) -> np.ndarray:
    blocks = read_selection(log, read_schema(log), read_manifests(log), Selection(time_range=time_range))
    return np.concatenate([np.zeros(0, np.int64), *(block.query_time for block in blocks)])


@pytest.mark.parametrize(
    "given_range", [{}, {"start": "1970-01-01T00:00:00.050", "end": "1970-01-01T00:00:00.200"}]
)
def test_a_prefix_has_whole_queries_and_its_share_of_the_rows(log, given_range):
    time_range = TimeRange.model_validate(given_range)
    times = times_of(log, time_range)
    shares = [0.1, 0.25, 0.5, 1.0]
    for share, prefix in zip(shares, find_prefixes(log, time_range, shares), strict=True):
        read = times_of(
            log, TimeRange.model_validate({**given_range, **({"end": prefix.end} if prefix.end else {})})
        )
        assert len(read) == prefix.rows
        # At most one query, of ten rows, is missing.
        assert share * len(times) - 10 <= prefix.rows <= share * len(times)
        if prefix.end_us is not None:
            assert (read < prefix.end_us).all() and prefix.end_us in times


def test_a_prefix_without_rows_is_refused(log):
    late = TimeRange.model_validate({"start": "2030-01-01"})
    with pytest.raises(InputError, match="no rows in the time range"):
        find_prefixes(log, late, [0.5])
