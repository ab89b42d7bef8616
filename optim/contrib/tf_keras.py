"""Shampoo, SOAP and Adafactor as optimizers of Keras 2 (the package tf_keras)."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from ctr.optim.gradients import Gradient
from ctr.optim.keras import common
from ctr.optim.shampoo.schedule import when
from ctr.optim.variables import Value


class _Optimizer(common.OptimizerMixin, tf_keras.optimizers.Optimizer):
    # In every configuration of Keras 2; of no effect here, as the caller decides what is compiled.
    keras_options = ("jit_compile", "is_legacy_optimizer")
    schedule_type = tf_keras.optimizers.schedules.LearningRateSchedule

    def _init_keras(self, learning_rate: Any, **options: Any) -> None:
        tf_keras.optimizers.Optimizer.__init__(self, weight_decay=None, **options)
        self._learning_rate = self._build_learning_rate(learning_rate)

    def build(self, var_list: Sequence[Any]) -> None:
        if getattr(self, "_built", False):
            return
        names = [variable.name for variable in var_list]
        common.check_variables(self.title, var_list, names)
        super().build(var_list)

        def create(name: str, shape: Sequence[int], dtype: tf.DType, value: Value) -> tf.Variable:
            return self.add_variable(tuple(shape), dtype, tf_keras.initializers.Constant(value), name)

        self._make_core(var_list, names, create)
        self._decayed = [self._use_weight_decay(variable) for variable in var_list]
        self._built = True

    def _deduplicate_sparse_grad(self, grads: Sequence[Gradient]) -> Sequence[Gradient]:
        # ``apply_gradients`` sums repeated rows of tables later; Keras' way does not compile.
        return grads

    def _internal_apply_gradients(self, grads_and_vars: Sequence[tuple[Gradient, Any]]) -> Any:
        # The only method that gets all gradients, clipped.
        gradients = {self._index_of(variable): grad for grad, variable in grads_and_vars}
        update_averages = functools.partial(self._update_ema, [variable for _, variable in grads_and_vars])
        self._take_step(gradients, self.learning_rate, list(self._decayed), update_averages)
        return self.iterations.assign_add(1)

    def _update_ema(self, trained: Sequence[tf.Variable], component: Callable[[Any], Any]) -> None:
        """Updates moving averages of the weights, if enabled, as Keras does between a step and its count."""
        if not self.use_ema:
            return
        averages = [self._model_variables_moving_average[self._index_of(variable)] for variable in trained]
        pairs = list(zip(map(component, trained), map(component, averages), strict=True))
        for variable, average in pairs:
            average.assign(self.ema_momentum * average + (1 - self.ema_momentum) * variable)

        def overwrite() -> None:
            for variable, average in pairs:
                variable.assign(average)

        if self.ema_overwrite_frequency:
            when((component(self.iterations) + 1) % self.ema_overwrite_frequency == 0, overwrite)

    def _index_of(self, variable: tf.Variable) -> int:
        try:
            return self._index_dict[self._var_key(variable)]
        except KeyError:
            raise ValueError(
                f"unknown variable {variable.name}: this optimizer was built with others; call "
                "build(variables) with all of them before the first step"
            ) from None

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        children: dict[str, Any] = super()._trackable_children(save_type, **options)
        if save_type != "savedmodel" or getattr(self, "_replicas", None) is None:
            return children
        # A SavedModel takes plain variables alone; Keras makes a new optimizer when it reads one.
        return {**children, "_variables": self._plain_variables}

    @functools.cached_property
    def _plain_variables(self) -> Any:
        plain = [variable for variable in self._variables if isinstance(variable, tf.Variable)]
        return tf.__internal__.tracking.wrap(plain)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
        return self._add_options(config)


@tf_keras.saving.register_keras_serializable(package="ctr")
class Shampoo(common.ShampooArguments, _Optimizer):
    """Shampoo for Keras 2."""


@tf_keras.saving.register_keras_serializable(package="ctr")
class Soap(common.SoapArguments, Shampoo):
    """SOAP for Keras 2: ``Shampoo`` with the defaults of SOAP."""


@tf_keras.saving.register_keras_serializable(package="ctr")
class Adafactor(common.AdafactorArguments, _Optimizer):
    """Adafactor for Keras 2."""


class ShampooCallback(common.CallbackMixin, tf_keras.callbacks.Callback):
    """Callback that exchanges Shampoo's roots, for Keras 2."""


for each in (Shampoo, Soap, Adafactor, ShampooCallback):
    # The docstring of the part that Keras 2 and 3 share.
    each.__doc__ = each.__mro__[1].__doc__
