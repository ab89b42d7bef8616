"""KL-Shampoo's statistics over many steps: factors of a Kronecker product are found, whatever the shape of a block."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference


def trained(shape, steps, draw, **changed):
    settings = {"block_size": 64, "beta2": 0.95, "precondition_frequency": 1, "start_preconditioning_step": 1}
    options = reference.options(
        **settings | {"factor_update": "kl", "asynchronous": False, "exponent_override": 2} | changed
    )
    core = reference.make_core(options, [np.zeros(shape)])
    step = tf.function(lambda gradient: core.update([gradient], tf.constant(0.0, tf.float64)))
    for number in range(steps):
        step(tf.constant(draw(number)))
    assert core.report()["failed"] == 0 < core.report()["layers_ready"]
    return [np.linalg.inv(root.numpy()[0] @ root.numpy()[0]) for root in core.exchanged.roots]


@pytest.mark.soak
def test_averages_of_a_block_that_is_no_square_stay_where_they_are_for_a_thousand_steps():
    rng = np.random.default_rng(0)
    left, right = (np.diag(np.geomspace(1.0, 10.0, size)) for size in (48, 8))
    factors = trained((48, 8), 1000, lambda _: left @ rng.normal(size=(48, 8)) @ right, beta2=0.9)
    sizes = [np.trace(factor) / len(factor) for factor in factors]
    # The mean square of an element of the gradient is that of L times that of R.
    expected = np.mean(np.diag(left) ** 2) * np.mean(np.diag(right) ** 2)
    assert sizes[0] * sizes[1] == pytest.approx(expected, rel=0.2)
    assert 0.5 < sizes[0] / sizes[1] < 2


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("shape", [(6, 2), (2, 3, 4)])
def test_the_factors_are_those_that_the_gradients_are_drawn_from(shape):
    rng = np.random.default_rng(1)
    roots = [np.linalg.cholesky(a @ a.T + np.eye(len(a))) for a in (rng.normal(size=(n, n)) for n in shape)]

    def draw(_):
        found = rng.normal(size=shape)
        for axis, root in enumerate(roots):
            found = np.moveaxis(np.tensordot(root, found, axes=(1, axis)), 0, axis)
        return found

    factors = trained(shape, 600, draw, beta2=0.99)
    kron, expected = np.ones((1, 1)), np.ones((1, 1))
    for factor, root in zip(factors, roots, strict=True):
        kron, expected = np.kron(kron, factor), np.kron(expected, root @ root.T)
    assert np.linalg.norm(kron - expected) < 0.2 * np.linalg.norm(expected)
