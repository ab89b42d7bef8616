"""Ramps at and around their ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

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
    assert Ramp(start=start, length=length).at(examples) == pytest.approx(weight)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3000))
def test_a_ramp_never_falls_nor_leaves_0_to_1(start, length, examples):
    ramp = Ramp(start=start, length=length)
    assert 0 <= ramp.at(examples) <= ramp.at(examples + 1) <= 1


@pytest.mark.parametrize("fault", [{"start": -1}, {"length": -1}, {"end": 3}])
def test_impossible_ramps_are_refused(fault):
    with pytest.raises(ValidationError):
        Ramp(**fault)
