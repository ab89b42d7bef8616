"""K-FAC for Sequential and Functional models of either Keras, as a complete training step.

    trainer = KfacTrainer(model, "binary_crossentropy", learning_rate=0.02)
    for inputs, labels in batches:
        loss = trainer.step(inputs, labels)

Keras does not pass optimizers the inputs of layers and the gradients of their outputs, so the step runs the model.
"""

import inspect
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.optim.gradients import all_finite
from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.core import KfacCore, KfacOptions, Layer, Scale
from ctr.optim.kfac.output_losses import LOSSES, LossName, check_labels, check_loss, gradient_by_outputs
from ctr.optim.kfac.record import (
    check_inputs,
    check_model,
    has_matrix,
    is_normalization,
    leaves,
    record,
    refuse_layers,
    refuse_probabilities,
)

_ADDED = [
    f"{part}_{kind}" for part in ("kernel", "bias", "gamma", "beta") for kind in ("regularizer", "constraint")
]


class KfacTrainer:
    """Trains a model with K-FAC; frozen layers stay unchanged.

    Args:
        model: Sequential or Functional and built, of dense layers, convolutions of images, normalizations by batches or
            rows, and layers without trainable weights that behave the same in training; no regularizers or constraints.
        loss: name of the loss; cross-entropies take logits, so that the last layer has no sigmoid or softmax.
        learning_rate: learning rate of every step.
        jit_compile: whether XLA compiles the step.
        **options: fields of ``ctr.optim.kfac.core.KfacOptions``.

    Attributes:
        core: the optimizer; its ``variables`` are its whole state.
        nonfinite_steps: int64, number of steps skipped because of a non-finite gradient.

    Raises:
        ValueError: a loss, an option or a layer is not allowed.
        TypeError: an option is unknown.

    Example:
        >>> model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1)])
        >>> trainer = KfacTrainer(model, "binary_crossentropy", learning_rate=0.1)
        >>> losses = [float(trainer.step(tf.eye(4), tf.ones([4, 1]))) for _ in range(9)]
        >>> losses[-1] < losses[0]
        True
    """

    def __init__(
        self,
        model: Any,
        loss: LossName,
        learning_rate: float = 0.02,
        jit_compile: bool = False,
        **options: Any,
    ) -> None:
        check_loss(loss)
        check_model(model)
        refuse_layers(model, takes_normalizations=True)
        for layer in leaves(model):
            _check_layer(layer)
        refuse_probabilities(model, loss)
        self.model, self.loss, self._name = model, LOSSES[loss], loss
        numbers = {id(weight): number for number, weight in enumerate(model.trainable_weights)}
        # By name; frozen layers also have products.
        self._layers: dict[str, Layer | Scale] = {}
        for layer in leaves(model):
            if has_matrix(layer) and id(layer.kernel) in numbers:
                bias = numbers[id(layer.bias)] if layer.use_bias else None
                self._layers[layer.name] = Layer(numbers[id(layer.kernel)], bias)
            elif is_normalization(layer) and layer.trainable_weights:
                scale, shift = (numbers.get(id(part)) for part in (layer.gamma, layer.beta))
                self._layers[layer.name] = Scale(scale, shift)
        # Averages of batch normalizations, which a step that is skipped does not move either.
        names = ("moving_mean", "moving_variance")
        self._averages = [
            _variable(getattr(layer, name))
            for layer in leaves(model)
            for name in names
            if hasattr(layer, name)
        ]
        weights = list(map(_variable, model.trainable_weights))
        layers = list(self._layers.values())
        self.core = KfacCore(KfacOptions(**options), weights, layers)
        self._rate = tf.Variable(0.0, trainable=False, dtype=self.core.dtype)
        self.learning_rate = learning_rate
        self._outputs = int(model.output_shape[-1])
        self.nonfinite_steps = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._step = tf.function(self._take_step, jit_compile=jit_compile or None, autograph=False)

    @property
    def learning_rate(self) -> float:
        return float(self._rate.numpy())

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        is_number = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
        if not (is_number and 0 <= rate <= float(np.finfo(np.float32).max)):
            raise ValueError(f"learning_rate is {rate!r}; allowed: a number from 0 up")
        self._rate.assign(rate)

    def step(self, inputs: Any, labels: Any) -> tf.Tensor:
        """Trains on a batch; returns its mean loss before the step, scalar. Raises ValueError for an invalid batch."""
        inputs, labels = tf.convert_to_tensor(inputs), tf.convert_to_tensor(labels)
        if not inputs.shape.rank or not inputs.shape[0]:
            raise ValueError("the batch has no rows; allowed: at least one")
        check_inputs(self.model, inputs)
        # At every step: a graph traced for a shape does not check values.
        check_labels(self._name, labels, tf.TensorShape([inputs.shape[0], self._outputs]))
        return self._step(inputs, labels)

    def _take_step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        core = self.core
        averages = [average.read_value() for average in self._averages]
        with tf.GradientTape() as tape:
            outputs = self.model(inputs, training=True)
            mean = tf.reduce_mean(self.loss.values(labels, outputs))
        gradients = tape.gradient(mean, core.weights)

        def update() -> tf.Tensor:
            core.update(gradients, self._rate.read_value(), partial(self._factors, inputs, labels))
            return tf.constant(0, tf.int64)

        def skip() -> tf.Tensor:
            for variable, average in zip(self._averages, averages, strict=True):
                variable.assign(average)
            return tf.constant(1, tf.int64)

        skipped = tf.cond(all_finite(gradients), update, skip)
        self.nonfinite_steps.assign_add(skipped)
        return mean

    def _factors(self, inputs: tf.Tensor, labels: tf.Tensor) -> list[kfac.Factors | kfac.Units]:
        options = self.core.options
        # Every n-th row, at least ``statistics_rows`` of them if there are so many.
        rows, most = inputs.shape[0] or tf.shape(inputs)[0], options.statistics_rows
        stride = max(rows // most, 1) if isinstance(rows, int) else tf.maximum(rows // most, 1)
        chosen = tf.range(0, rows, stride)
        run = record(self.model, tf.gather(inputs, chosen), in_training=True)
        run = run._replace(products=[product for product in run.products if product.name in self._layers])
        if options.fisher == "sampled":
            sent = self.loss.draw(
                run.outputs, tf.stack([tf.constant(options.seed, tf.int64), self.core.step])
            )
        else:
            sent = gradient_by_outputs(partial(self.loss.values, tf.gather(labels, chosen)), run.outputs)
        by_layer: dict[str, kfac.Factors | kfac.Units] = {}
        for product, gradients in zip(run.products, run.send(sent), strict=True):
            layer = self._layers[product.name]
            if isinstance(layer, Scale):
                has = [index is not None for index in layer]
                by_layer[product.name] = kfac.units(product.inputs, gradients, *has)
            else:
                by_layer[product.name] = kfac.factors(product.inputs, gradients, product.has_bias)
        return [by_layer[name] for name in self._layers]


def _variable(weight: Any) -> tf.Variable:
    # Variables of Keras 3 hold TensorFlow's.
    return weight if isinstance(weight, tf.Variable) else weight.value


def _check_layer(layer: Any) -> None:
    for what in ("activity_regularizer", *_ADDED):
        if getattr(layer, what, None) is not None:
            raise ValueError(
                f"the layer {layer.name} has a {what}; allowed: none (see the option weight_decay)"
            )
    if has_matrix(layer) or is_normalization(layer):
        return
    # Lambda passes it on to a function that takes it.
    if "training" in inspect.signature(getattr(layer, "function", layer.call)).parameters:
        raise ValueError(
            f"the layer {layer.name} ({type(layer).__name__}) behaves differently in training, which K-FAC's step "
            "does not run; allowed: Dense, Conv2D, normalizations, and layers that always do the same"
        )
