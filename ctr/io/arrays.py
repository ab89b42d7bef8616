"""Reads archives of arrays (``.npz``), refusing pickled objects, and hashes arrays."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt


def hash_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Hashes names, types, shapes and bytes of arrays (SHA-256), independent of their order and archive."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype.name} {arrays[name].shape}\n".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def each_array(file: Path | BinaryIO) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yields names and arrays of an archive one by one, so that not all of them need be in memory.

    Raises:
        OSError: the file cannot be read.
        MemoryError: there is no memory for an array, which says nothing about the file.
        ValueError: its content is invalid.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            for name, values in archive.items():
                if not isinstance(values, np.ndarray):
                    raise ValueError(f"{name[:80]!r} is not an array")
                yield name, values
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error.__context__, OSError):
            # If reading the end of a file fails, zipfile says that it is no archive.
            raise error.__context__ from None
        # From zipfile, zlib and NumPy's header parser: a dozen types, down to errors of Python's tokenizer.
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
