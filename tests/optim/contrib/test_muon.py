"""Muon beside a NumPy replay of its formulas in float64, and beside the optimizer of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.adafactor.dense import DenseAdafactor
from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.contrib.muon import DenseMuon, is_matrix, orthogonalize
from ctr.optim.contrib.muon_options import MuonOptions
from ctr.optim.protocol import Saved
from whole_moves import Whole

SHAPES = [(6, 4), (3, 8), (5,), (2, 3, 4), (), (7, 1), (4, 4)]
RATE = 0.05
CASES = {
    "as in Keras": {},
    "no Nesterov": {"nesterov": False},
    "another momentum": {"momentum": 0.5, "iterations": 2, "rms": 1.0},
    "Adam": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.1},
    "decay": {"weight_decay": 0.3},
}


class Replay:
    """One tensor, line by line."""

    def __init__(self, options: MuonOptions, weight: np.ndarray) -> None:
        self.options, self.weight, self.t = options, weight.copy(), 0
        self.average = np.zeros_like(weight)
        self.square = np.zeros_like(weight)

    def step(self, gradient: np.ndarray) -> None:
        options = self.options
        self.t += 1
        if gradient.ndim >= 2 and min(gradient.shape[-2:]) > 1:
            self.average = options.momentum * self.average + gradient
            direction = gradient + options.momentum * self.average if options.nesterov else self.average
            flat = direction.reshape(-1, *direction.shape[-2:])
            update = np.stack([self.near_orthogonal(one) for one in flat]).reshape(direction.shape)
            update *= options.rms * np.sqrt(max(gradient.shape[-2:]))
        else:
            self.average = options.beta1 * self.average + (1 - options.beta1) * gradient
            self.square = options.beta2 * self.square + (1 - options.beta2) * gradient**2
            rate = np.sqrt(1 - options.beta2**self.t) / (1 - options.beta1**self.t)
            update = rate * self.average / (np.sqrt(self.square) + options.epsilon)
        decay = options.weight_decay if gradient.ndim > 1 else 0.0
        self.weight = self.weight - RATE * (update + decay * self.weight)

    def near_orthogonal(self, matrix: np.ndarray) -> np.ndarray:
        """The polynomial, of the singular values alone."""
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        values = values / (np.sqrt(np.sum(values**2)) + 1e-7)
        for _ in range(self.options.iterations):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        return (left * values) @ right


def trained(options: MuonOptions, steps: int, dtype: str, compiled: bool = False) -> list[np.ndarray]:
    weights, draws = beginning(dtype)
    optimizer = DenseMuon(options)
    optimizer.build({str(index): weight for index, weight in enumerate(weights)})

    @tf.function(jit_compile=compiled)
    def step(gradients):
        optimizer.update(gradients, tf.constant(RATE, dtype), compiled)

    for _ in range(steps):
        step([tf.constant(draw, dtype) for draw in next(draws)])
    return [weight.numpy() for weight in weights]


def beginning(dtype):
    """Weights, and gradients whose sizes differ by orders; one matrix has rank 1."""
    source = np.random.default_rng(3)
    weights = [tf.Variable(source.normal(size=shape), dtype=dtype) for shape in SHAPES]

    def draws():
        while True:
            found = [np.asarray(source.normal(size=shape) * 10 ** source.uniform(-4, 2)) for shape in SHAPES]
            found[-1] = np.outer(found[-1][0], found[-1][1])
            yield found

    return weights, draws()


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_formulas(case):
    options = MuonOptions(**CASES[case])
    weights, draws = beginning("float64")
    replays = [Replay(options, weight.numpy()) for weight in weights]
    for _ in range(7):
        for replay, gradient in zip(replays, next(draws), strict=True):
            replay.step(gradient)
    for found, replay in zip(trained(options, 7, "float64"), replays, strict=True):
        np.testing.assert_allclose(found, replay.weight, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_are_those_of_keras_and_those_of_xla(nesterov):
    weights, draws = beginning("float32")
    variables = [keras.Variable(weight.numpy()) for weight in weights]
    heads = [
        one.path for one, shape in zip(variables, SHAPES, strict=True) if len(shape) == 2 and min(shape) == 1
    ]
    of_keras = keras.optimizers.Muon(
        RATE, weight_decay=None, adam_weight_decay=None, nesterov=nesterov, exclude_layers=heads
    )
    # Keras takes a stack of matrices for something else than matrices.
    stacks = [index for index, shape in enumerate(SHAPES) if len(shape) > 2]
    kept = [one for index, one in enumerate(variables) if index not in stacks]
    of_keras.build(kept)
    for _ in range(5):
        found = [tf.constant(one, tf.float32) for index, one in enumerate(next(draws)) if index not in stacks]
        of_keras.apply(found, kept)
    ours = trained(MuonOptions(nesterov=nesterov), 5, "float32")
    for index, found in enumerate(ours):
        if index not in stacks:
            np.testing.assert_allclose(found, np.asarray(variables[index]), rtol=2e-5, atol=2e-6)
    if nesterov:
        for found, expected in zip(trained(MuonOptions(), 5, "float32", compiled=True), ours, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_singular_values_come_near_1_and_what_is_zero_stays():
    for shape in ((5, 5), (3, 9), (9, 3), (4, 2, 6)):
        matrices = np.random.default_rng(1).normal(size=shape)
        values = np.linalg.svd(orthogonalize(tf.constant(matrices), 5).numpy(), compute_uv=False)
        assert 0.5 < values.min() <= values.max() < 1.25
    assert np.all(orthogonalize(tf.zeros([3, 4]), 5).numpy() == 0)


def test_operations_are_those_of_the_products():
    # 5 iterations of 2 x 4^2 x 6 twice, and 2 x 4^3.
    assert DenseMuon(MuonOptions()).cost([(4, 6)]).preconditioning == 5 * (2 * 2 * 16 * 6 + 2 * 64)
    assert DenseMuon(MuonOptions()).cost([(6, 1), (6,)]).preconditioning == 0
    assert not is_matrix((6, 1))


def saved(optimizer: DenseMuon, fill: float) -> Saved:
    optimizer.build({str(index): tf.Variable(tf.zeros(shape)) for index, shape in enumerate(SHAPES)})
    arrays = {name: np.full(one.shape, fill, np.float32) for name, one in optimizer.variables.items()}
    return Saved(arrays, SHAPES)


def test_averages_go_with_weights_that_are_taken():
    optimizer, before = DenseMuon(MuonOptions()), DenseMuon(MuonOptions())
    new, old = saved(optimizer, 0.0), saved(before, 3.0)
    found = optimizer.take_over(new, before, old, {index: (index, Whole()) for index in range(4)})
    assert found.statuses == dict.fromkeys(range(4), "taken")
    for name, array in new.arrays.items():
        taken = int(name.split("/")[1].removeprefix("tensor")) < 4
        assert np.all(array == (3.0 if taken else 0.0)), name
    other = DenseAdafactor(AdafactorOptions())
    assert "was adafactor, is muon" in optimizer.take_over(new, other, old, {0: (0, Whole())}).why
