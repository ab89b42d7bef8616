"""Which Keras `ctr.optim` serves, and what it loads for that."""

import pytest

ALONE = """
import os, sys
before = dict(os.environ)
import ctr.optim
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
assert not {name.partition(".")[0] for name in sys.modules} & {"tensorflow", "keras", "tf_keras"}
"""

SERVES = """
from ctr.optim import Shampoo, ShampooCallback
import tensorflow as tf
assert Shampoo.__module__ == ShampooCallback.__module__ == "ctr.optim.{}", Shampoo.__module__
assert issubclass(Shampoo, tf.keras.optimizers.Optimizer)
assert issubclass(ShampooCallback, tf.keras.callbacks.Callback)
import ctr.optim.contrib.tf_keras, ctr.optim.keras.keras3
assert ctr.optim.contrib.tf_keras.Shampoo is not ctr.optim.keras.keras3.Shampoo
assert ctr.optim.Shampoo is Shampoo
assert set(ctr.optim.__all__) <= set(dir(ctr.optim)) and not hasattr(ctr.optim, "Adam")
"""


KERAS_2 = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
"""


LATE = """
import keras
try:
    keras.optimizers.get("shampoo")
except ValueError:
    ctr.optim.register()
assert type(keras.optimizers.get("shampoo")).__module__ == "ctr.optim.keras.keras3"
"""


LOADS = """
import sys
import keras, tf_keras

def load(package, path):
    return type(package.models.load_model(path).optimizer)

def load_both(package):
    for name in ("Shampoo", "Soap"):
        found = load(package, f"{package.__name__}_{name.lower()}.keras")
        assert found.__name__ == name
    return found.__module__

# Whatever else is registered, no model comes back with another optimizer than its own.
try:
    load(keras, "keras_shampoo.keras")
except TypeError as error:
    assert "Could not locate class 'Shampoo'" in str(error), error
else:
    raise AssertionError("loaded")
# A name that somebody else registered stays theirs.
keras.saving.get_custom_objects()["Shampoo"] = keras.optimizers.SGD
import ctr.optim
assert keras.saving.get_custom_objects()["Shampoo"] is keras.optimizers.SGD
assert not {"ctr.optim.contrib.tf_keras", "ctr.optim.keras.keras3"} & sys.modules.keys()
assert load_both(keras) == "ctr.optim.keras.keras3"
assert "ctr.optim.contrib.tf_keras" not in sys.modules
assert load_both(tf_keras) == "ctr.optim.contrib.tf_keras"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "module"), [(LATE, "keras.keras3"), (KERAS_2, "contrib.tf_keras")])
def test_keras_3_is_served_unless_the_environment_asks_for_keras_2(fresh_python, root, choice, module):
    fresh_python("-c", ALONE + choice + SERVES.format(module), cwd=root, path=root)


@pytest.mark.slow
def test_a_process_that_imported_nothing_but_the_package_loads_models(fresh_python, root, tmp_path):
    import keras
    import tf_keras

    from ctr.optim.contrib import tf_keras as keras2
    from ctr.optim.keras import keras3

    for package, adapter in ((keras, keras3), (tf_keras, keras2)):
        for optimizer in (adapter.Shampoo(0.125, momentum=0.9), adapter.Soap(0.125)):
            model = package.Sequential([package.layers.Input((8,)), package.layers.Dense(4)])
            model.compile(optimizer=optimizer, loss="mse")
            model.save(tmp_path / f"{package.__name__}_{optimizer.name}.keras")
    fresh_python("-c", LOADS, cwd=tmp_path, path=root)
