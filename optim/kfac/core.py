"""K-FAC over a list of variables, of which some are the matrices and biases of linear products (``factors.py``).

A step takes the gradients and, every few steps, the factors of the batch. Each layer takes the step size of AdaGrad,
which also trains weights in no product, and a layer until it has its first inverses. Inverses are computed within the
step, in float64; one that is not finite leaves the previous one, and is counted. A batch with factors that are not
finite is left out of all sums, and counted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import tensorflow as tf
from pydantic import Field

from ctr.optim.first_order.directions import momentum_step
from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.factors import Factors
from ctr.optim.option_types import NUMPY, Decay, Frequency, NotNegative, option_dataclass
from ctr.optim.shampoo.schedule import when
from ctr.optim.variables import Variables, create_variable


@option_dataclass()
class KfacOptions:
    """Everything but the learning rate.

    Attributes:
        damping: ``lambda`` of THESIS eq. 3.2, as a share of the mean eigenvalue of the factorization, tr A tr G / (dim
            A dim G), so that its effect does not depend on the scale of the loss.
        fisher: whether output gradients are those of labels ``sampled`` from the model, or of the labels themselves
            (``empirical``).
        decay: of the factors, per collection, bias-corrected.
        statistics_frequency: factors are collected every this many steps, and at every step of the first
            ``inverse_frequency``.
        statistics_rows: factors are of about so many rows of a batch, every n-th one, which the passes that collect
            them are made with; of a batch below twice that, of all. They change slowly, and their average is over many
            batches.
        inverse_frequency: inverses are computed every this many steps.
        initial_accumulator: initial value of AdaGrad's sums of squares.
        momentum: ``mu`` of M = mu M + (1 - mu) P; 0: none.
        weight_decay: ``lambda`` of decoupled decay, before momentum; of matrices alone.
        seed: of sampled labels.
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
    """Linear product: the indices of its matrix and of its bias, None without one, among the weights."""

    weight: int
    bias: int | None

    @property
    def weights(self) -> tuple[int, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


class KfacCore:
    """K-FAC over variables.

    Attributes:
        sizes: the rows, with that of the bias, and columns of each layer.
        variables: all state by name: of layer i ``layer{i}/inputs``, ``/outputs`` (sums that decay, float64),
            ``/left``, ``/right`` (inverses); of weight i ``tensor{i}/accumulator`` and ``/momentum``.
    """

    def __init__(self, options: KfacOptions, weights: Sequence[tf.Variable], layers: Sequence[Layer]) -> None:
        self.options, self.weights, self.layers = options, list(weights), list(layers)
        self.sizes: list[tuple[int, int]] = []
        for layer in layers:
            rows, columns = map(int, weights[layer.weight].shape)
            self.sizes.append((rows + len(layer.weights) - 1, columns))
        self.dtype = tf.float64 if any(weight.dtype == tf.float64 for weight in weights) else tf.float32
        self.variables = made = Variables(create_variable, self.dtype)
        self.step, self.collections, self.failed, self.refreshed = (
            made.make(name, [], tf.int64) for name in ("step", "collections", "failed", "refreshed")
        )
        self._ready = made.make("ready", [len(layers)])
        # By layer and kind.
        self._state: list[dict[str, tf.Variable]] = []
        for number, (rows, columns) in enumerate(self.sizes):
            sides = {"inputs": rows, "outputs": columns, "left": rows, "right": columns}
            self._state.append({})
            for kind, size in sides.items():
                dtype = tf.float64 if kind in Factors._fields else self.dtype
                self._state[number][kind] = made.make(f"layer{number}/{kind}", [size, size], dtype)
        for index, weight in enumerate(weights):
            made.make(f"tensor{index}/accumulator", weight.shape, value=options.initial_accumulator)
            if options.momentum:
                made.make(f"tensor{index}/momentum", weight.shape)

    def update(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, factors: Callable[[], Sequence[Factors]]
    ) -> None:
        """Takes one step on all weights, in place; matrices decay.

        Gradients have the shapes of the weights, and ``rate`` is a scalar. ``factors`` computes the means over the
        batch's rows of each layer, where this step takes them; ``step`` is still that of the step before, and the
        weights are those that the gradients are of.
        """
        options, number = self.options, self.step + 1
        collects = tf.equal(number % options.statistics_frequency, 0) | (number <= options.inverse_frequency)
        when(collects, lambda: self._collect(factors()))
        step = self.step.assign_add(1, read_value=True)
        due = tf.equal(step, 1) | tf.equal(step % options.inverse_frequency, 0)
        # The first inverses are those of few rows: they are soon computed anew.
        due |= tf.equal(step, 5) | tf.equal(step, 20)
        when(due, self._invert)
        gradients, grafts = [tf.cast(one, self.dtype) for one in gradients], []
        for index, one in enumerate(gradients):
            kept = self.variables[f"tensor{index}/accumulator"]
            sums = kept.assign_add(tf.square(one), read_value=True)
            grafts.append(tf.math.divide_no_nan(one, tf.sqrt(sums)))
        directions = list(grafts)
        found = [self._precondition(number, gradients, grafts) for number in range(len(self.layers))]
        for layer, whole in zip(self.layers, found, strict=True):
            rows, _ = self.weights[layer.weight].shape
            directions[layer.weight] = whole[:rows]
            if layer.bias is not None:
                directions[layer.bias] = tf.reshape(whole[rows:], self.weights[layer.bias].shape)
        for index, direction in enumerate(directions):
            self._move(index, direction, tf.cast(rate, self.dtype))

    def _collect(self, found: Sequence[Factors]) -> None:
        if not found:
            return
        decay = self.options.decay
        finite = tf.stack([_all_finite(one) for one in found])
        # Nothing would ever take a number that is not finite out of the sums again; and all have one number of
        # collections.
        self.failed.assign_add(tf.math.count_nonzero(~finite))

        def add() -> None:
            for state, factors in zip(self._state, found, strict=True):
                for side, value in factors._asdict().items():
                    kept = state[side]
                    kept.assign(decay * kept + (1.0 - decay) * tf.cast(value, tf.float64))
            self.collections.assign_add(1)

        when(tf.reduce_all(finite), add)

    def _invert(self) -> None:
        if not self.layers:
            return
        decay = tf.constant(self.options.decay, tf.float64)
        correction = 1.0 - tf.pow(decay, tf.cast(self.collections, tf.float64))
        outcomes = [self._invert_layer(state, correction) for state in self._state]
        refreshed, failed = (tf.stack(flags) for flags in zip(*outcomes, strict=True))
        self._ready.assign(tf.where(refreshed, tf.ones_like(self._ready), self._ready))
        for counter, flags in ((self.refreshed, refreshed), (self.failed, failed)):
            counter.assign_add(tf.math.count_nonzero(flags))

    def _invert_layer(
        self, state: Mapping[str, tf.Variable], correction: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whether a layer's inverses are new, and whether they failed, bool scalars."""
        sums = Factors(
            *(tf.math.divide_no_nan(state[side].read_value(), correction) for side in Factors._fields)
        )
        # A layer that is switched off has no gradients yet.
        finite = _all_finite(sums)
        # Decompositions of other numbers may raise an error, or never end.
        sums = Factors(*(tf.where(finite, one, tf.eye(one.shape[0], dtype=one.dtype)) for one in sums))
        there = (kfac.mean_eigenvalue(sums.inputs) > 0) & (kfac.mean_eigenvalue(sums.outputs) > 0)
        damping = kfac.whole_damping(sums, self.options.damping)
        damping = tf.where(there, damping, tf.ones_like(damping))
        new = [tf.cast(inverse, self.dtype) for inverse in kfac.damped_inverses(sums, damping)]
        sound = finite & _all_finite(new)
        for kind, value in zip(("left", "right"), new, strict=True):
            state[kind].assign(tf.where(there & sound, value, state[kind]))
        return there & sound, there & ~sound

    def _precondition(
        self, number: int, gradients: Sequence[tf.Tensor], grafts: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        parts, (_, columns), state = self.layers[number].weights, self.sizes[number], self._state[number]

        def joined(given: Sequence[tf.Tensor]) -> tf.Tensor:
            rows = [tf.reshape(given[index], [-1, columns]) for index in parts]
            return rows[0] if len(rows) == 1 else tf.concat(rows, axis=0)

        found = kfac.precondition(Factors(state["left"], state["right"]), joined(gradients))
        norm = tf.norm(found)
        usable = (self._ready[number] > 0) & (norm > 0) & tf.math.is_finite(norm)
        scale = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(grafts[index]) for index in parts])) / norm
        return tf.cond(usable, lambda: scale * found, lambda: joined(grafts))

    def _move(self, index: int, direction: tf.Tensor, rate: tf.Tensor) -> None:
        options, weight = self.options, self.weights[index]
        if options.weight_decay and len(weight.shape) > 1:
            direction += options.weight_decay * tf.cast(weight, self.dtype)
        if options.momentum:
            kept = self.variables[f"tensor{index}/momentum"]
            average, direction = momentum_step(kept, direction, options.momentum)
            kept.assign(average)
        weight.assign_sub(tf.cast(rate * direction, weight.dtype))

    def report(self) -> dict[str, float | int]:
        """Returns how many layers there are and have inverses, and how many inverses were computed or failed."""
        return {
            "layers": len(self.layers),
            "layers_ready": int(self._ready.numpy().sum()),
            "refreshed": int(self.refreshed.numpy()),
            "failed": int(self.failed.numpy()),
        }


def _all_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values]))
