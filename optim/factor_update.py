"""Updates of statistics matrices by a gradient: Shampoo's products, or KL-Shampoo's.

    shampoo   L gains G G^T                    R gains G^T G                     PSO 2
    kl        L gains s (G B)(G B)^T / d_R     R gains (A G)^T (A G) / (s d_L)   A, B: the present roots of L and R

For roots A = L^(-1/2), B = R^(-1/2) of L [d_L, d_L] and R [d_R, d_R] the second line is G R^-1 G^T / d_R and
G^T L^-1 G / d_L, but for s. Where averages of these no longer change, L (x) R is nearest to the second moments of
vec(G) in Kullback-Leibler divergence (KL-Shampoo, Lin et al., arXiv 2509.03378). A block of any order divides by the
number of its elements in all other dimensions. Roots that are not there yet are identities.

The paper has s = 1. But c L and R / c stand for the same L (x) R, and roots of averages over few steps are too
large, by an amount that depends on the shape: of a 48 x 8 block with beta2 0.9, c leaves float32 after some
thousands of steps. s = |A| / |B|, of root mean squares of eigenvalues, makes the smaller side gain more and the
larger one less, and leaves the product of their sizes as it is. In general s is, for each axis, the mean square over
the geometric mean of those of all axes.

``kl_undivided`` does not divide, as facebookresearch/optimizers does not. Its averages have a fixed point only where
d_L = d_R; for other shapes one factor grows and the other one vanishes, geometrically.
"""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.directions import precondition
from ctr.optim.options import ShampooOptions
from ctr.optim.statistics import gram


def products(
    options: ShampooOptions, blocks: tf.Tensor, axes: Sequence[int], roots: Mapping[int, tf.Tensor]
) -> list[tf.Tensor]:
    """Computes the gains of the statistics of each axis, [N, d_axis, d_axis], from gradients [N, d_0, ..., d_k-1].

    ``roots`` are the present ones by axis, [N, d_axis, d_axis]; ``shampoo`` takes none.
    """
    found = []
    balance = _balance(axes, roots) if options.factor_update == "kl" else {}
    for axis in axes:
        others = [other for other in axes if other != axis] if options.is_kl else []
        product = gram(precondition(blocks, others, [roots[other] for other in others]), axis)
        if options.factor_update == "kl":
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
