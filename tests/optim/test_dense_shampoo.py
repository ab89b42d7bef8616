"""What the trainer's Shampoo takes from an earlier one."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.dense_shampoo import DenseShampoo
from ctr.optim.options import ShampooOptions
from ctr.optim.protocol import Saved
from whole_moves import Whole


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({}, False),
        ({"grafting": "adam"}, True),
        ({"grafting": "lamb"}, True),
        ({"eigenvalue_correction": True}, False),
        ({"eigenvalue_correction": True, "beta2": 0.9}, True),
    ],
)
def test_averages_that_are_corrected_by_the_step_go_with_all_weights_or_none(options, counted):
    def made():
        optimizer = DenseShampoo(ShampooOptions(**options))
        optimizer.build({name: tf.Variable(tf.ones([3, 2])) for name in ("first", "second")})
        return optimizer

    def saved(optimizer):
        return Saved({name: np.array(v.numpy()) for name, v in optimizer.variables.items()}, [(3, 2)] * 2)

    old = made()
    old.update([tf.ones([3, 2])] * 2, tf.constant(0.1), False)
    whole = made().take_over(saved(made()), old, saved(old), {0: (0, Whole()), 1: (1, Whole())})
    assert set(whole.statuses.values()) == {"taken"}
    begun = saved(made())
    partly = made().take_over(begun, old, saved(old), {0: (0, Whole())})
    assert partly.statuses == {0: "fresh" if counted else "taken"}
    assert begun.arrays["shampoo/step"] == (0 if counted else 1)
    assert ("one number of steps" in (partly.why or "")) == counted
