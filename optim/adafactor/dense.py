"""Adafactor for the dense weights of a model, as a ``ctr.optim.protocol.DenseOptimizer``."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.protocol import Cost, WithoutHost
from ctr.workers.collectives import ALONE, Workers

_OPERATIONS = 12  # for each weight: squares, their sums, two divisions, two root mean squares, and the step


class DenseAdafactor(WithoutHost):
    """Adafactor over dense weights. Each worker has all of its state."""

    name = "adafactor"
    core: AdafactorCore

    def __init__(self, options: AdafactorOptions, workers: Workers = ALONE) -> None:
        del workers
        self.options = options

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        self.core = AdafactorCore(self.options, list(weights.values()))

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"adafactor/{name}": variable for name, variable in self.core.variables.items()}

    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, compiled: bool) -> None:
        del compiled
        self.core.update(gradients, rate)

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        return Cost(update=_OPERATIONS * sum(math.prod(shape) for shape in shapes))
