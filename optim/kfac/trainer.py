"""K-FAC for Sequential models of either Keras, as a training step of its own.

    trainer = KfacTrainer(model, "binary_crossentropy", learning_rate=0.02)
    for inputs, labels in batches:
        loss = trainer.step(inputs, labels)

No Keras optimizer is given the inputs of layers and the gradients by their outputs, so the step runs the model's
layers.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.optim.gradients import all_finite
from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.core import KfacCore, KfacOptions, Layer
from ctr.optim.kfac.output_losses import LOSSES, LossName, check_labels, gradient_by_outputs
from ctr.optim.kfac.record import (
    is_dense,
    is_sequential,
    record,
    refuse_probabilities,
    sequential_products,
    takes_training,
)
from ctr.optim.option_types import make_options

_ADDED = [f"{part}_regularizer" for part in ("kernel", "bias", "activity")] + [
    "kernel_constraint",
    "bias_constraint",
]


class KfacTrainer:
    """Trains a model, built of dense layers and layers without weights; frozen layers stay as they are.

    Args:
        model: Sequential and built.
        loss: its name; cross-entropies are those of logits, so that the last layer has no sigmoid or softmax.
        learning_rate: of every step.
        jit_compile: whether XLA compiles the step.
        **options: of ``ctr.optim.kfac.core.KfacOptions``.

    Attributes:
        core: the optimizer; its ``variables`` are all of its state.
        nonfinite_steps: int64, steps that were skipped for a gradient that is not finite.

    Raises:
        ValueError: a loss, an option or a layer that is not allowed.

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
        if loss not in LOSSES:
            raise ValueError(f"loss is {loss!r}; allowed: {', '.join(LOSSES)}")
        if not is_sequential(model) or not model.built:
            raise ValueError(f"{type(model).__name__} is not a built Sequential model; allowed: only that")
        _check_layers(model.layers)
        refuse_probabilities(model, loss)
        self.model, self.loss, self._name = model, LOSSES[loss], loss
        # Those of Keras 3 hold TensorFlow's.
        weights = [
            weight if isinstance(weight, tf.Variable) else weight.value for weight in model.trainable_weights
        ]
        numbers = {id(weight): number for number, weight in enumerate(model.trainable_weights)}
        # Frozen layers have products, too.
        learning = [layer for layer in model.layers if is_dense(layer) and id(layer.kernel) in numbers]
        self._learning = {layer.name for layer in learning}
        layers = [
            Layer(numbers[id(layer.kernel)], numbers[id(layer.bias)] if layer.use_bias else None)
            for layer in learning
        ]
        self.core = KfacCore(make_options(KfacOptions, "K-FAC", options), weights, layers)
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
        """Learns from a batch; returns the mean loss before the step, scalar. ValueError: no rows, or a wrong shape."""
        inputs, labels = tf.convert_to_tensor(inputs), tf.convert_to_tensor(labels)
        if not inputs.shape.rank or not inputs.shape[0]:
            raise ValueError("the batch has no rows; allowed: at least one")
        # At every step: what the graph of a shape does with other values is TensorFlow's to say.
        check_labels(self._name, labels, tf.TensorShape([inputs.shape[0], self._outputs]))
        return self._step(inputs, labels)

    def _take_step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        core = self.core
        with tf.GradientTape() as tape:
            outputs, _ = sequential_products(self.model, inputs)
            mean = tf.reduce_mean(self.loss.values(labels, outputs))
        gradients = tape.gradient(mean, core.weights)

        def update() -> tf.Tensor:
            core.update(gradients, self._rate.read_value(), partial(self._factors, inputs, labels))
            return tf.constant(0, tf.int64)

        skipped = tf.cond(all_finite(gradients), update, lambda: tf.constant(1, tf.int64))
        self.nonfinite_steps.assign_add(skipped)
        return mean

    def _factors(self, inputs: tf.Tensor, labels: tf.Tensor) -> list[kfac.Factors]:
        options = self.core.options
        chosen = kfac.chosen_rows(inputs.shape[0] or tf.shape(inputs)[0], options.statistics_rows)
        run = record(self.model, tf.gather(inputs, chosen))
        run = run._replace(products=[product for product in run.products if product.name in self._learning])
        if options.fisher == "sampled":
            sent = self.loss.draw(
                run.outputs, tf.stack([tf.constant(options.seed, tf.int64), self.core.step])
            )
        else:
            sent = gradient_by_outputs(partial(self.loss.values, tf.gather(labels, chosen)), run.outputs)
        count = tf.cast(tf.shape(run.outputs)[0], run.outputs.dtype)
        found = (kfac.factors(a, g, has_bias) for _, a, g, has_bias in run.send(sent))
        return [kfac.Factors(*(sums / count for sums in one)) for one in found]


def _check_layers(layers: Sequence[Any]) -> None:
    for layer in layers:
        inner = getattr(layer, "layers", ())
        _check_layers(inner)
        for what in _ADDED:
            if getattr(layer, what, None) is not None:
                raise ValueError(
                    f"the layer {layer.name} has a {what}; allowed: none (see the option weight_decay)"
                )
        if not inner and not is_dense(layer) and takes_training(layer):
            raise ValueError(
                f"the layer {layer.name} ({type(layer).__name__}) behaves differently in training, which K-FAC's step "
                "does not run; allowed: Dense, and layers that always do the same"
            )
