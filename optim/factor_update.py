"""What each statistics matrix of a block collects from a gradient: Shampoo's products, or KL-Shampoo's.

    shampoo   L gains G G^T                    R gains G^T G                     PSO 2
    kl        L gains (G B)(G B)^T             R gains (A G)^T (A G)             A, B: the present roots of L and R

For roots A = L^(-1/2), B = R^(-1/2) the second line is G R^-1 G^T and G^T L^-1 G: the factors for which L (x) R is
nearest to the second moments of vec(G) in Kullback-Leibler divergence (KL-Shampoo), but for constants 1/d_R and 1/d_L,
which change nothing where the direction takes another norm. Roots that are not there yet are identities.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.options import ShampooOptions
from ctr.optim.preconditioning import precondition
from ctr.optim.statistics import gram


def products(
    options: ShampooOptions, blocks: tf.Tensor, axes: Sequence[int], roots: Mapping[int, tf.Tensor]
) -> list[tf.Tensor]:
    """What the statistics of each axis gain, [N, d_axis, d_axis] for each.

    Args:
        options: which rule.
        blocks: the gradients [N, d_0, ..., d_k-1].
        axes: the dimensions that are preconditioned by matrices.
        roots: by axis the present roots [N, d_axis, d_axis]; only for ``kl``.
    """
    found = []
    for axis in axes:
        others = [other for other in axes if other != axis] if options.factor_update == "kl" else []
        found.append(gram(precondition(blocks, others, [roots[other] for other in others]), axis))
    return found
