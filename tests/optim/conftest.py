"""What tests of the rows' optimizer share."""

import pytest
import tensorflow as tf

from ctr.optim.adagrad import update_rows


@pytest.fixture
def update():
    """``update_rows`` on rows as they are."""

    def update(table, accumulator, rows, gradient, rate, limit=None):
        rows, gradient = tf.convert_to_tensor(rows), tf.convert_to_tensor(gradient)
        own = tf.gather(table, rows), tf.gather(accumulator, rows)
        update_rows(table, accumulator, rows, *own, gradient, rate, limit)

    return update
