import math
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest

from ctr.eval.arrays import row_logloss, sigmoid
from ctr.eval.display import nothing_learned
from ctr.eval.logloss import Logloss
from ctr.eval.rows import scored_rows

getcontext().prec = 40


def exact_loss(label: int, logit: float) -> Decimal:
    """log(1 + exp(z)) in forty digits."""
    z = Decimal(-logit if label else logit)
    return (1 + z.exp()).ln() if z < 100 else z + (-z).exp()


def stream(columns: Any) -> Logloss:
    metric = Logloss()
    metric.update(scored_rows(*columns))
    return metric


def test_loss_and_probability_of_one_row():
    logits = np.array([0.0, 1e-9, 0.3, -2.5, 20.0, 36.0, -40.0, 99.0, 709.0, -745.0, 1e4, -1e4])
    for label in (0, 1):
        exact = [float(exact_loss(label, logit)) for logit in logits]
        found = row_logloss(np.full(12, label == 1), logits)
        np.testing.assert_allclose(found, exact, rtol=1e-15, atol=1e-30)
    exact = [float(1 / (1 + Decimal(-logit).exp())) for logit in logits]
    np.testing.assert_allclose(sigmoid(logits), exact, rtol=4e-16, atol=5e-324)


def test_agrees_with_a_plain_sum_at_every_prefix(make_log):
    metric = Logloss()
    rows: list[tuple[Any, ...]] = []
    for batch in make_log(0).batches(queries=4):
        metric.update(scored_rows(*batch.columns()))
        rows += zip(*batch.columns(), strict=True)
        weight = math.fsum(row[2] for row in rows)
        loss = math.fsum(row[2] * float(exact_loss(row[0], row[1])) for row in rows) / weight
        rate = math.fsum(row[2] * row[0] for row in rows) / weight
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        assert metric.result() == pytest.approx(loss, rel=1e-13)
        assert metric.normalized_entropy() == pytest.approx(loss / entropy, rel=1e-13)


def test_normalized_entropy_of_the_base_rate_is_one():
    label = np.arange(50) < 3
    metric = stream((label, np.full(50, math.log(3 / 47)), np.ones(50), np.arange(50)))
    assert metric.normalized_entropy() == pytest.approx(1.0, rel=1e-14)
    # Also with a class of vanishing weight.
    metric = stream(([0, 1], [0.0, 0.0], [1e20, 1.0], [1, 2]))
    rate = 1e-20
    expected = math.log(2) / (rate * math.log(1 / rate) + rate)
    assert metric.normalized_entropy() == pytest.approx(expected, rel=1e-12)
    swapped = stream(([1, 0], [0.0, 0.0], [1e20, 1.0], [1, 2]))
    assert swapped.normalized_entropy() == metric.normalized_entropy()


def test_what_is_no_better_than_the_base_rate_has_learned_nothing():
    # An interval decides where there is one.
    for value, interval, words in (
        (0.99, [0.95, 1.03], "nothing was learned beyond the base rate (normalized entropy 0.99"),
        (0.99, [0.98, 0.999], ""),
        (1.2, [1.1, 1.3], "worse than the base rate alone (normalized entropy 1.2"),
        (1.2, [None, None], "worse than the base rate alone"),
        (0.8, [None, None], ""),
        (None, [None, None], ""),
    ):
        found = nothing_learned({"normalized_entropy": value, "normalized_entropy_ci95": interval})
        assert words in found and bool(found) == bool(words)
