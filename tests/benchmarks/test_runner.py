"""The runner: turns, statistics against closed forms and SciPy, what is kept, tables, and the command line."""

import math

import numpy as np
import pytest
import runner
from scipy import stats


def test_arms_take_turns_and_the_first_round_does_not_count():
    order: list[str] = []

    def arm(name):
        def turn():
            order.append(name)
            return {"ms": float(len(order))}

        return turn

    turns = runner.take_turns({name: arm(name) for name in "abc"}, 2)
    # Backwards, forwards, backwards: nobody always comes after the same one.
    assert "".join(order) == "cbaabccba"
    assert turns == {"a": [{"ms": 4}, {"ms": 9}], "b": [{"ms": 5}, {"ms": 8}], "c": [{"ms": 6}, {"ms": 7}]}
    assert runner.take_turns({"a": arm("a")}, 1, warm=0)["a"] == [{"ms": 10}]


def test_the_interval_of_a_ratio_is_students_of_the_paired_logarithms():
    random = np.random.default_rng(0)
    base = random.lognormal(0, 0.5, 9)
    times = base * random.lognormal(0.1, 0.05, 9)
    result = runner.ratio(times.tolist(), base.tolist())
    paired = stats.ttest_rel(np.log(times), np.log(base)).confidence_interval(0.95)
    assert result["ratio"] == pytest.approx(stats.gmean(times / base))
    assert (result["low"], result["high"]) == pytest.approx((math.exp(paired.low), math.exp(paired.high)))
    # A round that is slow for all changes no ratio; one round has no interval, and 0 no ratio.
    turns = {"a": [{"ms": 2.0, "waited": 0.0}], "b": [{"ms": 3.0, "waited": 1.0}]}
    slow = {"a": [*turns["a"], {"ms": 20.0, "waited": 0.0}], "b": [*turns["b"], {"ms": 30.0, "waited": 1.0}]}
    assert runner.summarize(slow)["b"]["ms_ratio"] == pytest.approx({"ratio": 1.5, "low": 1.5, "high": 1.5})
    result = runner.summarize(turns)["b"]
    assert result["ms_ratio"] == {"ratio": pytest.approx(1.5), "low": None, "high": None}
    assert "waited_ratio" not in result
