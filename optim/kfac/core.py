"""K-FAC over variables: matrices and biases of products, scales and shifts (``factors.py``), and other weights.

A step takes the gradients and, every few steps, the factors of the batch. Each layer uses the step size of AdaGrad,
which also trains weights outside products, and all layers before their first inverses. Inverses are computed within
the step, in float64; if one is not finite, the previous one stays, and the failure is counted. A batch with factors
that are not finite is excluded from all sums, and counted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import tensorflow as tf
from pydantic import Field

from ctr.optim.first_order.directions import momentum_step
from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.factors import Factors, Units
from ctr.optim.option_types import NUMPY, Decay, Frequency, NotNegative, option_dataclass
from ctr.optim.shampoo.schedule import when
from ctr.optim.variables import Variables, create_variable


@option_dataclass()
class KfacOptions:
    """Options of K-FAC except the learning rate.

    Attributes:
        damping: ``lambda`` of THESIS eq. 3.2, as a share of the mean eigenvalue of the factorization, tr A tr G / (dim
            A dim G), so that its effect does not depend on the scale of the loss.
        fisher: whether output gradients are for labels ``sampled`` from the model, or for the true labels
            (``empirical``).
        decay: decay of the factors, per collection, bias-corrected.
        statistics_frequency: factors are collected every so many steps, and at every step of the first
            ``inverse_frequency``.
        statistics_rows: factors are computed from about this many rows of a batch, every n-th one, and the passes that
            collect them run on these rows alone; a batch of fewer than twice as many rows is used whole. A part is
            enough because factors change slowly and are averaged over many batches.
        inverse_frequency: inverses are computed every so many steps, and at the steps 1, 5 and 20.
        initial_accumulator: initial value of AdaGrad's sums of squares.
        momentum: ``mu`` of M = mu M + (1 - mu) P; 0: none.
        weight_decay: ``lambda`` of decoupled decay, before momentum; for matrices alone.
        seed: seed of sampled labels.
    """

    damping: Annotated[float, Field(strict=True, gt=0, le=1e6), NUMPY] = 1e-2
    fisher: Literal["sampled", "empirical"] = "sampled"
    decay: Decay = 0.95
    statistics_frequency: Frequency = 10
    statistics_rows: Annotated[int, Field(strict=True, ge=1, lt=2**31), NUMPY] = 512
    inverse_frequency: Frequency = 50
    initial_accumulator: NotNegative = 1e-6
    momentum: Decay = 0.0
    weight_decay: NotNegative = 0.0
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31), NUMPY] = 1


class Layer(NamedTuple):
    """Linear product: the indices of its matrix and of its bias (None without one) among the weights.

    The matrix of a convolution has the kernel's shape [height, width, in, units].
    """

    weight: int
    bias: int | None

    @property
    def weights(self) -> tuple[int, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def shapes(self, weights: Sequence[tf.TensorShape]) -> Factors:
        """Returns the shapes of the factors and of their inverses, from the shapes of ``weights``."""
        columns = weights[0][-1]
        rows = sum(shape.num_elements() // columns for shape in weights)
        return Factors([rows, rows], [columns, columns])

    def join(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Concatenates tensors of the shapes of ``weights`` to one [in', units]."""
        return tf.concat([tf.reshape(part, [-1, part.shape[-1]]) for part in parts], axis=0)

    def split(self, whole: tf.Tensor) -> list[tf.Tensor]:
        """Splits a joined tensor into the matrix and the bias; undoes ``join``."""
        return [whole] if self.bias is None else [whole[:-1], whole[-1:]]


