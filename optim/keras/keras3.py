"""Shampoo, SOAP and Adafactor as optimizers of Keras 3 with the TensorFlow backend."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ctr.optim.gradients import Gradient
from ctr.optim.keras import common
from ctr.optim.keras.replicas import sum_over_replicas
from ctr.optim.variables import Value, filled


class _Optimizer(common.OptimizerMixin, keras.optimizers.Optimizer):
    keras_options = ("loss_scale_factor", "gradient_accumulation_steps")
    schedule_type = Callable

    def _init_keras(self, learning_rate: Any, **options: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                f"{self.title} requires Keras' backend tensorflow, not {keras.backend.backend()}"
            )
        keras.optimizers.Optimizer.__init__(self, learning_rate, **options)

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        # Keras 3 takes Keras variables, and plain variables of TensorFlow, which have no path.
        names = [getattr(variable, "path", variable.name) for variable in variables]
        common.check_variables(self.title, variables, names)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
            # Keras 3 does either inside a condition, in which replicas cannot wait for each other.
            if replicas > 1 and getattr(self, name):
                raise RuntimeError(
                    f"{name} does not work in Keras 3 under a tf.distribute strategy of {replicas} replicas, whatever "
                    "the optimizer; allowed: None"
                )
        super().build(variables)

        def create(name: str, shape: Sequence[int], dtype: tf.DType, value: Value) -> tf.Variable:
            # Keras' Constant would round to float32.
            def initial(shape: Sequence[int], dtype: Any) -> tf.Tensor:
                return filled(shape, tf.as_dtype(dtype), value)

            return self.add_variable(tuple(shape), initial, dtype.name, name=name.replace("/", "_")).value

        with tf.init_scope():
            weights = [v.value if isinstance(v, keras.Variable) else v for v in variables]
            self._make_core(weights, names, create)

    def _backend_apply_gradients(self, grads: Sequence[Gradient], trainable_variables: Sequence[Any]) -> None:
        # Before any use: Keras itself would clip each replica's gradient separately.
        super()._backend_apply_gradients(sum_over_replicas(grads), trainable_variables)

    def _backend_update_step(
        self, grads: Sequence[Gradient], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        # The only method that gets all gradients, clipped and accumulated.
        indices = [self._get_variable_index(variable) for variable in trainable_variables]
        decayed = [self._use_weight_decay(variable) for variable in self._trainable_variables]
        self._take_step(dict(zip(indices, grads, strict=True)), learning_rate, decayed)

    def get_config(self) -> dict[str, Any]:
        return self._add_options(super().get_config())


@keras.saving.register_keras_serializable(package="ctr")
class Shampoo(common.ShampooArguments, _Optimizer):
    """Shampoo for Keras 3."""


@keras.saving.register_keras_serializable(package="ctr")
class Soap(common.SoapArguments, Shampoo):
    """SOAP for Keras 3: ``Shampoo`` with the defaults of SOAP."""


@keras.saving.register_keras_serializable(package="ctr")
class Adafactor(common.AdafactorArguments, _Optimizer):
    """Adafactor for Keras 3."""


class ShampooCallback(common.CallbackMixin, keras.callbacks.Callback):
    """Callback that exchanges Shampoo's roots, for Keras 3."""


for each in (Shampoo, Soap, Adafactor, ShampooCallback):
    # The docstring of the part that Keras 2 and 3 share.
    each.__doc__ = each.__mro__[1].__doc__
