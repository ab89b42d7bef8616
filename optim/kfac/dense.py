"""K-FAC for the dense weights of a model, as a ``ctr.optim.protocol.DenseOptimizer``; workers divide the layers."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.balance import balanced
from ctr.optim.kfac.core import KfacCore, Layer, layer_sizes
from ctr.optim.kfac.factors import Factors
from ctr.optim.kfac.options import KfacOptions
from ctr.optim.protocol import Cost, DenseOptimizer, Move, Saved, TakenOver, WithoutHost
from ctr.optim.shampoo.assignment import PRODUCT, ROOT
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part

_UPDATE = 10  # operations for each weight: AdaGrad, two norms and a scale
_INVERSE = 3
"""Operations of an inverse of a [d, d] matrix over d^3: a Cholesky decomposition and two triangular solves."""


class DividedKfac(KfacCore):
    """K-FAC over variables whose layers ``workers`` divide, with the same weights, gradients and factors on each.

    Each layer has one owner, ``owners`` has its rank, which alone keeps its sums and inverses, and computes its
    direction; directions are gathered at each step. Element-wise state is on every worker.
    """

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


class DenseKfac(WithoutHost):
    """K-FAC over dense weights, of which ``layers`` are the linear products; workers divide them."""

    name = "kfac"
    core: DividedKfac

    def __init__(self, options: KfacOptions, layers: Sequence[Layer] = (), workers: Workers = ALONE) -> None:
        self.options, self.layers, self.workers = options, list(layers), workers
        self._given: Callable[[], Sequence[Factors]] | None = None

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        self.core = DividedKfac(self.options, list(weights.values()), self.layers, self.workers)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"kfac/{name}": variable for name, variable in self.core.variables.items()}

    def parts(self) -> Mapping[str, Part]:
        return {f"kfac/{name}": part for name, part in self.core.parts().items()}

    @property
    def seed(self) -> tuple[int, tf.Tensor] | None:
        return (self.options.seed, self.core.step) if self.options.fisher == "sampled" else None

    @property
    def statistics_rows(self) -> int:
        return self.options.statistics_rows

    def observe(self, factors: Callable[[], Sequence[Factors]]) -> None:
        self._given = factors

    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, compiled: bool) -> None:
        del compiled
        assert self._given is not None
        factors, self._given = self._given, None
        self.core.update(gradients, rate, factors)

    def report(self) -> dict[str, float | int]:
        return self.core.report()

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """Counts neither products of factors, which depend on a batch's rows, nor passes of sampled labels."""
        matrices = [shape for shape in shapes if len(shape) == 2]
        whole = sum(math.prod(shape) for shape in shapes)
        products = sum(2 * rows * columns * (rows + columns) for rows, columns in matrices)
        inverses = sum(_INVERSE * (rows**3 + columns**3) for rows, columns in matrices)
        return Cost(
            update=_UPDATE * whole, preconditioning=products, roots=inverses / self.options.inverse_frequency
        )

    def take_over(
        self, new: Saved, before: DenseOptimizer, old: Saved, moves: Mapping[int, tuple[int, Move]]
    ) -> TakenOver:
        if not isinstance(before, DenseKfac):
            return TakenOver.nothing(moves, f"the optimizer was {before.name}, is {self.name}")
        for index, (old_index, move) in moves.items():
            for kind in ("accumulator", "momentum"):
                target = new.arrays.get(f"kfac/tensor{index}/{kind}")
                source = old.arrays.get(f"kfac/tensor{old_index}/{kind}")
                if target is not None and source is not None:
                    move.move(target, source)
        return TakenOver(dict.fromkeys(moves, "partly"), why="the factors of K-FAC begin anew")
