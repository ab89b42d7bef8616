"""Predictions that are no better than the base rate are said to have learned nothing."""

import numpy as np
import pytest

from ctr.eval.base_rate import nothing_learned
from ctr.eval.progressive import ProgressiveMetrics


def summary_of(strength: float, noise: float, rows: int = 4000) -> dict:
    """Metrics of logits that follow the true ones by ``strength``, with noise of their own."""
    rng = np.random.default_rng(3)
    truth = rng.normal(0, 1.5, rows)
    logit = (strength * truth + noise * rng.normal(size=rows)).astype(np.float32)
    metrics = ProgressiveMetrics()
    label = (rng.random(rows) < 1 / (1 + np.exp(-truth))).astype(np.int8)
    metrics.update(label, logit, np.ones(rows, np.float32), np.arange(rows))
    return metrics.summary()


@pytest.mark.parametrize(
    ("strength", "noise", "words"),
    [
        (1, 0.1, ""),
        (-1, 0.1, "worse than the base rate alone (normalized entropy 1."),
        (0, 1, "worse than the base rate"),
        (0, 0.01, "told from the base rate alone (normalized entropy 1.0"),
    ],
)
def test_what_is_no_better_than_the_base_rate_has_learned_nothing(strength, noise, words):
    found = nothing_learned(summary_of(strength, noise))
    assert bool(found) == bool(words)
    assert words in found


@pytest.mark.parametrize(
    ("value", "interval", "is_nothing"),
    [
        (0.99, [0.95, 1.03], True),
        (0.99, [0.98, 0.999], False),
        (1.2, [None, None], True),
        (0.8, [None, None], False),
        (None, [None, None], False),
    ],
)
def test_an_interval_decides_where_there_is_one(value, interval, is_nothing):
    found = nothing_learned({"normalized_entropy": value, "normalized_entropy_ci95": interval})
    assert bool(found) == is_nothing
