"""Which Keras `ctr.optim` serves, what it loads for that, and that the guide's code runs in both."""

import ast
import dataclasses
import re

import pytest

from ctr.optim import ShampooOptions
from ctr.optim.keras.common import TABLES

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

# Whatever else is registered, no model comes back with another optimizer than its own.
try:
    load(keras, "keras.keras")
except TypeError as error:
    assert "Could not locate class 'Shampoo'" in str(error), error
else:
    raise AssertionError("loaded")
# A name that somebody else registered stays theirs.
keras.saving.get_custom_objects()["Shampoo"] = keras.optimizers.SGD
import ctr.optim
assert keras.saving.get_custom_objects()["Shampoo"] is keras.optimizers.SGD
assert not {"ctr.optim.keras.keras2", "ctr.optim.keras.keras3"} & sys.modules.keys()
assert load(keras, "keras.keras").__module__ == "ctr.optim.keras.keras3"
assert "ctr.optim.keras.keras2" not in sys.modules
assert load(tf_keras, "tf_keras.keras").__module__ == "ctr.optim.keras.keras2"
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


@pytest.fixture(scope="module")
def guide(root):
    return (root / "docs" / "shampoo.md").read_text()


@pytest.fixture(scope="module")
def blocks(guide):
    found = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(found) >= 4
    return found


@pytest.mark.slow
def test_keras_3_is_served_by_default_and_runs_the_guide(fresh_python, root, guide, blocks, tmp_path):
    described = DESCRIBED.format(guide.partition("```text\n")[2].partition("\n```")[0])
    script = tmp_path / "guide.py"
    script.write_text("\n".join([ALONE, *blocks, described, SERVES.format("keras3")]))
    fresh_python(script, cwd=tmp_path, path=root)


@pytest.mark.slow
def test_keras_2_is_served_where_the_environment_asks_for_it(fresh_python, root):
    fresh_python("-c", ALONE + KERAS_2 + SERVES.format("keras2"), cwd=root, path=root)


@pytest.mark.slow
def test_keras_2_runs_the_guide(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), "guide", "exec"), {"__name__": "guide"})


@pytest.mark.slow
def test_a_process_that_imported_nothing_but_the_package_loads_models(fresh_python, root, tmp_path):
    import keras
    import tf_keras

    from ctr.optim.keras import keras2, keras3

    for package, adapter in ((keras, keras3), (tf_keras, keras2)):
        model = package.Sequential([package.layers.Input((8,)), package.layers.Dense(4)])
        model.compile(optimizer=adapter.Shampoo(0.125, momentum=0.9), loss="mse")
        model.save(tmp_path / f"{package.__name__}.keras")
    fresh_python("-c", LOADS, cwd=tmp_path, path=root)


SHOWN = """
import pydoc, sys
import ctr.optim
names = set(dir(ctr.optim))
assert set(ctr.optim.__all__) <= names, names
assert not {"tensorflow", "keras", "tf_keras"} & sys.modules.keys()
assert all(hasattr(ctr.optim, name) for name in names)
for name, option in (("Shampoo", "precondition_frequency = 50"), ("Adafactor", "decay_power = 0.8")):
    text = pydoc.plain(pydoc.render_doc(getattr(ctr.optim, name)))
    assert option in text and "learning_rate: a number or a schedule" in text, text
assert "class Shampoo(" in pydoc.plain(pydoc.render_doc(ctr.optim))
"""


def test_what_there_is_can_be_listed_without_tensorflow_and_read(fresh_python, root):
    fresh_python("-c", SHOWN, cwd=root, path=root)


def test_other_names_are_no_attributes():
    import ctr.optim

    with pytest.raises(AttributeError, match="no attribute 'Adam'"):
        ctr.optim.Adam  # noqa: B018
    optimizers = {"Adafactor", "AdafactorOptions", "Shampoo", "ShampooCallback", "ShampooOptions"}
    assert set(ctr.optim.__all__) == optimizers | {"KfacTrainer", "presets", "statistics_of"}


def test_the_guide_has_every_option_with_its_default(guide):
    table = guide.partition("## Options")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", table, re.MULTILINE)
    documented = {name: ast.literal_eval(default.strip().strip("`")) for name, default in rows}
    defaults = {field.name: field.default for field in dataclasses.fields(ShampooOptions)}
    own = {"learning_rate": 0.02, "tables": TABLES, "name": "shampoo", "num_replicas_per_group": None}
    assert documented == defaults | own
