"""AdaGrad where there is nothing to divide by; its steps are in tests/optim/test_gradients_of_rows.py."""

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import RowGradient
from ctr.optim.rows.adagrad import RowAdaGrad
from ctr.optim.rows.rule import RowSetup


def test_padding_alone_changes_nothing_even_without_an_accumulator():
    values = tf.constant([[2.0, 3.0], [1.0, -0.0]])
    before = RowGradient(tf.constant([1, 0]), values, (tf.zeros([2, 2]),), tf.zeros([2, 2]))
    after, (sums,) = RowAdaGrad(RowSetup([0.1])).step(0, before, 0.1)
    assert after.numpy().tobytes() == values.numpy().tobytes()
    assert not np.any(sums)
