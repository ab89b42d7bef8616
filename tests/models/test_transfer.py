"""The transfer functions against NumPy; what is learned never falls."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.models.architecture import Architecture, Factors
from ctr.models.initial_weights import init_weights
from ctr.models.transfer import transfer, transfer_pieces


def fresh(pieces, reach, prior=0.5):
    """A factorization, and the weights of its transfer function."""
    factors = Factors(2, (), pieces, reach)
    shape = Architecture(0, 0, (2,), prior=prior, factors=factors)
    return factors, init_weights(shape, {"quality": 3, "ui": 3}, seed=0)


@pytest.mark.parametrize("pieces", [0, 6])
def test_at_the_start_it_adds_the_prior(pieces):
    s = np.array([-50.0, -1.3, 0.0, 0.4, 2.0, 50.0], np.float32)
    found = transfer(*fresh(pieces, 2.0, prior=0.1), tf.constant(s))
    np.testing.assert_allclose(found, s + np.log(0.1 / 0.9), rtol=1e-5, atol=1e-5)


@given(
    slopes=st.lists(st.floats(-20, 20), min_size=2, max_size=9),
    s=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=20),
)
@settings(deadline=None, max_examples=50)
def test_pieces_against_the_integral_of_the_slope(slopes, s):
    factors = Factors(2, (), len(slopes), 4.0)
    weights = {"transfer_slopes": tf.constant(slopes), "transfer_bias": tf.constant(0.25)}
    joints = np.linspace(-4, 4, len(slopes) - 1) if len(slopes) > 2 else np.zeros(1)
    steps = np.logaddexp(0, np.array(slopes))

    def integral(end):
        # From 0 to the end, piece by piece.
        low, high = min(0, end), max(0, end)
        edges = np.concatenate([[-np.inf], joints, [np.inf]])
        total = sum(
            step * max(0, min(high, right) - max(low, left))
            for step, left, right in zip(steps, edges, edges[1:], strict=False)
        )
        return 0.25 + (total if end > 0 else -total)

    s = sorted(s)
    found = transfer(factors, weights, tf.constant(s, tf.float32)).numpy()
    np.testing.assert_allclose(found, [integral(end) for end in s], rtol=1e-4, atol=1e-4)
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("s", [-1.0, 0.0, 0.3, 1.0])
def test_at_a_joint_too_one_piece_tells_the_slope(s):
    product = tf.constant([s])
    with tf.GradientTape() as tape:
        tape.watch(product)
        logit = transfer(*fresh(4, 1.0), product)
    assert float(tape.gradient(logit, product)[0]) == pytest.approx(1)


def test_the_joint_of_two_pieces_is_at_0():
    assert transfer_pieces(*fresh(2, 6.0)).joints.tolist() == [0]
    assert transfer_pieces(*fresh(0, 6.0)).slopes.tolist() == [1]
