"""Shampoo's directions at the step sizes of first-order optimizers."""

import pytest
import tensorflow as tf

from ctr.optim.shampoo.grafting import blend_weight
from ctr.optim.shampoo.options import ShampooOptions


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
    options = ShampooOptions(start_preconditioning_step=start)
    found = {
        step: float(blend_weight(options, blend, tf.constant(step, tf.int64), tf.float32)) for step in shares
    }
    assert found == shares
