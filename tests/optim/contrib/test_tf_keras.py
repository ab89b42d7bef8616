"""The optimizers for Keras 2, and tensorflow-recommenders, in a process of their own: there `tf.keras` is Keras 2."""

import os
import subprocess
import sys

import pytest

TESTS = {
    "tests/optim/keras/test_steps.py": "not slow",
    "tests/optim/keras/test_common.py": "not slow",
    "tests/serving/test_recommenders.py": "not soak",
    "tests/optim/keras/test_training.py": "soak",
}


# The first is slow, the others are soak.
@pytest.mark.slow(first=1)
@pytest.mark.parametrize("path", TESTS)
def test_in_keras_2(path, root):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", TESTS[path], path]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:]
