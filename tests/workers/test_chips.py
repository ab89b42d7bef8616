"""The chips of a process, here a single one: their variables, and the steps that they make."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.workers.chips import Chips
from ctr.workers.row_variables import grow_rows, on_devices, row_count, set_rows


@pytest.fixture(scope="module")
def chips() -> Chips:
    return Chips(tf.distribute.MirroredStrategy(["CPU:0"]), "cpu:1")


def test_rows_are_replaced_between_steps(chips):
    with chips.holding():
        table = tf.Variable(np.zeros((2, 3), np.float32), shape=[None, 3])
    assert len(on_devices(table)) == 1
    grow_rows(table, 5)
    assert row_count(table) == 5
    set_rows(table, np.array([4, 1]), np.array([[4.0] * 3, [1.0] * 3], np.float32))
    assert on_devices(table)[0].numpy()[:, 0].tolist() == [0, 1, 0, 0, 4]


def test_a_step_replaces_rows_of_its_chip_and_is_given_its_part(chips):
    with chips.holding():
        total = tf.Variable(np.zeros((2, 3), np.float32))

    def step(part, shared, rates):
        set_rows(total, part["rows"], part["values"] * rates["rate"])
        return shared["number"]

    signature = [
        {"rows": tf.TensorSpec([None], tf.int32), "values": tf.TensorSpec([None, 3])},
        {"number": tf.TensorSpec([None], tf.int32)},
        {"rate": tf.TensorSpec([])},
    ]
    run = chips.running(step, frozenset({"number"}), signature)
    part = {"rows": tf.constant([[1]]), "values": tf.constant([[[1.0, 2.0, 3.0]]])}
    given = run(part, {"number": tf.constant([7, 8])}, {"rate": tf.constant(2.0)})
    assert given.numpy().tolist() == [7, 8]
    assert total.numpy().tolist() == [[0, 0, 0], [2, 4, 6]]


def test_totals_stay_on_the_host(chips):
    with chips.holding():
        total = tf.Variable(0.0, name="axis0/total")
        window = tf.Variable(0.0, name="axis0/window")
    assert not isinstance(total, tf.distribute.DistributedValues)
    assert isinstance(window, tf.distribute.DistributedValues)
