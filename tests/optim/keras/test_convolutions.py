"""Kernels of convolutions, [height, width, in, out], preconditioned along each dimension, or as matrices if merged."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import shampoo_reference as reference
from ctr.optim.keras.keras3 import Shampoo

EPSILON, RATE = 1e-4, 0.05


@pytest.fixture
def model():
    """Two convolutions and a layer of logits over images of [8, 8, 1]."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    convolutions = [layers.Conv2D(filters, 3, activation="relu", use_bias=False) for filters in (4, 5)]
    return keras.Sequential([layers.Input((8, 8, 1)), *convolutions, layers.Flatten(), layers.Dense(10)])


@pytest.mark.parametrize(
    ("merge", "shapes"),
    [(None, [(3, 3, 4), (3, 3, 4, 5)]), (36, [(36,), (36, 5)]), (9, [(9, 4), (9, 4, 5)])],
    ids=["four dimensions", "all inputs of an output", "space"],
)
def test_kernels_of_convolutions_take_the_steps_of_the_formula(model, merge, shapes):
    images, labels = load_digits(return_X_y=True)
    options = reference.options(
        epsilon=EPSILON,
        start_preconditioning_step=1,
        precondition_frequency=1,
        block_size=64,
        # Directions at their own scale: a norm that is grafted would hide a wrong exponent.
        grafting={"norm": "none"},
        roots={"asynchronous": False},
        blocking={"merge": merge},
    )
    optimizer = Shampoo(RATE, **vars(options))
    kernels = [variable for variable in model.trainable_variables if len(variable.shape) == 4]
    start, history, trajectory = [kernel.numpy() for kernel in kernels], [], []
    for batch in range(6):
        rows = slice(batch * 100, batch * 100 + 100)
        with tf.GradientTape() as tape:
            logits = model(images[rows].reshape(-1, 8, 8, 1) / 16, training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[rows], logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        history.append([gradient.numpy() for gradient in gradients[:2]])
        trajectory.append([kernel.numpy() for kernel in kernels])
    expected, layers, _ = reference.replay(options, start, history, RATE)
    assert [tuple(layer.merged) for layer in layers] == shapes
    for found, weights in zip(trajectory, expected, strict=True):
        for kernel, other in zip(found, weights, strict=True):
            np.testing.assert_allclose(kernel, other, rtol=0, atol=2e-6)
    treatment = [line for line in optimizer.describe().splitlines() if "3x3x4x5" in line]
    assert len(treatment) == 1 and f"exponent -{1 / (2 * len(shapes[1])):g}" in treatment[0]
    assert optimizer.core.report()["layers_ready"] == 2 + (merge != 36)
