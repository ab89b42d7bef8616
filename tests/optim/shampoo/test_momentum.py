"""Momentum of directions against PT's equations."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.options import ShampooOptions

# A warmup, two falls, a rise beyond the largest one, a fall.
RATES = [0.02, 0.05, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.2, 0.2, 0.1, 0.04]
MU = 0.8


def replay(history, nesterov):
    """PT eq. 31-34: m = mu m + p, and w -= a m, or in Nesterov's form w -= a (mu m + p)."""
    w, m, found = np.ones(5), np.zeros(5), []
    for gradient, rate in zip(history, RATES, strict=True):
        m = MU * m + gradient
        # (1 - mu) of it, so that a rate is one for any mu.
        w = w - rate * (1 - MU) * (MU * m + gradient if nesterov else m)
        found.append(w)
    return np.array(found)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_the_equations_whatever_the_rate_does(nesterov):
    history = np.random.default_rng(0).normal(size=(len(RATES), 5))
    options = ShampooOptions(momentum=MU, nesterov=nesterov, start_preconditioning_step=None, grafting="sgd")
    core = reference.make_core(options, [np.ones(5)])
    found = []
    for gradient, rate in zip(history, RATES, strict=True):
        core.update([tf.constant(gradient)], tf.constant(rate, tf.float64))
        found.append(core.weights[0].numpy())
    np.testing.assert_allclose(found, replay(history, nesterov), rtol=1e-12)
