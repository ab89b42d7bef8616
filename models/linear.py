"""Linear layers of plain variables, and the batched products of n layers of one shape."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

import tensorflow as tf

Initializer = Callable[[Sequence[int], int], tf.Tensor]
"""From the shape of a matrix, [inputs, units], and a seed to its initial values, float32."""

Weights = tuple[Sequence[tf.Tensor], tf.Tensor]
"""The matrices of n layers of one shape, each [n, ., .], and their biases, [n, 1, units]."""

Products = list[tuple[tf.Tensor, tf.Tensor]]
"""Inputs [n or 1, B, m] and outputs [n, B, units] of products with matrices, in the order of the work."""

_recorded: ContextVar[Products | None] = ContextVar("products", default=None)

# The standard deviation of the standard normal distribution truncated at two of its own.
_TRUNCATED_DEVIATION = 0.87962566103423978


def small_normal(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws from the truncated normal distribution, of standard deviation 0.05 before truncation."""
    return _truncated_normal(shape, seed, 0.05)


def lecun_normal(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws truncated normal values of variance 1 / inputs, which keep the variance of the inputs."""
    return _truncated_normal(shape, seed, math.sqrt(1 / shape[0]) / _TRUNCATED_DEVIATION)


def he_normal(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws truncated normal values of variance 2 / inputs, for a ReLU that follows (He et al., arXiv 1502.01852)."""
    return _truncated_normal(shape, seed, math.sqrt(2 / shape[0]) / _TRUNCATED_DEVIATION)


def glorot_uniform(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws uniform values of variance 2 / (inputs + units) (Glorot and Bengio, 2010)."""
    limit = math.sqrt(3 / (sum(shape) / 2))
    return tf.random.stateless_uniform(shape, [seed, 0], -limit, limit)


def _truncated_normal(shape: Sequence[int], seed: int, deviation: float) -> tf.Tensor:
    return tf.random.stateless_truncated_normal(shape, [seed, 0], 0.0, deviation)


class Linear(tf.Module):
    """Computes x W + b, or with a low-rank pair x U V + b.

    Args:
        sizes: [inputs, units], or with the rank of the pair between them [inputs, rank, units].
        initializers: of each matrix.
        seeds: draws a seed for each matrix, in their order.
        bias: the initial value of all biases; None: no bias.
        compute_dtype: ``float32`` or ``bfloat16``; weights are float32 in both.

    Attributes:
        matrices: float32 variables, W alone or U and V.
        bias: float32 variable [units], or None.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        initializers: Sequence[Initializer],
        seeds: random.Random,
        bias: float | None = 0.0,
        compute_dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.compute_dtype = compute_dtype
        self.matrices = [
            tf.Variable(initializer(shape, seeds.randint(1, 10**9)), name="matrix")
            for initializer, shape in zip(initializers, pairwise(sizes), strict=True)
        ]
        self.bias = None if bias is None else tf.Variable(tf.fill([sizes[-1]], bias), name="bias")

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """Yields all weights with their names: ``w`` or ``u`` and ``v``, then ``w_bias`` or ``v_bias``."""
        names = ["w"] if len(self.matrices) == 1 else ["u", "v"]
        yield from zip(names, self.matrices, strict=True)
        if self.bias is not None:
            yield f"{names[-1]}_bias", self.bias

    def round_weights(self) -> None:
        """Replaces the weights by what every product rounds them to: the same results, but no more training."""
        if self.compute_dtype != "float32":
            self.matrices = [self._rounded(matrix) for matrix in self.matrices]
            self.bias = None if self.bias is None else self._rounded(self.bias)

    def _rounded(self, weight: tf.Variable) -> tf.Variable:
        return tf.Variable(tf.cast(weight, self.compute_dtype), trainable=False)


def multiply(inputs: tf.Tensor, matrices: Sequence[tf.Tensor]) -> tf.Tensor:
    """Multiplies by one matrix after the other.

    Args:
        inputs: [n, B, m], or [1, B, m] for all n layers, of the dtype of the matrices.
        matrices: each [n, ., .].

    Returns:
        [n, B, units].
    """
    recorded = _recorded.get()
    for matrix in matrices:
        outputs = tf.matmul(inputs, matrix)
        if recorded is not None:
            recorded.append((inputs, outputs))
        inputs = outputs
    return inputs


@contextmanager
def recording() -> Iterator[Products]:
    """Records all products of a model's layers that are computed inside."""
    products: Products = []
    token = _recorded.set(products)
    try:
        yield products
    finally:
        _recorded.reset(token)


def is_recording() -> bool:
    """Whether products are recorded, which fused layers do not show."""
    return _recorded.get() is not None


def stack_matrices(layers: Sequence[Linear]) -> list[tf.Tensor]:
    """Stacks the matrices of n layers of one shape, in their compute dtype: each [n, ., .]."""
    groups = zip(*(layer.matrices for layer in layers), strict=True)
    return [stack([tf.cast(matrix, layers[0].compute_dtype) for matrix in group]) for group in groups]


def stack_weights(layers: Sequence[Linear]) -> Weights:
    """Stacks the weights of n layers of one shape that have a bias, in their compute dtype."""
    bias = stack([tf.cast(layer.bias, layers[0].compute_dtype) for layer in layers])
    return stack_matrices(layers), tf.expand_dims(bias, 1)


def stack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Stacks tensors of one shape along a new first axis; a single one is not copied."""
    return tf.expand_dims(tensors[0], 0) if len(tensors) == 1 else tf.stack(tensors)
