"""The trainer's Shampoo: where its state is, and what it takes from an earlier one."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.protocol import Saved
from ctr.optim.shampoo.dense import DenseShampoo
from shampoo_options import options as flat_options
from whole_moves import Whole


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({}, False),
        ({"grafting": "adam"}, True),
        ({"grafting": "lamb"}, True),
        ({"eigenvalue_correction": True}, False),
        ({"eigenvalue_correction": True, "beta2": 0.9}, True),
        ({"grafting": "rmsprop", "grafted_norm": False, "beta2": 0.9}, True),
        ({"grafting": "rmsprop", "beta2": 0.9}, False),
    ],
)
def test_averages_that_are_corrected_by_the_step_go_with_all_weights_or_none(options, counted):
    def made():
        optimizer = DenseShampoo(flat_options(**options))
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


SOAP = {
    "eigenvalue_correction": True, "grafting": "adam", "grafted_norm": False, "beta1": 0.8, "beta2": 0.9,
    "block_size": 4, "asynchronous": False,
}  # fmt: skip


@pytest.mark.parametrize("changed", [{"block_size": 3}, {"epsilon": 1e-3}, {"eigenvalue_correction": False}])
def test_second_moments_do_not_begin_anew_under_an_old_correction(changed):
    def made(options):
        optimizer = DenseShampoo(flat_options(**options))
        weight = tf.Variable(tf.ones([7, 5]))
        optimizer.build({"w": weight})
        return optimizer, weight

    def saved(optimizer):
        return Saved({name: np.array(v.numpy()) for name, v in optimizer.variables.items()}, [(7, 5)])

    def step_size(optimizer, weight, seed):
        before = weight.numpy()
        optimizer.update([tf.random.stateless_normal([7, 5], (seed, 1))], tf.constant(1.0), False)
        return np.sqrt(np.mean((weight.numpy() - before) ** 2))

    old, weight = made(SOAP | changed)
    for seed in range(40):
        step_size(old, weight, seed)
    new, weight = made(SOAP)
    state = saved(new)
    new.take_over(state, old, saved(old), {0: (0, Whole())})
    for name, variable in new.variables.items():
        variable.assign(state.arrays[name])
    assert max(step_size(new, weight, 100 + seed) for seed in range(5)) < 3


def test_fresh_statistics_have_roots_at_once():
    def made(**options):
        optimizer = DenseShampoo(flat_options(**options))
        optimizer.build({"w": tf.Variable(tf.ones([16, 12]))})
        return optimizer

    def saved(optimizer):
        return Saved({name: np.array(v.numpy()) for name, v in optimizer.variables.items()}, [(16, 12)])

    old, new = made(), made(block_size=8)
    before, state = saved(old), saved(new)
    before.arrays["shampoo/step"][...] = 307
    new.take_over(state, old, before, {0: (0, Whole())})
    for name, variable in new.variables.items():
        variable.assign(state.arrays[name])
    new.update([tf.random.stateless_normal([16, 12], (1, 2))], tf.constant(0.1), False)
    assert (int(new.core.step), new.report()["layers_ready"]) == (308, 1)


@pytest.mark.parametrize("changed", [{}, {"grafted_norm": True}])
def test_averages_in_the_bases_are_taken_over_in_any_form(changed):
    """Beside the average in NumPy; to bases that are there, and to none."""
    rng = np.random.default_rng(0)
    shapes = [(7, 5), (4,), (6, 3)]

    def made(options):
        optimizer = DenseShampoo(flat_options(**options))
        weights = {
            f"w{index}": tf.Variable(tf.zeros(shape, tf.float64)) for index, shape in enumerate(shapes)
        }
        optimizer.build(weights)
        return optimizer, list(weights.values())

    def saved(optimizer):
        return Saved({name: np.array(v.numpy()) for name, v in optimizer.variables.items()}, shapes)

    old, old_weights = made(SOAP)
    expected = [np.zeros(shape) for shape in shapes]
    for _ in range(7):
        gradients = [rng.normal(size=shape) for shape in shapes]
        expected = [0.8 * one + 0.2 * gradient for one, gradient in zip(expected, gradients, strict=True)]
        old.update([tf.constant(one) for one in gradients], tf.constant(0.1, tf.float64), False)
    assert old.report()["layers_ready"] == 2
    assert "shampoo/tensor0/gradient_average" not in old.variables

    options = SOAP | changed
    new, weights = made(options)
    moves = {index: (index, Whole()) for index in range(3)}
    state = saved(new)
    new.take_over(state, old, saved(old), moves)
    # And from there back into the form that all have without a basis.
    plain = saved(made(SOAP | {"grafted_norm": True})[0])
    made(SOAP | {"grafted_norm": True})[0].take_over(plain, new, state, moves)
    for index, average in enumerate(expected):
        np.testing.assert_allclose(
            plain.arrays[f"shampoo/tensor{index}/gradient_average"], average, rtol=1e-10, atol=1e-12
        )
    if changed:
        return
    # It goes on as the old one does.
    for name, variable in new.variables.items():
        variable.assign(state.arrays[name])
    for weight, other in zip(weights, old_weights, strict=True):
        weight.assign(other)
    for _ in range(5):
        gradients = [tf.constant(rng.normal(size=shape)) for shape in shapes]
        for optimizer in (old, new):
            optimizer.update(gradients, tf.constant(0.1, tf.float64), False)
    for weight, other in zip(weights, old_weights, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-9, atol=1e-10)


PLACED = """
import tensorflow as tf
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.options import ShampooOptions

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
optimizer = DenseShampoo(ShampooOptions(momentum=0.9))
with tf.device("CPU:1"):
    optimizer.build({"w": tf.Variable(tf.ones([3, 2]))})
for name, variable in optimizer.variables.items():
    print(name, variable.device[-5:])
"""


def test_totals_are_in_the_memory_of_the_host_and_all_else_is_where_the_step_runs():
    done = subprocess.run([sys.executable, "-c", PLACED], capture_output=True, text=True, check=True)
    places = dict(line.split() for line in done.stdout.splitlines())
    assert {name.rpartition("/")[2] for name, place in places.items() if place == "CPU:0"} == {"total"}
    others = {name.rpartition("/")[2] for name, place in places.items() if place == "CPU:1"}
    assert {"window", "root", "momentum", "accumulator", "status", "step"} <= others
