"""Gradients that go with their graph."""

import gc

import tensorflow as tf
from tensorflow.python.framework.ops import gradient_registry

from ctr.models.own_gradient import own_gradient


def registered():
    gc.collect()
    return {name for name in gradient_registry.list() if name.startswith("CustomGradient-")}


@own_gradient
def squared(x, y):
    return (x * x, y + 1), lambda of_x, of_y: (3 * x * of_x, 5 * of_y)


def gradients(function):
    x, y = tf.constant(2.0), tf.constant(7.0)
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        total = tf.add_n(function(x, y))
    assert float(total) == 12
    return [float(one) for one in tape.gradient(total, [x, y])]


def test_it_is_the_gradient_in_eager_mode_in_a_graph_and_through_one():
    assert gradients(squared) == [6, 5]
    # The tape outside: the gradient of a graph that is traced by then.
    compiled = tf.function(squared)
    assert [gradients(compiled) for _ in range(2)] == [[6, 5]] * 2


def test_nothing_is_left_of_a_function_that_is_gone():
    def run():
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                one = tf.cond(x > 0, lambda: squared(x, x)[0], lambda: x)
            return tape.gradient(one, x)

        traced = tf.function(step)
        assert float(traced(tf.constant(2.0))) == 6
        return len(registered() - before)

    before = registered()
    assert [run() for _ in range(3)] == [1] * 3
    assert registered() == before
