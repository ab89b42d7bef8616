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

register()


def __getattr__(name: str) -> Any:
    if name == "statistics_of":
        return importlib.import_module("ctr.optim.backpack").statistics_of
    if name not in ("Adafactor", "Shampoo", "ShampooCallback"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tensorflow as tf

    # Asking for a class settles which package tf.keras is.
    package = tf.keras.Model.__module__.partition(".")[0]
    adapter = importlib.import_module(f"ctr.optim.{'keras2' if package == 'tf_keras' else 'keras3'}")
    return getattr(adapter, name)
