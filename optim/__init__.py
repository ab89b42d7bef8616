"""Optimizers. ``Shampoo``, ``ShampooCallback`` and ``Adafactor`` are those for the Keras that ``tf.keras`` is here.

from ctr.optim import Shampoo
model.compile(optimizer=Shampoo(learning_rate=0.02), loss="binary_crossentropy")

Importing this package loads neither TensorFlow nor Keras. From then on either Keras knows the optimizer as "shampoo",
and restores it in ``load_model``.
"""

import importlib
from typing import Any

from ctr.optim.adafactor_options import AdafactorOptions
from ctr.optim.by_name import register
from ctr.optim.options import ShampooOptions

__all__ = ["Adafactor", "AdafactorOptions", "Shampoo", "ShampooCallback", "ShampooOptions", "statistics_of"]

_MODULES = ("kfac", "keras_kfac", "presets", "record")
"""Those that users import by themselves, as the guide shows."""

register()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ctr.optim.{name}")
    if name == "statistics_of":
        return importlib.import_module("ctr.optim.backpack").statistics_of
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")
    import tensorflow as tf

    # Asking for a class settles which package tf.keras is.
    package = tf.keras.Model.__module__.partition(".")[0]
    adapter = importlib.import_module(f"ctr.optim.{'keras2' if package == 'tf_keras' else 'keras3'}")
    return getattr(adapter, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
