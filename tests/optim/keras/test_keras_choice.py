"""Which Keras `ctr.optim` serves, what it loads for that, and that the guide's code runs in both."""

import re

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
assert Shampoo.__module__ == ShampooCallback.__module__ == "ctr.optim.keras.{}", Shampoo.__module__
assert issubclass(Shampoo, tf.keras.optimizers.Optimizer)
assert issubclass(ShampooCallback, tf.keras.callbacks.Callback)
import ctr.optim.keras.keras2, ctr.optim.keras.keras3
assert ctr.optim.keras.keras2.Shampoo is not ctr.optim.keras.keras3.Shampoo
assert ctr.optim.Shampoo is Shampoo
assert set(ctr.optim.__all__) <= set(dir(ctr.optim)) and not hasattr(ctr.optim, "Adam")
"""


KERAS_2 = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
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
assert not {"ctr.optim.keras.keras2", "ctr.optim.keras.keras3"} & sys.modules.keys()
assert load_both(keras) == "ctr.optim.keras.keras3"
assert "ctr.optim.keras.keras2" not in sys.modules
assert load_both(tf_keras) == "ctr.optim.keras.keras2"
"""


DESCRIBED = """
ids = tf.keras.Input((26,), dtype="int32")
hidden = tf.keras.layers.Flatten()(tf.keras.layers.Embedding(100_000, 16, name="words")(ids))
hidden = tf.keras.layers.Dense(1024, name="deep1")(hidden)
hidden = tf.keras.layers.Dense(256, name="deep2")(hidden)
model = tf.keras.Model(ids, tf.keras.layers.Dense(1, name="out")(hidden))
optimizer = Shampoo()
optimizer.build(model.trainable_variables)
assert optimizer.describe() == {!r}, optimizer.describe()
"""


PAGES = ("shampoo.md", "shampoo-options.md", "shampoo-guide.md", "shampoo-migration.md")
"""Those with code, in the order in which it runs: each page goes on from the first."""


@pytest.fixture(scope="module")
def pages(root):
    return {name: (root / "docs" / name).read_text() for name in PAGES}


@pytest.fixture(scope="module")
def blocks(pages):
    found = [re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for text in pages.values()]
    assert all(found)
    return [block for page in found for block in page]


@pytest.mark.slow
def test_keras_3_is_served_by_default_and_runs_the_guide(fresh_python, root, pages, blocks, tmp_path):
    described = DESCRIBED.format(pages["shampoo-guide.md"].partition("```text\n")[2].partition("\n```")[0])
    script = tmp_path / "guide.py"
    script.write_text("\n".join([ALONE, *blocks, described, SERVES.format("keras3")]))
    fresh_python(script, cwd=tmp_path, path=root)


@pytest.mark.slow
def test_keras_2_is_served_where_the_environment_asks_for_it(fresh_python, root):
    fresh_python("-c", ALONE + KERAS_2 + SERVES.format("keras2"), cwd=root, path=root)


@pytest.mark.soak
def test_keras_2_runs_the_guide(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Keras 2 has no MultiOptimizer.
    shared = [block for block in blocks if "MultiOptimizer" not in block]
    assert len(shared) == len(blocks) - 1
    exec(compile("\n".join(shared), "guide", "exec"), {"__name__": "guide"})


@pytest.mark.slow
def test_a_process_that_imported_nothing_but_the_package_loads_models(fresh_python, root, tmp_path):
    import keras
    import tf_keras

    from ctr.optim.keras import keras2, keras3

    for package, adapter in ((keras, keras3), (tf_keras, keras2)):
        for optimizer in (adapter.Shampoo(0.125, momentum=0.9), adapter.Soap(0.125)):
            model = package.Sequential([package.layers.Input((8,)), package.layers.Dense(4)])
            model.compile(optimizer=optimizer, loss="mse")
            model.save(tmp_path / f"{package.__name__}_{optimizer.name}.keras")
    fresh_python("-c", LOADS, cwd=tmp_path, path=root)
