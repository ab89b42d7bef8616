"""Keras layers of the click model. They need Keras 2, which has to be chosen before TensorFlow loads.

Importing this package sets ``TF_USE_LEGACY_KERAS=1`` in the process, because tensorflow-recommenders
works with Keras 2 (the package tf-keras) only.
"""

import os
import sys


def _choose_keras_2() -> None:
    chosen = os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        # The values that TensorFlow takes for yes.
        is_keras_2 = chosen in ("true", "True", "1")
    else:
        # tf.keras is resolved at its first use; asking for a class settles which package it is.
        is_keras_2 = tensorflow.keras.Model.__module__.partition(".")[0] == "tf_keras"
    if not is_keras_2:
        raise ImportError(
            "ctr.models needs Keras 2 (tf_keras), but tf.keras is Keras 3 in this process: "
            "import ctr.models before tensorflow, or set TF_USE_LEGACY_KERAS=1 in the environment"
        )


_choose_keras_2()
