"""Ramps at and around their ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ctr.objective.config import RankingConfig
from ctr.objective.ramps import Ramp


@pytest.mark.parametrize(
    ("start", "length", "examples", "weight"),
    [
        (0, 0, 0, 1.0),
        (0, 0, 10**12, 1.0),
        (100, 0, 99, 0.0),
        (100, 0, 100, 1.0),
        (0, 200, 0, 0.0),
        (0, 200, 1, 0.005),
        (0, 200, 50, 0.25),
        (0, 200, 200, 1.0),
        (100, 200, 100, 0.0),
        (100, 200, 250, 0.75),
        (100, 200, 299, 0.995),
        (100, 200, 300, 1.0),
        (100, 200, 10**12, 1.0),
    ],
)
def test_a_ramp_rises_linearly_from_its_start_over_its_length(start, length, examples, weight):
    assert Ramp(start, start + length).at(examples) == pytest.approx(weight)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3000))
def test_a_ramp_never_falls_nor_leaves_0_to_1(start, length, examples):
    ramp = Ramp(start, start + length)
    assert 0 <= ramp.at(examples) <= ramp.at(examples + 1) <= 1


@pytest.mark.parametrize(("given", "ramp"), [(7, (0, 7)), ([5, 7], (5, 7)), ([5, 5], (5, 5)), (0, (0, 0))])
def test_a_number_is_the_end_of_a_ramp_that_starts_at_once(given, ramp):
    config = RankingConfig(ramp=given)
    assert config.ramp == Ramp(*ramp) and config.model_dump(mode="json")["ramp"] == list(ramp)
    assert RankingConfig(**config.model_dump(mode="json")) == config


@pytest.mark.parametrize("fault", [-1, [-1, 2], [3, 2], [1], [1, 2, 3], 1.5, True, "7", None, {"length": 3}])
def test_impossible_ramps_are_refused(fault):
    with pytest.raises(ValidationError, match="the number of examples over which"):
        RankingConfig(ramp=fault)
