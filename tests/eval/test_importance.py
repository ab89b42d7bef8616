"""Importance of features from sums by query bucket."""

import math

import numpy as np
import pytest

from ctr.eval.importance import importance_of
from ctr.eval.intervals import student_t_quantile


def arrays_of(positions: int = 3, **increases: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    weight = rng.uniform(1, 2, (positions, 256))
    return {
        "position": np.arange(positions),
        "rows": np.full(positions, 300),
        "weight": weight,
        "loss": weight * rng.uniform(0.2, 0.4, weight.shape),
        **{name.replace("_", "/"): array for name, array in increases.items()},
    }


def test_it_is_a_mean_over_all_positions_with_an_interval_over_queries():
    rng = np.random.default_rng(2)
    one, other = rng.normal(0.02, 0.01, (3, 256)), rng.normal(0.0, 0.01, (3, 256))
    arrays = arrays_of(shared_user=other, shuffled_item=one, shared_worse=-one)
    found = importance_of(arrays)
    assert (found.rows, found.positions) == (900, 3)
    assert [one.name for one in found.features] == ["item", "user", "worse"]
    item, user, worse = found.features
    assert item.is_shuffled and not user.is_shuffled
    assert (item.verdict, user.verdict, worse.verdict) == ("yes", "no", "yes, below")
    assert [one.matters for one in found.features] == [True, False, False]
    sums, weight = one.sum(axis=0), arrays["weight"].sum(axis=0)
    left = [(sums.sum() - sums[k]) / (weight.sum() - weight[k]) for k in range(256)]
    spread = math.sqrt(255 / 256 * sum((value - np.mean(left)) ** 2 for value in left))
    assert item.increase.value == pytest.approx(sums.sum() / weight.sum(), rel=1e-12)
    half = (item.increase.high - item.increase.low) / 2
    # Degrees of freedom are nearly all of 255.
    assert student_t_quantile(255) * spread <= half < 1.02 * student_t_quantile(255) * spread
    assert item.share.value == pytest.approx(sums.sum() / arrays["loss"].sum(), rel=1e-12)


def test_what_is_no_importance_is_refused_and_rows_without_weight_tell_nothing():
    good = np.zeros((3, 256))
    for wrong in ({"shared_user": good[:2]}, {"shared_user": good + np.nan}, {"other_user": good}):
        with pytest.raises(ValueError, match="user"):
            importance_of(arrays_of(**wrong))
    with pytest.raises(KeyError):
        importance_of({"position": np.zeros(1)})
    nothing = arrays_of(shared_user=good) | {"weight": good, "loss": good}
    assert importance_of(nothing).features == ()
