"""ctr.models needs Keras 2, and says so when the process has Keras 3."""

import json

import pytest

IMPORT = """
import json, os, sys
{before}
try:
    import ctr.models
except ImportError as error:
    print(json.dumps({{"refused": str(error)}}))
else:
    {after}
    print(json.dumps({{"environment": os.environ["TF_USE_LEGACY_KERAS"], "tensorflow": "tensorflow" in sys.modules}}))
"""


def import_models(fresh_python, root, before: str, after: str = "pass") -> dict:
    done = fresh_python("-c", IMPORT.format(before=before, after=after), cwd=root)
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_chosen_without_loading_tensorflow(fresh_python, root):
    assert import_models(fresh_python, root, "") == {"environment": "1", "tensorflow": False}


@pytest.mark.parametrize("value", ["0", "false", "yes"])
def test_an_environment_that_asks_for_keras_3_is_refused(fresh_python, root, value):
    found = import_models(fresh_python, root, f"os.environ['TF_USE_LEGACY_KERAS'] = '{value}'")
    assert "set TF_USE_LEGACY_KERAS=1 in the environment" in found["refused"]


@pytest.mark.slow
def test_keras_3_loaded_first_is_refused_with_what_to_do(fresh_python, root):
    found = import_models(
        fresh_python, root, "import tensorflow\nassert tensorflow.keras.Model.__module__[:6] == 'keras.'"
    )
    assert "tf.keras is Keras 3 in this process" in found["refused"]
    assert "import ctr.models before tensorflow" in found["refused"]


@pytest.mark.slow
def test_tensorflow_loaded_first_does_no_harm_while_keras_is_unused(fresh_python, root):
    after = "from ctr.models.dcn import LowRankCross as C; assert C.__mro__[2].__module__[:8] == 'tf_keras'"
    found = import_models(fresh_python, root, "import tensorflow", after)
    assert found == {"environment": "1", "tensorflow": True}
