"""Files of state that a later command reads again: held rows, histories, events in a spool.

Their content is followed by 32 bytes: the SHA-256 of the file's folder and name, and of the content. So a flipped bit,
a truncated file, and two files that were swapped are noticed before their content is used.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ctr.io.errors import InputError, one_line
from ctr.io.files import HashingFile, write_atomic

_SIZE = hashlib.sha256().digest_size


def write_state_file(path: Path, write: bytes | Callable[[Any], object]) -> None:
    """Creates or replaces a file with content, or with the output of ``write`` to a stream, followed by its hash."""

    def write_all(file: BinaryIO) -> None:
        digest = _begin(path)
        stream = HashingFile(file, digest)
        if isinstance(write, bytes):
            stream.write(write)
        else:
            write(stream)
        file.write(digest.digest())

    write_atomic(path, write_all)


def read_state_file(path: Path, remedy: str) -> pa.Buffer:
    """Maps the content of a file into memory after verifying its hash.

    Raises InputError, with the ``remedy`` as a hint, if the file is missing, damaged or unreadable.
    """
    if not path.is_file():
        raise InputError(f"{path}: the file is missing", remedy)
    try:
        with pa.memory_map(str(path)) as file:
            buffer = file.read_buffer()
    except (OSError, pa.ArrowException) as error:
        # Arrow cannot map an empty file.
        if path.stat().st_size:
            raise InputError(f"{path}: cannot be read: {one_line(error)}") from None
        buffer = pa.py_buffer(b"")
    digest, content = _begin(path), buffer.slice(0, max(len(buffer) - _SIZE, 0))
    digest.update(content)
    if digest.digest() != buffer.slice(len(content)).to_pybytes():
        raise InputError(f"{path}: damaged: its content does not have the SHA-256 at its end", remedy)
    return content


def _begin(path: Path) -> Any:
    return hashlib.sha256(f"{path.parent.name}/{path.name}\n".encode())
