"""Kernels of convolutions, [height, width, in, out], preconditioned along each dimension, or as matrices if merged."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from ctr.optim.keras.keras3 import Shampoo

EPSILON, RATE = 1e-4, 0.05


@pytest.fixture
def model():
    """Two convolutions and a layer of logits over images of [8, 8, 1]."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    convolutions = [layers.Conv2D(filters, 3, activation="relu", use_bias=False) for filters in (4, 5)]
    return keras.Sequential([layers.Input((8, 8, 1)), *convolutions, layers.Flatten(), layers.Dense(10)])


def preconditioned(tensor, sums, exponent):
    """The tensor times A^-exponent along each axis, with the damping relative to A's largest eigenvalue."""
    for axis, matrix in enumerate(sums):
        values, vectors = np.linalg.eigh(matrix)
        root = (vectors * (values + EPSILON * values[-1]) ** -exponent) @ vectors.T
        tensor = np.moveaxis(np.tensordot(root, tensor, axes=(1, axis)), 0, axis)
    return tensor


@pytest.mark.parametrize(
    ("merge", "shapes"),
    [(None, [(3, 3, 4), (3, 3, 4, 5)]), (36, [(36,), (36, 5)]), (9, [(9, 4), (9, 4, 5)])],
    ids=["four dimensions", "all inputs of an output", "space"],
)
def test_kernels_of_convolutions_take_the_steps_of_the_formula(model, merge, shapes):
    images, labels = load_digits(return_X_y=True)
    # Directions at their own scale: a norm that is grafted would hide a wrong exponent.
    optimizer = Shampoo(
        RATE,
        epsilon=EPSILON,
        precondition_frequency=1,
        grafting={"norm": "none"},
        statistics={"frequency": 1},
        roots={"asynchronous": False, "drift_bound": 0.0, "early_growth": 0.0},
        blocking={"merge": merge},
    )
    kernels = [variable for variable in model.trainable_variables if len(variable.shape) == 4]
    expected = [kernel.numpy() for kernel in kernels]
    sums = [[np.zeros((size, size)) for size in shape] for shape in shapes]
    for batch in range(6):
        rows = slice(batch * 100, batch * 100 + 100)
        with tf.GradientTape() as tape:
            logits = model(images[rows].reshape(-1, 8, 8, 1) / 16, training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[rows], logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        for number, gradient in enumerate(gradients[:2]):
            if len(shapes[number]) == 1:
                continue
            tensor = gradient.numpy().reshape(shapes[number])
            for axis, matrix in enumerate(sums[number]):
                unfolded = np.moveaxis(tensor, axis, 0).reshape(len(matrix), -1)
                matrix += unfolded @ unfolded.T
            direction = preconditioned(tensor, sums[number], 1 / (2 * tensor.ndim))
            expected[number] = expected[number] - RATE * direction.reshape(kernels[number].shape)
            np.testing.assert_allclose(kernels[number].numpy(), expected[number], rtol=0, atol=2e-6)
    treatment = [line for line in optimizer.describe().splitlines() if "3x3x4x5" in line]
    assert len(treatment) == 1 and f"exponent -{1 / (2 * len(shapes[1])):g}" in treatment[0]
    assert optimizer.core.report()["layers_ready"] == 2 + (merge != 36)
