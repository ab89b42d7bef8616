import math
from collections.abc import Callable
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from ctr.eval.logistic import row_logloss, sigmoid
from ctr.eval.logloss import Logloss
from ctr.eval.rows import scored_rows
from ctr.eval.states import query_bucket

getcontext().prec = 40


def exact_loss(label: int, logit: float) -> Decimal:
    """log(1 + exp(z)) in forty digits."""
    z = Decimal(-logit if label else logit)
    return (1 + z.exp()).ln() if z < 100 else z + (-z).exp()


def stream(columns: Any) -> Logloss:
    metric = Logloss()
    metric.update(scored_rows(*columns))
    return metric


@pytest.mark.parametrize("logit", [0.0, 1e-9, 0.3, -2.5, 20.0, 36.0, -40.0, 99.0, 709.0, -745.0, 1e4, -1e4])
@pytest.mark.parametrize("label", [0, 1])
def test_loss_and_probability_of_one_row(label: int, logit: float) -> None:
    loss = row_logloss(np.array([label == 1]), np.array([logit]))[0]
    assert loss == pytest.approx(float(exact_loss(label, logit)), rel=1e-15)
    probability = float(1 / (1 + Decimal(-logit).exp()))
    assert sigmoid(logit) == pytest.approx(probability, rel=4e-16, abs=5e-324)


def test_agrees_with_a_plain_sum_at_every_prefix(make_log: Callable[..., Any]) -> None:
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


def test_agrees_with_sklearn(make_log: Callable[..., Any]) -> None:
    log = make_log(1, queries=500)
    expected = log_loss(log.label, sigmoid(log.logit), sample_weight=log.weight)
    assert stream(log.columns()).result() == pytest.approx(expected, rel=1e-12)


def test_normalized_entropy_of_the_base_rate_is_one() -> None:
    label = np.arange(50) < 3
    metric = stream((label, np.full(50, math.log(3 / 47)), np.ones(50), np.arange(50)))
    assert metric.normalized_entropy() == pytest.approx(1.0, rel=1e-14)


def test_normalized_entropy_survives_a_class_of_vanishing_weight() -> None:
    metric = stream(([0, 1], [0.0, 0.0], [1e20, 1.0], [1, 2]))
    rate = 1e-20
    expected = math.log(2) / (rate * math.log(1 / rate) + rate)
    assert metric.normalized_entropy() == pytest.approx(expected, rel=1e-12)
    swapped = stream(([1, 0], [0.0, 0.0], [1e20, 1.0], [1, 2]))
    assert swapped.normalized_entropy() == metric.normalized_entropy()


def test_logloss_is_nan_without_weight_and_entropy_with_one_class() -> None:
    for columns in (([], [], [], []), ([1], [0.0], [0.0], [1])):
        metric = stream(columns)
        assert math.isnan(metric.result()) and math.isnan(metric.normalized_entropy())
    metric = stream(([1], [0.0], [2.0], [1]))
    assert metric.result() == pytest.approx(math.log(2))
    assert math.isnan(metric.normalized_entropy())
    assert np.isnan(metric.estimate().interval()).all()


def test_replicates_leave_out_one_bucket_each(make_log: Callable[..., Any]) -> None:
    log = make_log(3)
    metric, own = stream(log.columns()), query_bucket(log.query_id)
    for bucket in np.unique(own)[:5]:
        without = stream((log.label, log.logit, log.weight * (own != bucket), log.query_id))
        assert metric.estimate().replicates[bucket] == pytest.approx(without.result(), rel=1e-12)
        entropy = metric.normalized_entropy_estimate().replicates[bucket]
        assert entropy == pytest.approx(without.normalized_entropy(), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(-50, 50), st.integers(0, 4)), min_size=1, max_size=30))
def test_a_whole_weight_counts_as_copies(rows: list[tuple[bool, float, int]]) -> None:
    label, logit, weight = (np.array(column) for column in zip(*rows, strict=True))
    copied = [np.repeat(column, weight) for column in (label, logit)]
    whole = stream((label, logit, weight, np.zeros(len(label), int)))
    copies = stream((*copied, np.ones(weight.sum()), np.zeros(weight.sum(), int)))
    np.testing.assert_allclose(whole.result(), copies.result(), rtol=1e-12)
    np.testing.assert_allclose(whole.normalized_entropy(), copies.normalized_entropy(), rtol=1e-12)
