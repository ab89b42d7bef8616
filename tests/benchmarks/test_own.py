"""Ratios of times that were taken by turns."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from benchmark_modules import imported


@pytest.fixture(scope="module")
def own() -> Iterator[ModuleType]:
    yield from imported("own")


def test_ratios_are_of_the_same_round(own):
    # Every round is slower than the one before; twice as slow is twice as slow.
    base, other = iter(range(1, 10)), iter(range(2, 20, 2))
    times = own.by_turns({"base": lambda: next(base), "other": lambda: next(other)}, "base", 4)
    assert times["base"]["step_ms"] == 3500
    assert times["base"]["ratio"] == 1
    assert times["other"] == {"step_ms": 7000, "ratio": 2, "ratio_q25": 2, "ratio_q75": 2}