class Scale(NamedTuple):
    """Normalization layer: the indices of its scale and shift among the weights; None for one that it lacks."""

    scale: int | None
    shift: int | None

    @property
    def weights(self) -> tuple[int, ...]:
        return tuple(index for index in self if index is not None)

    def shapes(self, weights: Sequence[tf.TensorShape]) -> Units:
        """Returns the shape of the Fisher information, [units, k, k], from the shapes of ``weights``."""
        return Units([weights[0][0], len(weights), len(weights)])

    def join(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Stacks k tensors [units] to one [units, k]."""
        return tf.stack(parts, axis=1)

    def split(self, whole: tf.Tensor) -> list[tf.Tensor]:
        """Splits a joined tensor into scale and shift; undoes ``join``."""
        return tf.unstack(whole, axis=1)


_LEAST_DAMPING = 1e-12
_INVERSES = {Factors: ("left", "right"), Units: ("inverse",)}


class KfacCore:
    """K-FAC over variables.

    Attributes:
        variables: all state by name: ``step``, ``collections``, ``failed``, ``refreshed``, ``ready``; for layer i, in
            ``layer{i}/``, decaying float64 sums (``inputs``, ``outputs``, or ``fisher`` of a ``Scale``) and inverses
            (``left``, ``right`` or ``inverse``); for weight i ``tensor{i}/accumulator`` and, if used, ``/momentum``.
    """

    def __init__(
        self, options: KfacOptions, weights: Sequence[tf.Variable], layers: Sequence[Layer | Scale]
    ) -> None:
        self.options, self.weights, self.layers = options, list(weights), list(layers)
        self.dtype = tf.float64 if any(weight.dtype == tf.float64 for weight in weights) else tf.float32
        self.variables = state = Variables(create_variable, self.dtype)
        self.step, self.collections, self.failed, self.refreshed = (
            state.make(name, [], tf.int64) for name in ("step", "collections", "failed", "refreshed")
        )
        self._ready = state.make("ready", [len(layers)])
        # By layer: decaying sums, and inverses.
        self._sums: list[Factors | Units] = []
        self._inverses: list[Factors | Units] = []
        for number, layer in enumerate(layers):
            shapes = layer.shapes([weights[index].shape for index in layer.weights])
            names = zip(shapes._fields, _INVERSES[type(shapes)], shapes, strict=True)
            pairs = [
                (
                    state.make(f"layer{number}/{side}", shape, tf.float64),
                    state.make(f"layer{number}/{inverse}", shape),
                )
                for side, inverse, shape in names
            ]
            sums, inverses = zip(*pairs, strict=True)
            self._sums.append(type(shapes)(*sums))
            self._inverses.append(type(shapes)(*inverses))
        for index, weight in enumerate(weights):
            state.make(f"tensor{index}/accumulator", weight.shape, value=options.initial_accumulator)
            if options.momentum:
                state.make(f"tensor{index}/momentum", weight.shape)

    def update(
        self,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        factors: Callable[[], Sequence[Factors | Units]],
    ) -> None:
        """Updates all weights in place by one step; only matrices have weight decay.

        Gradients have the shapes of the weights, and ``rate`` is a scalar. If this step collects factors, ``factors``
        computes each layer's means over the batch's rows, before ``step`` and the weights change.
        """
        options, number = self.options, self.step + 1
        collects = tf.equal(number % options.statistics_frequency, 0) | (number <= options.inverse_frequency)
        when(collects, lambda: self._collect(factors()))
        step = self.step.assign_add(1, read_value=True)
        due = tf.equal(step, 1) | tf.equal(step % options.inverse_frequency, 0)
        # The first inverses are from few rows, and are soon recomputed.
        due |= tf.equal(step, 5) | tf.equal(step, 20)
        when(due, self._invert)
        gradients, grafts = [tf.cast(gradient, self.dtype) for gradient in gradients], []
        for index, gradient in enumerate(gradients):
            accumulator = self.variables[f"tensor{index}/accumulator"]
            sums = accumulator.assign_add(tf.square(gradient), read_value=True)
            grafts.append(tf.math.divide_no_nan(gradient, tf.sqrt(sums)))
        directions = list(grafts)
        preconditioned = [self._precondition(number, gradients, grafts) for number in range(len(self.layers))]
        for layer, whole in zip(self.layers, preconditioned, strict=True):
            for index, part in zip(layer.weights, layer.split(whole), strict=True):
                directions[index] = tf.reshape(part, self.weights[index].shape)
        for index, direction in enumerate(directions):
            self._move(index, direction, tf.cast(rate, self.dtype))

    def _collect(self, batch: Sequence[Factors | Units]) -> None:
        if not batch:
            return
        decay = self.options.decay
        finite = tf.stack([_all_finite(values) for values in batch])
        # A number that is not finite would stay in the sums forever; and all sums share one count of collections.
        self.failed.assign_add(tf.math.count_nonzero(~finite))

        def add() -> None:
            for sums, factors in zip(self._sums, batch, strict=True):
                for total, value in zip(sums, factors, strict=True):
                    total.assign(decay * total + (1.0 - decay) * tf.cast(value, tf.float64))
            self.collections.assign_add(1)

        when(tf.reduce_all(finite), add)

    def _invert(self) -> None:
        if not self.layers:
            return
        decay = tf.constant(self.options.decay, tf.float64)
        correction = 1.0 - tf.pow(decay, tf.cast(self.collections, tf.float64))
        pairs = zip(self._sums, self._inverses, strict=True)
        outcomes = [self._invert_layer(sums, inverses, correction) for sums, inverses in pairs]
        refreshed, failed = (tf.stack(flags) for flags in zip(*outcomes, strict=True))
        self._ready.assign(tf.where(refreshed, tf.ones_like(self._ready), self._ready))
        for counter, flags in ((self.refreshed, refreshed), (self.failed, failed)):
            counter.assign_add(tf.math.count_nonzero(flags))

    def _invert_layer(
        self, totals: Factors | Units, inverses: Factors | Units, correction: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whether a layer's inverses are new, and whether they failed, bool scalars."""
        kind = type(totals)
        sums = kind(*(tf.math.divide_no_nan(part.read_value(), correction) for part in totals))
        # A layer that is switched off has no gradients yet.
        finite = _all_finite(sums)
        # A decomposition of numbers that are not finite may raise an error, or never end.
        sums = kind(*(tf.where(finite, part, tf.eye(part.shape[-1], dtype=part.dtype)) for part in sums))
        # The mean eigenvalue of A (x) G, or of all F, is the product.
        means = [kfac.mean_eigenvalue(part) for part in sums]
        there, scale = tf.reduce_all([mean > 0 for mean in means]), math.prod(means)
        # With less damping, a decomposition in float64 could fail.
        damping = tf.constant(max(self.options.damping, _LEAST_DAMPING), scale.dtype) * scale
        damping = tf.where(there, damping, tf.ones_like(damping))
        new = [tf.cast(inverse, self.dtype) for inverse in kfac.damped_inverses(sums, damping)]
        sound = finite & _all_finite(new)
        for variable, value in zip(inverses, new, strict=True):
            variable.assign(tf.where(there & sound, value, variable))
        return there & sound, there & ~sound

    def _precondition(
        self, number: int, gradients: Sequence[tf.Tensor], grafts: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        layer = self.layers[number]
        parts = layer.weights
        step = kfac.precondition(self._inverses[number], layer.join([gradients[index] for index in parts]))
        norm = tf.norm(step)
        usable = (self._ready[number] > 0) & (norm > 0) & tf.math.is_finite(norm)
        scale = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(grafts[index]) for index in parts])) / norm
        return tf.cond(usable, lambda: scale * step, lambda: layer.join([grafts[index] for index in parts]))

    def _move(self, index: int, direction: tf.Tensor, rate: tf.Tensor) -> None:
        options, weight = self.options, self.weights[index]
        if options.weight_decay and len(weight.shape) > 1:
            direction += options.weight_decay * tf.cast(weight, self.dtype)
        if options.momentum:
            momentum = self.variables[f"tensor{index}/momentum"]
            average, direction = momentum_step(momentum, direction, options.momentum)
            momentum.assign(average)
        weight.assign_sub(tf.cast(rate * direction, weight.dtype))

    def report(self) -> dict[str, float | int]:
        """Returns the numbers of layers, of layers with inverses, and of computed and failed inverses."""
        return {
            "layers": len(self.layers),
            "layers_ready": int(self._ready.numpy().sum()),
            "refreshed": int(self.refreshed.numpy()),
            "failed": int(self.failed.numpy()),
        }


def _all_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values]))
