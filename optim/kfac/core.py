"""K-FAC over a list of variables, of which some are the matrices and biases of linear products (``kfac.py``).

A step takes the gradients and, every few steps, the factors of the batch. Weights in no product take AdaGrad's step,
and so does a layer until it has its first inverses. Inverses are computed within the step, in float64; one that is
not finite leaves the previous one, and is counted. A batch with factors that are not finite is left out of all sums,
and counted. Eigenvectors (``form="eigen"``) that XLA computes are less exact than the dtype: steps differ by some
1e-6.

Of several workers each layer has one owner, by ``assignment.balanced``, which alone keeps its sums and
inverses, and computes its direction; directions are gathered at each step. Element-wise state is on every worker.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.first_order import momentum
from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.factors import Factors
from ctr.optim.kfac.options import KfacOptions
from ctr.optim.shampoo.assignment import PRODUCT, ROOT, Block, balanced
from ctr.optim.shampoo.schedule import when
from ctr.optim.variables import Create, create_variable
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part


class Layer(NamedTuple):
    """Linear product: the indices of its matrix and of its bias, None without one, among the weights."""

    weight: int
    bias: int | None


class KfacCore:
    """K-FAC over variables; workers divide ``layers``, their gradients and factors are the same.

    Attributes:
        owners: the rank of each layer's owner.
        variables: all state by name: of layer i ``layer{i}/inputs``, ``/outputs`` (sums that decay, float64),
            ``/left``, ``/right`` (inverses or eigenvectors) and, for eigenvectors, ``/left_values``,
            ``/right_values``, all without rows where another worker owns the layer; of weight i
            ``tensor{i}/accumulator`` and ``/momentum``.
    """

    def __init__(
        self,
        options: KfacOptions,
        weights: Sequence[tf.Variable],
        layers: Sequence[Layer],
        create: Create = create_variable,
        workers: Workers = ALONE,
    ) -> None:
        self.options, self.weights, self.layers = options, list(weights), list(layers)
        self.workers, self.owners = workers, self._assign(workers.size)
        self.dtype = tf.float64 if any(weight.dtype == tf.float64 for weight in weights) else tf.float32
        self.variables: dict[str, tf.Variable] = {}

        def make(name: str, shape: Sequence[int], dtype: tf.DType, value: float = 0) -> tf.Variable:
            self.variables[name] = create(name, shape, dtype, value)
            return self.variables[name]

        self.step = make("step", [], tf.int64)
        self.collections = make("collections", [], tf.int64)
        self.failed = make("failed", [], tf.int64)
        self.refreshed = make("refreshed", [], tf.int64)
        self._ready = make("ready", [len(layers)], self.dtype)
        self._damping = make("damping", [len(layers)], self.dtype)
        for number, layer in enumerate(layers):
            for name, size in self._divided(layer).items():
                shape = [self._here(number, size), size]
                make(
                    f"layer{number}/{name}",
                    shape[:1] if name.endswith("_values") else shape,
                    tf.float64 if name in Factors._fields else self.dtype,
                )
        for index, weight in enumerate(weights):
            make(f"tensor{index}/accumulator", weight.shape, self.dtype, options.initial_accumulator)
            if options.momentum:
                make(f"tensor{index}/momentum", weight.shape, self.dtype)

    def _sizes(self, layer: Layer) -> tuple[int, int]:
        rows, columns = self.weights[layer.weight].shape
        return int(rows) + (layer.bias is not None), int(columns)

    def _divided(self, layer: Layer) -> dict[str, int]:
        rows, columns = self._sizes(layer)
        sides = {"inputs": rows, "outputs": columns}
        for side, size in (("left", rows), ("right", columns)):
            sides |= {name: size for name in self._kept() if name.startswith(side)}
        return sides

    def _assign(self, workers: int) -> tuple[int, ...]:
        """The owner of each layer: by the cost of the factors' inverses and of the products of a direction."""
        blocks = [Block(layer.weight, self._sizes(layer), (0, 1)) for layer in self.layers]
        costs = [
            sum(
                ROOT[0] * size**3 / self.options.inverse_frequency
                + PRODUCT[0] * math.prod(block.shape) * size
                for size in block.shape
            )
            for block in blocks
        ]
        return balanced(blocks, costs, workers) if workers > 1 else (0,) * len(blocks)

    def _owns(self, number: int) -> bool:
        return self.owners[number] == self.workers.rank

    def _here(self, number: int, size: int) -> int:
        return size if self._owns(number) else 0

    def parts(self) -> Mapping[str, Part]:
        if self.workers.size == 1:
            return {}
        return {
            f"layer{number}/{name}": Part(np.arange(self._here(number, size)), size)
            for number, layer in enumerate(self.layers)
            for name, size in self._divided(layer).items()
        }

    def _collects(self) -> tf.Tensor:
        step, options = self.step + 1, self.options
        return tf.equal(step % options.statistics_frequency, 0) | (step <= options.inverse_frequency)

    def update(
        self,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        factors: Callable[[], Sequence[Factors]],
        decayed: Sequence[bool] | None = None,
    ) -> None:
        """Takes one step on all weights, in place; by default matrices decay.

        ``factors`` computes of each layer the means over the batch's rows, where this step takes them; ``step`` is
        still that of the step before, and the weights are those that the gradients are of.
        """
        when(self._collects(), lambda: self._collect(factors()))
        step = self.step.assign_add(1, read_value=True)
        due = tf.equal(step, 1) | tf.equal(step % self.options.inverse_frequency, 0)
        # The first inverses are those of few rows: they are soon computed anew.
        due |= tf.equal(step, 5) | tf.equal(step, 20)
        when(due, self._invert)
        grafts = [
            self._graft(index, tf.cast(gradient, self.dtype)) for index, gradient in enumerate(gradients)
        ]
        own = {
            number: self._precondition(number, layer, gradients, grafts)
            for number, layer in enumerate(self.layers)
            if self._owns(number)
        }
        directions = list(grafts)
        for number, whole in self._gather(own).items():
            self._spread(self.layers[number], whole, directions)
        for index, direction in enumerate(directions):
            self._move(index, direction, tf.cast(rate, self.dtype), decayed)

    def _collect(self, found: Sequence[Factors]) -> None:
        if not found:
            return
        decay = self.options.decay
        finite = tf.stack([_all_finite(one) for one in found])
        # Nothing would ever take a number that is not finite out of the sums again; and all have one number of
        # collections.
        self.failed.assign_add(tf.math.count_nonzero(~finite))

        def add() -> None:
            for number, one in enumerate(found):
                for side, value in zip(Factors._fields, one, strict=True) if self._owns(number) else ():
                    kept = self.variables[f"layer{number}/{side}"]
                    kept.assign(decay * kept + (1.0 - decay) * tf.cast(value, tf.float64))
            self.collections.assign_add(1)

        when(tf.reduce_all(finite), add)

    def _invert(self) -> None:
        options = self.options
        decay = tf.constant(options.decay, tf.float64)
        correction = 1.0 - tf.pow(decay, tf.cast(self.collections, tf.float64))
        nothing = tf.zeros([], self.dtype)
        # Of each layer: whether its inverses are new, their damping, and whether they failed; 0 where another owns it.
        found = [[nothing] * len(self.layers) for _ in range(3)]
        for number in range(len(self.layers)):
            if not self._owns(number):
                continue
            sums = Factors(
                *(
                    tf.math.divide_no_nan(self.variables[f"layer{number}/{side}"].read_value(), correction)
                    for side in Factors._fields
                )
            )
            # A layer that is switched off has no gradients yet.
            finite = _all_finite(sums)
            # Decompositions of other numbers may raise an error, or never end.
            sums = Factors(*(tf.where(finite, one, tf.eye(one.shape[0], dtype=one.dtype)) for one in sums))
            there = (kfac.mean_eigenvalue(sums.inputs) > 0) & (kfac.mean_eigenvalue(sums.outputs) > 0)
            damping = kfac.whole_damping(sums, options.damping, options.relative_damping)
            damping = tf.where(there, damping, tf.ones_like(damping))
            if options.form == "inverse":
                new = dict(zip(("left", "right"), kfac.damped_inverses(sums, damping), strict=True))
            else:
                new = {}
                for side, matrix in zip(("left", "right"), sums, strict=True):
                    new[f"{side}_values"], new[side] = tf.linalg.eigh(matrix)
            cast = {name: tf.cast(value, self.dtype) for name, value in new.items()}
            sound = finite & _all_finite(list(cast.values()))
            use = there & sound
            for name, value in cast.items():
                variable = self.variables[f"layer{number}/{name}"]
                variable.assign(tf.where(use, value, variable))
            for row, value in zip(found, (use, damping, there & ~sound), strict=True):
                row[number] = tf.cast(value, self.dtype)
        if not self.layers:
            return
        refreshed, damping, failed = self.workers.all_reduce([tf.stack(row) for row in found])
        self._ready.assign(tf.where(refreshed > 0, tf.ones_like(self._ready), self._ready))
        self._damping.assign(tf.where(refreshed > 0, damping, self._damping))
        for counter, flags in ((self.refreshed, refreshed), (self.failed, failed)):
            counter.assign_add(tf.math.count_nonzero(flags))

    def _graft(self, index: int, gradient: tf.Tensor) -> tf.Tensor:
        kept = self.variables[f"tensor{index}/accumulator"]
        sums = kept.assign_add(tf.square(gradient), read_value=True)
        return tf.math.divide_no_nan(gradient, tf.sqrt(sums))

    def _precondition(
        self, number: int, layer: Layer, gradients: Sequence[tf.Tensor], grafts: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
        columns = int(self.weights[layer.weight].shape[1])

        def joined(given: Sequence[tf.Tensor]) -> tf.Tensor:
            rows = [tf.reshape(tf.cast(given[index], self.dtype), [-1, columns]) for index in parts]
            return rows[0] if len(rows) == 1 else tf.concat(rows, axis=0)

        whole = joined(gradients)
        kept = {name: self.variables[f"layer{number}/{name}"] for name in self._kept()}
        sides = Factors(kept["left"], kept["right"])
        if self.options.form == "inverse":
            found = kfac.precondition_by_inverses(sides, whole)
        else:
            values = kept["left_values"], kept["right_values"]
            found = kfac.precondition_by_eigenvectors(sides, values, self._damping[number], whole)
        norm = tf.norm(found)
        usable = (self._ready[number] > 0) & (norm > 0) & tf.math.is_finite(norm)
        scale = tf.ones_like(norm)
        if self.options.grafting == "adagrad":
            scale = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(grafts[index]) for index in parts])) / norm
        return tf.cond(usable, lambda: scale * found, lambda: joined(grafts))

    def _gather(self, own: Mapping[int, tf.Tensor]) -> Mapping[int, tf.Tensor]:
        if self.workers.size == 1 or not self.layers:
            return own
        owned = [
            [number for number, owner in enumerate(self.owners) if owner == rank]
            for rank in range(self.workers.size)
        ]
        sizes = [[math.prod(self._sizes(self.layers[number])) for number in numbers] for numbers in owned]
        largest = max(map(sum, sizes))
        flat = [tf.reshape(own[number], [-1]) for number in owned[self.workers.rank]]
        message = tf.concat([*flat, tf.zeros([largest - sum(sizes[self.workers.rank])], self.dtype)], axis=0)
        padded = [size for one in sizes for size in (*one, largest - sum(one))]
        received = iter(tf.split(self.workers.all_gather(message), padded))
        whole = {}
        for numbers in owned:
            for number in numbers:
                whole[number] = tf.reshape(next(received), self._sizes(self.layers[number]))
            next(received)  # The padding.
        return whole

    def _spread(self, layer: Layer, found: tf.Tensor, directions: list[tf.Tensor]) -> None:
        rows = int(self.weights[layer.weight].shape[0])
        directions[layer.weight] = found[:rows]
        if layer.bias is not None:
            directions[layer.bias] = tf.reshape(found[rows:], self.weights[layer.bias].shape)

    def _kept(self) -> tuple[str, ...]:
        both = ("left", "right")
        return both if self.options.form == "inverse" else (*both, "left_values", "right_values")

    def _move(
        self, index: int, direction: tf.Tensor, rate: tf.Tensor, decayed: Sequence[bool] | None
    ) -> None:
        options, weight = self.options, self.weights[index]
        decays = len(weight.shape) > 1 if decayed is None else decayed[index]
        if options.weight_decay and decays:
            direction = momentum.add_weight_decay(
                direction, tf.cast(weight, self.dtype), options.weight_decay
            )
        if options.momentum:
            kept = self.variables[f"tensor{index}/momentum"]
            average = momentum.update_momentum(kept, direction, options.momentum)
            kept.assign(average)
            direction = momentum.momentum_step(average, direction, options.momentum, options.nesterov)
        weight.assign_sub(tf.cast(rate * direction, weight.dtype))

    def report(self) -> dict[str, float | int]:
        return {
            "layers": len(self.layers),
            "layers_ready": int(self._ready.numpy().sum()),
            "refreshed": int(self.refreshed.numpy()),
            "failed": int(self.failed.numpy()),
        }


def _all_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values]))
