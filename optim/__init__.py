"""``Shampoo``, ``Soap`` and ``Adafactor`` for ``tf.keras`` (Keras 2 or 3), trainers, presets and batch statistics.

Importing this package loads neither TensorFlow nor Keras. Each Keras that is already loaded then recognizes the
optimizers "shampoo" and "soap", and restores them in ``load_model`` (``register``).
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.shampoo import options
from ctr.optim.shampoo.options import ShampooOptions

if TYPE_CHECKING:
    from ctr.optim.contrib import presets
    from ctr.optim.contrib.backpack import statistics_of
    from ctr.optim.contrib.gauss_newton import GaussNewtonTrainer
    from ctr.optim.keras.keras3 import Adafactor, Shampoo, ShampooCallback, Soap
    from ctr.optim.kfac.trainer import KfacTrainer

__all__ = [
    "Adafactor",
    "AdafactorOptions",
    "GaussNewtonTrainer",
    "KfacTrainer",
    "Shampoo",
    "ShampooCallback",
    "ShampooOptions",
    "Soap",
    "options",
    "presets",
    "register",
    "statistics_of",
]

_MODULES = {
    "GaussNewtonTrainer": "contrib.gauss_newton",
    "KfacTrainer": "kfac.trainer",
    "presets": "contrib.presets",
    "statistics_of": "contrib.backpack",
}
"""Module of each name that is not a Keras optimizer; ``presets`` is itself a module."""

_ADAPTERS = {"keras": "ctr.optim.keras.keras3", "tf_keras": "ctr.optim.contrib.tf_keras"}
"""Module with the optimizers for each Keras, by the name of its package."""

# Names as of built-in optimizers, and as in saved models, where mixed-precision ones have only the class name.
_NAMES = {name: kind for kind in ("Shampoo", "Soap") for name in (kind.lower(), kind, f"ctr>{kind}")}
# Without the prefix, the name is that of Keras' built-in Adafactor.
_NAMES["ctr>Adafactor"] = "Adafactor"


class _StandIn(str):
    """Registered name from which Keras creates an optimizer, as it would from a class.

    It is a string because Keras, when it loads a model that was compiled with ``optimizer="shampoo"``, replaces the
    string by the object registered under it and passes that to ``compile``, which takes strings but not classes.
    """

    adapter: str

    def from_config(self, config: dict[str, Any]) -> Any:
        return getattr(importlib.import_module(self.adapter), _NAMES[self]).from_config(config)


def register() -> None:
    """Registers the names of the optimizers in each Keras that is loaded.

    It is called when this package is imported, and at the first access to one of its classes. If Keras is imported
    later, and a name or ``load_model`` is used before any class, call it again. Existing registrations are
    not replaced.

        >>> register()
        >>> importlib.import_module("keras").optimizers.get("shampoo")
        Shampoo(0.02)
    """
    for package, adapter in _ADAPTERS.items():
        registry = sys.modules.get(f"{package}.src.saving.object_registration")
        if registry is None:
            continue
        objects = registry.get_custom_objects()
        for name in _NAMES:
            stand_in = _StandIn(name)
            stand_in.adapter = adapter
            objects.setdefault(name, stand_in)


register()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        module = importlib.import_module(f"ctr.optim.{_MODULES[name]}")
        return module if name == "presets" else getattr(module, name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")
    import tensorflow as tf

    # Asking for a class settles which package tf.keras is.
    package = tf.keras.Model.__module__.partition(".")[0]
    adapter = importlib.import_module(_ADAPTERS["tf_keras" if package == "tf_keras" else "keras"])
    register()
    return getattr(adapter, name)


def __dir__() -> list[str]:
    return sorted(__all__)
