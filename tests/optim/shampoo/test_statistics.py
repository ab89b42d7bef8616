"""Statistics: decay, and sums that never stop growing."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.statistics import Statistics
from ctr.optim.shampoo.triangles import pack, unpack_arrays
from ctr.optim.variables import Variables, create_variable


def collector(beta2=1.0, shape=(3, 3), dtype=tf.float64, **statistics):
    """The statistics of one block of a matrix."""
    options = ShampooOptions(block_size=8, beta2=beta2, statistics=statistics)
    return Statistics(options, lay_out(options, [shape]), Variables(create_variable, dtype))


@pytest.mark.parametrize("beta2", [1.0, 0.75])
def test_windows_folded_now_and_then_are_one_long_sum_or_average(beta2):
    rng = np.random.default_rng(0)
    found = collector(beta2)
    expected, folded = np.zeros((2, 3, 3)), np.zeros((2, 3, 3))
    for t in range(1, 20):
        products = rng.normal(size=(2, 3, 3))
        products = products + np.swapaxes(products, 1, 2)
        found.add(dict(enumerate(tf.constant(products)[:, tf.newaxis])), 1.0)
        expected = expected + products if beta2 == 1 else beta2 * expected + (1 - beta2) * products
        if t in (1, 5, 6, 19):
            change = found.fold()
            totals = [unpack_arrays(total.numpy(), 3)[0] for total in found.totals]
            np.testing.assert_allclose(totals, expected, rtol=1e-12)
            np.testing.assert_allclose(change, np.linalg.norm(expected - folded, axis=(1, 2)), rtol=1e-12)
            folded = expected
            assert not any(window.numpy().any() for window in found.windows)
            assert (int(found.collections), int(found.window_collections)) == (t, 0)


def test_the_longest_window_counts_every_increment():
    # A window ends after 100,000 collections at the latest: float32 counts to 2^24.
    found = collector(shape=(2, 2), dtype=tf.float32)
    one = {0: tf.eye(2, batch_shape=[1])}
    for _ in range(3):
        found.windows[0].assign(pack(one[0] * 99_999))
        found.add(one, 1.0)
        found.fold()
    total = unpack_arrays(found.totals[0].numpy(), 2)[0]
    assert total[0, 0] == total[1, 1] == 300_000
