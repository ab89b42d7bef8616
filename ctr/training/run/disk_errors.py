"""Disk errors reported by TensorFlow."""

import contextlib
import errno
import os
import re
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
    """Converts TensorFlow errors raised in the block, such as for a full disk, to an OSError about ``path``."""
    try:
        yield
    except tf.errors.OpError as error:
        number = _NUMBERS.get(type(error), errno.EIO)
        raise OSError(number, _words(number, error), str(path)) from error


def _words(number: int, error: tf.errors.OpError) -> str:
    if number != errno.EIO:
        return os.strerror(number)
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]", "", error.message.partition("\n")[0])
    return text.strip(" ;:") or os.strerror(number)
