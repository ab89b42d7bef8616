"""Decay, momentum and clipping by hand."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.first_order import momentum
from ctr.optim.first_order.options import AdaGrad
from ctr.optim.gradients import clip_by_global_norm
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions


def test_decay_is_added_to_the_direction_and_not_to_the_gradient():
    found = momentum.add_weight_decay(tf.constant([1.0, 2.0]), tf.constant([10.0, -4.0]), 0.5)
    assert found.numpy().tolist() == [6, 0]
    # AdaGrad's second moments see nothing of it, and only those decay that are to.
    grafting = AdaGrad(initial_accumulator=0.0)
    options = ShampooOptions(start_preconditioning_step=None, weight_decay=0.5, grafting=grafting)
    core = ShampooCore(options, [tf.Variable([10.0], dtype=tf.float64) for _ in range(2)])
    core.update([tf.constant([3.0], tf.float64)] * 2, tf.constant(0.125, tf.float64), decayed=[True, False])
    assert [float(weight[0]) for weight in core.weights] == [10 - 0.125 * (1 + 5), 10 - 0.125]
    assert [float(core.variables[f"tensor{index}/accumulator"][0]) for index in range(2)] == [9, 9]


def test_clipping_scales_all_gradients_by_one_factor_and_keeps_their_kinds():
    rows = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([7]))
    clipped = clip_by_global_norm([tf.constant([3.0]), None, rows], 1.0)
    np.testing.assert_allclose(clipped[0], [0.6], rtol=1e-6)
    assert clipped[1] is None
    assert isinstance(clipped[2], tf.IndexedSlices) and clipped[2].indices.numpy().tolist() == [7]
    np.testing.assert_allclose(clipped[2].values, [[0.8]], rtol=1e-6)
    small = clip_by_global_norm([tf.constant([3.0]), tf.constant([4.0])], 5.5)
    assert [float(g[0]) for g in small] == pytest.approx([3.0, 4.0], rel=1e-6)
