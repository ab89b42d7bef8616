"""Shampoo for the dense weights of a model, as a ``ctr.optim.protocol.DenseOptimizer``."""

import contextlib
import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.first_order.options import LAMB, LARS, SGD, AdaGrad, Adam, RMSprop
from ctr.optim.protocol import Cost, DenseOptimizer, Spectrum
from ctr.optim.shampoo.layout import ShampooLayout, lay_out
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.variables import Value, create_variable
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part

_GRAFTING = {SGD: 0, AdaGrad: 4, RMSprop: 6, Adam: 8, LARS: 3, LAMB: 13}
"""Operations of the first-order optimizer for each weight."""
_ROOT = 14
"""Operations of a root of a [d, d] matrix, in d^3: 9 for eigenvectors, 1 for the root, 4 for its certificate."""


class DenseShampoo(DenseOptimizer):
    """Shampoo over dense weights, whose blocks a group may divide; weight decay spares vectors, such as biases."""

    core: ShampooCore

    def __init__(self, options: ShampooOptions, group: Workers = ALONE) -> None:
        self.options = options
        self._group = group
        self._names: list[str] = []
        self._decayed: list[bool] = []

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        tensors = list(weights.values())
        self.core = ShampooCore(self.options, tensors, create=_create, group=self._group, starts_late=True)
        self._names = list(weights)
        self._decayed = [len(weight.shape) > 1 for weight in weights.values()]

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"shampoo/{name}": variable for name, variable in self.core.variables.items()}

    def parts(self) -> dict[str, Part]:
        parts = {f"shampoo/{name}": self.core.blocks.part(name) for name in self.core.variables}
        return {name: part for name, part in parts.items() if part is not None}

    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, preconditions: bool) -> None:
        if preconditions:
            self.core.update(gradients, rate, self._decayed)
        else:
            self.core.graft(gradients, rate, self._decayed)

    def exchange(self) -> None:
        # An accelerator exchanges only windows and roots with the host, where float64 stays.
        with tf.device("CPU:0"):
            self.core.exchange()

    def report(self) -> dict[str, float | int]:
        report = self.core.report()
        del report["nonfinite_steps"]
        assert self.core.grafted is not None
        return {"steps": int(self.core.step.numpy()), "graft_steps": int(self.core.grafted.numpy()), **report}

    def spectra(self) -> dict[str, Spectrum]:
        return self.core.spectra(self._names)

    def timing(self) -> dict[str, float]:
        return self.core.timing()

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """Estimates a step's operations if an exchange every ``precondition_frequency`` steps recomputes all roots."""
        options = self.options
        layout = lay_out(options, [[int(size) for size in shape] for shape in shapes])
        products = int(layout.products.sum())
        roots = sum(factor.count * _ROOT * factor.size**3 for factor in layout.factors)
        return Cost(
            update=_elementwise_cost(options, layout),
            statistics=products / options.statistics.frequency,
            preconditioning=options.passes * products,
            roots=roots / options.precondition_frequency,
        )


def _create(name: str, shape: Sequence[int], dtype: tf.DType, value: Value) -> tf.Variable:
    """Creates totals in the host's memory, since a TPU only emulates float64, and all else on the step's device."""
    with tf.device("CPU:0") if name.endswith("/total") else contextlib.nullcontext():
        return create_variable(name, shape, dtype, value)


def _elementwise_cost(options: ShampooOptions, layout: ShampooLayout) -> int:
    shapes = [tensor.shape for tensor in layout.tensors]
    each = 2 + _GRAFTING[type(options.grafting)]
    each += 4 * bool(options.beta1) + 3 * bool(options.momentum) + 3 * options.nesterov
    each += 5 * bool(options.limits.absolute)
    count = each * sum(math.prod(shape) for shape in shapes)
    if options.weight_decay:
        count += 2 * sum(math.prod(shape) for shape in shapes if len(shape) > 1)
    # The norms of both directions, and the scale between them; second moments in the bases, and their roots.
    scaled = 5 + (6 if options.corrects else 0)
    preconditioned = (tensor for tensor in layout.tensors if tensor.is_preconditioned)
    return count + scaled * sum(math.prod(tensor.shape) for tensor in preconditioned)
