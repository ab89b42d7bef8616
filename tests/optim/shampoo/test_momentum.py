"""Momentum of directions where the learning rate changes, against PT's equations."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.options import ShampooOptions

# A warmup, two falls, a rise beyond the largest one, a fall.
RATES = [0.02, 0.05, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.2, 0.2, 0.1, 0.04]
MU = 0.8


def trained(history, rates, dtype=tf.float64, **changed):
    options = ShampooOptions(momentum=MU, start_preconditioning_step=None, grafting="sgd", **changed)
    core = reference.make_core(options, [np.ones(5)], dtype)
    found = []
    for gradient, rate in zip(history, rates, strict=True):
        core.update([tf.constant(gradient, dtype)], tf.constant(rate, dtype))
        found.append(core.weights[0].numpy())
    return np.array(found)


def replay(history, rates, mus, nesterov):
    """PT eq. 31-34: m = mu_t m + p and w -= a m; Nesterov's m = mu_t-1 m + p and w -= a (mu_t m + p)."""
    w, m, found, last = np.ones(5), np.zeros(5), [], 0.0
    for gradient, rate, mu in zip(history, rates, mus, strict=True):
        m = (last if nesterov else mu) * m + gradient
        # (1 - mu) of it, so that a rate is one for any mu.
        w = w - rate * (1 - MU) * (mu * m + gradient if nesterov else m)
        last = mu
        found.append(w)
    return np.array(found)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("follows", [False, True])
def test_momentum_falls_with_the_rate_if_asked_to(nesterov, follows):
    history = np.random.default_rng(0).normal(size=(len(RATES), 5))
    # mu_t = zeta mu_t-1 where the rate falls to zeta of what it was, or comes back; never above mu.
    mus = [MU, MU, MU, MU, MU / 2, MU / 2, MU / 4, MU / 4, MU, MU, MU / 2, MU / 5] if follows else [MU] * 12
    found = trained(history, RATES, nesterov=nesterov, momentum_follows_rate=follows)
    np.testing.assert_allclose(found, replay(history, RATES, mus, nesterov), rtol=1e-12)


def test_a_rate_of_zero_moves_nothing_and_harms_nothing():
    history = np.random.default_rng(2).normal(size=(3, 5))
    found = trained(history, [0.0, 0.1, 0.0], momentum_follows_rate=True)
    np.testing.assert_array_equal(found[0], np.ones(5))
    np.testing.assert_array_equal(found[2], found[1])
    assert np.isfinite(found).all() and (found[1] != 1).all()


@pytest.mark.parametrize("order", ["after", "before"])
def test_every_average_of_directions_follows(order):
    """Down to a rate of nearly zero: then nothing is left of earlier directions, and the step is (1 - mu) of one."""
    shapes = [(4, 3), (3,)]
    history = reference.drifting(shapes, 9)
    options = reference.options(momentum=MU, momentum_follows_rate=True, roots={"asynchronous": False})
    core = reference.make_core(options.changed({"grafting": {"momentum": order}}), reference.initial(shapes))
    for gradients in history[:8]:
        core.update([tf.constant(g) for g in gradients], 1.0)
    kept = {name for name in core.variables if name.endswith("momentum")}
    assert len(kept) == (2 if order == "after" else 3)
    core.update([tf.constant(g) for g in history[8]], 1e-30)
    plain = reference.make_core(options.changed({"grafting": {"momentum": order}}), reference.initial(shapes))
    reference.restore(plain, reference.state_of(core))
    for name in kept:
        # Of what went on before, nothing.
        before = core.variables[name].numpy()
        plain.variables[name].assign(tf.zeros_like(plain.variables[name]))
        assert np.abs(before).max() > 0
    for one in (core, plain):
        one.update([tf.constant(g) for g in history[8]], 1e-30)
    for name in kept:
        np.testing.assert_allclose(core.variables[name], plain.variables[name], rtol=1e-12)
