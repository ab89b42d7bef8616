"""Files that TensorFlow writes."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

_NUMBERS = {
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.PermissionDeniedError: errno.EACCES,
    tf.errors.NotFoundError: errno.ENOENT,
}


@contextlib.contextmanager
def written_by_tensorflow(path: Path) -> Iterator[None]:
    """What TensorFlow says in the block of a disk that is full or fails becomes an OSError about ``path``."""
    try:
        yield
    except tf.errors.OpError as error:
        number = _NUMBERS.get(type(error), errno.EIO)
        lines = error.message.splitlines()
        raise OSError(number, lines[0] if lines else type(error).__name__, str(path)) from error
