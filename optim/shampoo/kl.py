"""Products of KL-Shampoo's statistics (Lin et al., arXiv 2509.03378).

    L gains s (G B)(G B)^T / d_R     R gains (A G)^T (A G) / (s d_L)     A, B: the present roots of L and R

For A = L^(-1/2), B = R^(-1/2) of L [d_L, d_L] and R [d_R, d_R] the fixed point of averages has L (x) R nearest to
the second moments of vec(G) in Kullback-Leibler divergence. A block of any order divides by the number of its elements
in all other dimensions. Roots that are not there yet are identities.

The paper has s = 1. But c L and R / c stand for the same L (x) R, and with roots of averages over few steps c leaves
float32 after some thousands of steps (a 48 x 8 block, beta2 0.9). s = |A| / |B|, of root mean squares of
eigenvalues, balances both sides and leaves the product of their sizes as it is; of any order it is, for each axis,
the mean square over the geometric mean of those of all axes.

Undivided products, as facebookresearch/optimizers has them, have averages with a fixed point only where d_L = d_R; for
other shapes one factor grows and the other one vanishes, geometrically.
"""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.shampoo.products import gram, precondition


def products(
    blocks: tf.Tensor, axes: Sequence[int], roots: Mapping[int, tf.Tensor], divided: bool
) -> list[tf.Tensor]:
    """Computes the gains [N, d_axis, d_axis] of each axis' statistics; ``roots`` are the present ones by axis."""
    found = []
    balance = _balance(axes, roots) if divided else {}
    for axis in axes:
        others = [other for other in axes if other != axis]
        product = gram(precondition(blocks, others, [roots[other] for other in others]), axis)
        if divided:
            count = math.prod(blocks.shape[1:]) // blocks.shape[axis + 1]
            product *= (balance[axis] / count)[:, tf.newaxis, tf.newaxis]
        found.append(product)
    return found


def _balance(axes: Sequence[int], roots: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
    """s of each axis, [N]: the mean square of its root over the geometric mean of those of all axes."""
    logarithms = {
        axis: tf.math.log(tf.reduce_sum(tf.square(roots[axis]), [1, 2]) / roots[axis].shape[1])
        for axis in axes
    }
    mean = tf.add_n(list(logarithms.values())) / max(len(axes), 1)
    return {axis: tf.exp(logarithm - mean) for axis, logarithm in logarithms.items()}
