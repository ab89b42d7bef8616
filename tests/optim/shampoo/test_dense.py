"""The trainer's Shampoo: where its state is, and what it takes from an earlier one."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.protocol import Saved
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.options import ShampooOptions
from whole_moves import Whole


def made(options, *shapes, dtype=tf.float32):
    """An optimizer over ones, and its weights."""
    optimizer = DenseShampoo(options)
    weights = {f"w{index}": tf.Variable(tf.ones(shape, dtype)) for index, shape in enumerate(shapes)}
    optimizer.build(weights)
    return optimizer, list(weights.values())


def saved(optimizer, *shapes):
    return Saved({name: np.array(v.numpy()) for name, v in optimizer.variables.items()}, list(shapes))


def restore(optimizer, state):
    for name, variable in optimizer.variables.items():
        variable.assign(state.arrays[name])


EIGENVALUE_CORRECTED = {"method": "eigenvalue_corrected"}


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({}, False),
        ({"grafting": "adam"}, True),
        ({"grafting": "lamb"}, True),
        (EIGENVALUE_CORRECTED, False),
        (EIGENVALUE_CORRECTED | {"beta2": 0.9}, True),
        ({"grafting": {"kind": "rmsprop", "norm": "none"}, "beta2": 0.9}, True),
        ({"grafting": "rmsprop", "beta2": 0.9}, False),
    ],
)
def test_averages_that_are_corrected_by_the_step_go_with_all_weights_or_none(options, counted):
    shapes, options = [(3, 2)] * 2, ShampooOptions(**options)
    old, _ = made(options, *shapes)
    old.update([tf.ones([3, 2])] * 2, tf.constant(0.1), False)
    new, _ = made(options, *shapes)
    moves = {0: (0, Whole()), 1: (1, Whole())}
    whole = new.take_over(saved(new, *shapes), old, saved(old, *shapes), moves)
    assert set(whole.statuses.values()) == {"taken"}
    begun = saved(new, *shapes)
    partly = new.take_over(begun, old, saved(old, *shapes), {0: (0, Whole())})
    assert partly.statuses == {0: "fresh" if counted else "taken"}
    assert begun.arrays["shampoo/step"] == (0 if counted else 1)
    assert ("one number of steps" in (partly.why or "")) == counted


SOAP = ShampooOptions(
    method="eigenvalue_corrected",
    grafting={"kind": "adam", "norm": "none"},
    gradient={"beta1": 0.8},
    beta2=0.9,
    block_size=4,
    roots={"asynchronous": False},
)


@pytest.mark.parametrize("changed", [{"block_size": 3}, {"method": "shampoo"}])
def test_second_moments_do_not_begin_anew_under_an_old_correction(changed):
    def step_size(optimizer, weight, seed):
        before = weight.numpy()
        optimizer.update([tf.random.stateless_normal([7, 5], (seed, 1))], tf.constant(1.0), False)
        return np.sqrt(np.mean((weight.numpy() - before) ** 2))

    old, (weight,) = made(SOAP.changed(changed), (7, 5))
    for seed in range(20):
        step_size(old, weight, seed)
    new, (weight,) = made(SOAP, (7, 5))
    state = saved(new, (7, 5))
    new.take_over(state, old, saved(old, (7, 5)), {0: (0, Whole())})
    restore(new, state)
    assert max(step_size(new, weight, 100 + seed) for seed in range(5)) < 3


def test_fresh_statistics_have_roots_at_once():
    (old, _), (new, _) = made(ShampooOptions(), (16, 12)), made(ShampooOptions(block_size=8), (16, 12))
    before, state = saved(old, (16, 12)), saved(new, (16, 12))
    before.arrays["shampoo/step"][...] = 307
    new.take_over(state, old, before, {0: (0, Whole())})
    restore(new, state)
    new.update([tf.random.stateless_normal([16, 12], (1, 2))], tf.constant(0.1), False)
    assert (int(new.core.step), new.report()["layers_ready"]) == (308, 1)


@pytest.mark.parametrize("norm", ["none", "tensor"])
def test_averages_in_the_bases_are_taken_over_in_any_form(norm):
    """Beside the average in NumPy; to bases that are there, and to none."""
    rng = np.random.default_rng(0)
    shapes = [(7, 5), (4,), (6, 3)]
    grafted = SOAP.changed({"grafting": {"norm": "tensor"}})
    old, old_weights = made(SOAP, *shapes, dtype=tf.float64)
    expected = [np.zeros(shape) for shape in shapes]
    for _ in range(7):
        gradients = [rng.normal(size=shape) for shape in shapes]
        expected = [0.8 * one + 0.2 * gradient for one, gradient in zip(expected, gradients, strict=True)]
        old.update([tf.constant(one) for one in gradients], tf.constant(0.1, tf.float64), False)
    assert old.report()["layers_ready"] == 2
    assert "shampoo/tensor0/gradient_average" not in old.variables

    new, weights = made(SOAP.changed({"grafting": {"norm": norm}}), *shapes, dtype=tf.float64)
    moves = {index: (index, Whole()) for index in range(3)}
    state = saved(new, *shapes)
    new.take_over(state, old, saved(old, *shapes), moves)
    # And from there back into the form that all have without a basis.
    last, _ = made(grafted, *shapes, dtype=tf.float64)
    plain = saved(last, *shapes)
    last.take_over(plain, new, state, moves)
    for index, average in enumerate(expected):
        np.testing.assert_allclose(
            plain.arrays[f"shampoo/tensor{index}/gradient_average"], average, rtol=1e-10, atol=1e-12
        )
    if norm == "tensor":
        return
    # It goes on as the old one does.
    restore(new, state)
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


@pytest.mark.slow
def test_totals_are_in_the_memory_of_the_host_and_all_else_is_where_the_step_runs():
    done = subprocess.run([sys.executable, "-c", PLACED], capture_output=True, text=True, check=True)
    places = dict(line.split() for line in done.stdout.splitlines())
    assert {name.rpartition("/")[2] for name, place in places.items() if place == "CPU:0"} == {"total"}
    others = {name.rpartition("/")[2] for name, place in places.items() if place == "CPU:1"}
    assert {"window", "root", "momentum", "accumulator", "status", "step"} <= others
