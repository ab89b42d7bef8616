"""Shampoo's share of a direction, step by step; its sizes are in test_reference.py."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.grafting import blend_weight


@pytest.mark.parametrize(
    ("start", "blend", "shares"),
    [
        (None, 3, {1: 0, 10**9: 0}),
        (0, 0, {1: 1}),
        (25, 0, {1: 0, 24: 0, 25: 1, 26: 1}),
        (25, 3, {24: 0, 25: 0.25, 26: 0.5, 27: 0.75, 28: 1, 29: 1}),
    ],
)
def test_shampoos_share_by_step(start, blend, shares):
    options = reference.small(start_preconditioning_step=start)
    found = {
        step: float(blend_weight(options, blend, tf.constant(step, tf.int64), tf.float32)) for step in shares
    }
    assert found == shares


@pytest.mark.parametrize("norm", ["tensor", "block"])
def test_nothing_and_a_block_of_nothing_have_no_norm_to_normalize_by(norm):
    shapes = [(7, 5), (3,)]
    grafting = {"norm": norm, "normalized": True, "initial_accumulator": 0.01}
    options = reference.small(grafting=grafting, start_preconditioning_step=2)
    start, history = reference.initial(shapes), reference.drifting(shapes, 5)
    history[0] = [np.zeros(shape) for shape in shapes]
    history[3][0][:4, :3] = 0.0
    expected = reference.replay(options, start, history, 0.1)[0]
    found = reference.train(reference.make_core(options, start), history, 0.1)
    for weights, others in zip(found, expected, strict=True):
        for weight, other in zip(weights, others, strict=True):
            np.testing.assert_allclose(weight, other, rtol=0, atol=1e-9)
