"""Division of K-FAC's layers over workers, each of which has the same weights, gradients and factors.

Each layer has one owner, by ``ctr.optim.balance``, which alone keeps its sums and inverses, and computes its direction;
directions are gathered at each step. Element-wise state is on every worker.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.balance import balanced
from ctr.optim.kfac.core import KfacCore, Layer, layer_sizes
from ctr.optim.kfac.options import KfacOptions
from ctr.optim.shampoo.assignment import PRODUCT, ROOT
from ctr.workers.collectives import Workers
from ctr.workers.parts import Part


class DividedKfac(KfacCore):
    """K-FAC over variables whose layers ``workers`` divide; ``owners`` has the rank of each layer's owner."""

    def __init__(
        self,
        options: KfacOptions,
        weights: Sequence[tf.Variable],
        layers: Sequence[Layer],
        workers: Workers,
    ) -> None:
        self.workers = workers
        self.owners = _assign(options, layer_sizes(weights, layers), workers.size)
        super().__init__(options, weights, layers, own=self._owned(workers.rank))

    def _owned(self, rank: int) -> list[int]:
        return [number for number, owner in enumerate(self.owners) if owner == rank]

    def parts(self) -> Mapping[str, Part]:
        """Names the variables of layers, of each of which one worker has all rows."""
        if self.workers.size == 1:
            return {}
        return {
            f"layer{number}/{kind}": Part(np.arange(size if number in self.own else 0), size)
            for number in range(len(self.layers))
            for kind, size in self.divided(number).items()
        }

    def _sum(self, flags: tf.Tensor) -> tf.Tensor:
        return self.workers.all_reduce([flags])[0]

    def _gather(self, own: Mapping[int, tf.Tensor]) -> Mapping[int, tf.Tensor]:
        ranks = range(self.workers.size)
        if len(ranks) == 1 or not self.layers:
            return own
        owned = [self._owned(rank) for rank in ranks]
        sizes = [[math.prod(self.sizes[number]) for number in numbers] for numbers in owned]
        largest = max(map(sum, sizes))
        flat = [tf.reshape(own[number], [-1]) for number in self.own]
        padding = tf.zeros([largest - sum(sizes[self.workers.rank])], self.dtype)
        received = self.workers.all_gather(tf.concat([*flat, padding], axis=0))
        messages = tf.unstack(tf.reshape(received, [len(ranks), largest]))
        whole = {}
        for numbers, each, message in zip(owned, sizes, messages, strict=True):
            *parts, _ = tf.split(message, [*each, largest - sum(each)])
            for number, part in zip(numbers, parts, strict=True):
                whole[number] = tf.reshape(part, self.sizes[number])
        return whole


def _assign(options: KfacOptions, sizes: Sequence[tuple[int, int]], workers: int) -> tuple[int, ...]:
    """The owner of each layer: by the cost of the factors' inverses and of the products of a direction."""
    costs = [
        sum(
            ROOT[0] * size**3 / options.inverse_frequency + PRODUCT[0] * math.prod(both) * size
            for size in both
        )
        for both in sizes
    ]
    memory = [float(sum(size * (size + 1) // 2 for size in both)) for both in sizes]
    return balanced(costs, [math.prod(both) for both in sizes], memory, workers)
