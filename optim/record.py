"""Records of a model's linear products, for optimizers and statistics that do not look at its layers.

A *product* is z = a W (+ b) for the rows of a batch. The gradient of the loss by z gives those of W and b row by
row: those of row n are a_n (x) dz_n and dz_n. Where W is used once, this holds in any model: crosses, bottlenecks,
ensembles whose components are computed at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf


class Product(NamedTuple):
    """A linear product, or n that are computed at once.

    Attributes:
        names: of W, one for each of the n products.
        inputs: a, [B, in] or [n, B, in]; [1, B, in] where all n have the same inputs.
        outputs: z, [B, units] or [n, B, units], with or without its bias.
        has_bias: whether a bias is added to it.
        slope: the derivative by z of the next product's inputs, or of the model's outputs, of the shape of z, where
            each number of these depends on its own of z alone; None: it does not, or that is not known.
        matrix: W, [in, units]; None: not known.
    """

    names: tuple[str, ...]
    inputs: tf.Tensor
    outputs: tf.Tensor
    has_bias: bool
    slope: tf.Tensor | None = None
    matrix: tf.Tensor | None = None


class Recorded(Protocol):
    """A model that reports its products."""

    def record(self, inputs: Any) -> tuple[tf.Tensor, Sequence[Product]]:
        """Returns the outputs for a batch, [B, C], and their products, in the order of the work."""


def singly(product: Product, gradients: tf.Tensor) -> Iterator[tuple[str, tf.Tensor, tf.Tensor]]:
    """Yields of each of the n products the name, a [B, in] and the gradients by z [B, units]."""
    if len(gradients.shape) == 2:
        yield product.names[0], product.inputs, gradients
        return
    for number, name in enumerate(product.names):
        yield name, product.inputs[min(number, product.inputs.shape[0] - 1)], gradients[number]
