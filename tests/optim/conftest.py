"""What tests of several optimizers share."""

import keras
import pytest
import tensorflow as tf

from ctr.optim.protocol import RowGradient
from ctr.optim.rows.adagrad import RowAdaGrad
from ctr.optim.rows.rule import RowSetup


@pytest.fixture
def update():
    """A step of AdaGrad on rows as they are."""

    def update(table, accumulator, rows, gradient, rate, limit=None):
        rows, gradient = tf.convert_to_tensor(rows), tf.convert_to_tensor(gradient)
        given = RowGradient(rows, tf.gather(table, rows), (tf.gather(accumulator, rows),), gradient)
        values, (sums,) = RowAdaGrad(RowSetup([rate], limit=limit)).step(0, given, rate)
        table.scatter_update(tf.IndexedSlices(values, rows))
        accumulator.scatter_update(tf.IndexedSlices(sums, rows))

    return update


@pytest.fixture
def float64():
    """Keras would round inputs to float32 on their way into a model."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
