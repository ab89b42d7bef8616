"""Loads TensorFlow, which takes long and prints notices."""

import contextlib
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

from ctr.io.compiled_loops import keep_compiled_loops
from ctr.io.signals import delaying_interrupts

log = logging.getLogger("ctr")


def load_tensorflow(keeps_loops: bool = False) -> None:
    """Imports TensorFlow without its notices, which ignore the log level, and without Keras.

    TensorFlow would import Keras with everything that Keras finds (scikit-learn, Matplotlib), which takes as long as
    TensorFlow itself. Later uses of ``tf.keras`` still import Keras. ``keeps_loops``: whether to cache compiled loops.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    printed = b""
    with tempfile.TemporaryFile() as notices:
        sys.stderr.flush()
        standard_error = os.dup(2)
        os.dup2(notices.fileno(), 2)
        try:
            with _no_keras(), importing():
                import tensorflow
        except Exception:
            notices.seek(0)
            printed = notices.read()
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
            print(end=printed.decode(errors="replace"), file=sys.stderr, flush=True)
    # Its warnings, for example about a retraced function, are for developers.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    log.info("loaded TensorFlow %s", tensorflow.__version__)
    if keeps_loops:
        keep_compiled_loops()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Excludes imported objects from garbage collection.

    TensorFlow alone creates 400,000 that live as long as the process; scans of them take time. SIGINT is delayed.
    """
    before, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        with delaying_interrupts():
            yield
    finally:
        # Frozen objects are never collected: freeze once per module, not once per command of a process.
        if len(sys.modules) > before:
            gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _no_keras() -> Iterator[None]:
    hidden = {name for name in ("keras", "tf_keras") if name not in sys.modules}
    # Importing it then raises ImportError, which TensorFlow expects if there is no Keras.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
