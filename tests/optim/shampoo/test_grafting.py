"""Shampoo's directions at the step sizes of first-order optimizers."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.first_order.options import LAMB, AdaGrad, Adam, RMSprop
from ctr.optim.shampoo.grafting import blend_weight
from ctr.optim.shampoo.options import ShampooOptions


@pytest.mark.parametrize(
    ("start", "blend", "shares"),
    [
        (None, 3, {1: 0, 10**9: 0}),
        (0, 0, {1: 1}),
        (25, 0, {1: 0, 24: 0, 25: 1, 26: 1}),
        (25, 3, {24: 0, 25: 0.25, 26: 0.5, 27: 0.75, 28: 1, 29: 1}),
    ],
)
def test_shampoos_share_by_step(start, blend, shares):
    options = ShampooOptions(start_preconditioning_step=start)
    found = {
        step: float(blend_weight(options, blend, tf.constant(step, tf.int64), tf.float32)) for step in shares
    }
    assert found == shares


# Second moments of normalized gradients.

SHAPES = [(7, 5), (3,), ()]
# Blocks of at most 4, nearly equal.
PARTS = [(rows, columns) for rows in (slice(0, 4), slice(4, 7)) for columns in (slice(0, 3), slice(3, 5))]
RATE = 0.125
NORMALIZED = (
    AdaGrad(normalized=True, initial_accumulator=0.01, epsilon=1e-3),
    RMSprop(normalized=True, beta2=0.9, epsilon=1e-3),
    Adam(normalized=True, beta2=0.9, epsilon=1e-3),
    LAMB(normalized=True, beta2=0.9, epsilon=1e-3),
)


def over_norm(gradient):
    norm = np.linalg.norm(gradient)
    return gradient / norm if norm else gradient


def normalized_steps(grafting, start, history):
    """AdaGrad's, RMSprop's, Adam's or LAMB's weights where second moments are of G / |G| (PT App. E)."""
    weights, squares = (
        list(start),
        [np.full(w.shape, getattr(grafting, "initial_accumulator", 0.0)) for w in start],
    )
    found = []
    for t, gradients in enumerate(history, 1):
        for i, gradient in enumerate(gradients):
            normalized = over_norm(gradient)
            if grafting.norm == "block" and gradient.ndim == 2:
                for part in PARTS:
                    normalized[part] = over_norm(gradient[part])
            beta2 = getattr(grafting, "beta2", 1.0)
            squares[i] = beta2 * squares[i] + (1.0 if beta2 == 1.0 else 1 - beta2) * normalized**2
            moments = squares[i] / (1 - beta2**t) if isinstance(grafting, Adam | LAMB) else squares[i]
            step = gradient / (np.sqrt(moments) + grafting.epsilon)
            if isinstance(grafting, LAMB) and np.linalg.norm(step):
                step = step * np.linalg.norm(weights[i]) / np.linalg.norm(step)
            weights[i] = weights[i] - RATE * step
        found.append(list(weights))
    return found


@pytest.mark.parametrize("norm", ["tensor", "block", "none"])
@pytest.mark.parametrize("grafting", NORMALIZED, ids=lambda grafting: grafting.kind)
def test_second_moments_of_normalized_gradients(grafting, norm):
    grafting = replace(grafting, norm=norm)
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, 6)
    for i in range(len(SHAPES)):
        # Nothing has no norm; neither has a block of it.
        history[i][i] = np.zeros(SHAPES[i])
    history[3][0][PARTS[0]] = 0.0
    options = ShampooOptions(block_size=4, grafting=grafting, start_preconditioning_step=100)
    core = reference.make_core(options, start)
    expected = normalized_steps(grafting, start, history)
    found = reference.train(core, history, RATE)
    for weights, others in zip(found, expected, strict=True):
        for weight, other in zip(weights, others, strict=True):
            np.testing.assert_allclose(weight, other, rtol=0, atol=1e-12)
    plain = reference.make_core(options.changed({"grafting": {"normalized": False}}), start)
    assert np.abs(reference.train(plain, history, RATE)[-1][0] - expected[-1][0]).max() > 1e-3


@pytest.mark.parametrize("norm", ["tensor", "block"])
def test_shampoos_direction_takes_the_size_of_the_normalized_step(norm):
    grafting = replace(NORMALIZED[0], norm=norm)
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, 4)
    options = reference.options(start_preconditioning_step=1, asynchronous=False)
    core = reference.make_core(replace(options, grafting=grafting), start)
    before, squares = start[0], np.full((7, 5), 0.01)
    for gradients in history:
        reference.train(core, [gradients], RATE)
        moved, before = before - core.weights[0].numpy(), core.weights[0].numpy()
        normalized = over_norm(gradients[0])
        for part in PARTS if norm == "block" else ():
            normalized[part] = over_norm(gradients[0][part])
        squares += normalized**2
        step = RATE * gradients[0] / (np.sqrt(squares) + grafting.epsilon)
        for part in PARTS if norm == "block" else [...]:
            assert np.linalg.norm(moved[part]) == pytest.approx(np.linalg.norm(step[part]), rel=1e-9)
        assert not np.allclose(moved, step, rtol=0.1)
