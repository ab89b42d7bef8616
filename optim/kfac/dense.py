"""K-FAC for the dense weights of a model, as a ``ctr.optim.protocol.DenseOptimizer``; workers divide the layers."""

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr.optim.kfac.core import KfacCore, Layer
from ctr.optim.kfac.factors import Factors
from ctr.optim.kfac.options import KfacOptions
from ctr.optim.protocol import Cost, DenseOptimizer, Move, Saved, TakenOver, WithoutHost
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part

_UPDATE = 10  # operations for each weight: AdaGrad, two norms and a scale
_INVERSE = 3
"""Operations of an inverse of a [d, d] matrix over d^3: a Cholesky decomposition and two triangular solves."""


class DenseKfac(WithoutHost):
    """K-FAC over dense weights, of which ``layers`` are the linear products; workers divide them."""

    name = "kfac"
    core: KfacCore

    def __init__(self, options: KfacOptions, layers: Sequence[Layer] = (), workers: Workers = ALONE) -> None:
        self.options, self.layers, self.workers = options, list(layers), workers
        self._given: Callable[[], Sequence[Factors]] | None = None

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        self.core = KfacCore(self.options, list(weights.values()), self.layers, self.workers)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"kfac/{name}": variable for name, variable in self.core.variables.items()}

    def parts(self) -> Mapping[str, Part]:
        return {f"kfac/{name}": part for name, part in self.core.parts.items()}

    @property
    def seed(self) -> tuple[int, tf.Tensor] | None:
        """Seed of the labels that are sampled for the next step, and its number; None: labels are those given."""
        return (self.options.seed, self.core.step) if self.options.fisher == "sampled" else None

    def observe(self, factors: Callable[[], Sequence[Factors]]) -> None:
        """Takes a function for the factors of each layer, before the step's ``update``, which calls it if need be.

        It does so inside a condition, before it changes a weight.
        """
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
