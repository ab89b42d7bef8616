"""Archives of arrays (``.npz``) that may come from anyone: no pickled objects, no more memory than they are worth."""

import hashlib
import io
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

# What DEFLATE can make of a byte.
_LARGEST_RATIO = 1032
# What NumPy writes of an array of numbers or text. Its parser is that of Python, which deep nesting overcomes.
_HEADER = re.compile(
    rb"\{'descr': '[<>|=]?[a-zA-Z?][0-9]*(?:\[[0-9a-zA-Z]+\])?', 'fortran_order': (?:True|False), "
    rb"'shape': \([0-9, ]*\), \} *\n"
)
_MOST_BYTES = 2**40


def read_arrays(file: Path | BinaryIO, most_bytes: int = _MOST_BYTES) -> dict[str, npt.NDArray[Any]]:
    """Reads an archive that ``np.savez`` or ``np.savez_compressed`` wrote; unpacked, at most so many bytes.

    Raises:
        OSError: it cannot be read.
        MemoryError: there is no memory for the arrays, which says nothing about the file.
        ValueError: anything is wrong with its content.
    """
    return dict(each_array(file, most_bytes))


def hash_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Hashes names, types, shapes and bytes of arrays (SHA-256), by name: neither order nor archive counts."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype.name} {arrays[name].shape}\n".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def each_array(
    file: Path | BinaryIO, most_bytes: int = _MOST_BYTES
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yields names and arrays one by one, so that not all of them need be in memory; see ``read_arrays``."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            # Members lie before the directory that names them.
            _check_members(members, most_bytes, archive.start_dir)
            for member in members:
                yield member.filename.removesuffix(".npy"), _read(archive, member)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error.__context__, OSError):
            # To zipfile a disk that does not give the end of a file makes it no archive.
            raise error.__context__ from None
        # Of zipfile, zlib and NumPy's header parser: a dozen kinds, down to those of Python's tokenizer.
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def _check_members(members: list[zipfile.ZipInfo], most_bytes: int, packed_bytes: int) -> None:
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise ValueError("an array appears twice")
    total = packed = 0
    for member in members:
        if not member.filename.endswith(".npy"):
            raise ValueError(f"{member.filename[:80]!r} is not an array (.npy)")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename[:80]!r} is compressed in a way that NumPy does not use")
        packed += member.compress_size
        if packed > packed_bytes or member.file_size > _LARGEST_RATIO * member.compress_size:
            raise ValueError(
                f"{member.filename[:80]!r} cannot have the {member.file_size} bytes that it declares"
            )
        total += member.file_size
    if total > most_bytes:
        raise ValueError(f"its arrays have {total} bytes; allowed: {most_bytes}")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(member) as stream:
        # The longest header of NumPy's own is shorter by far.
        head = io.BytesIO(stream.read(1 << 16))
    version = np.lib.format.read_magic(head)
    begin = head.tell()
    length = int.from_bytes(head.read({(1, 0): 2, (2, 0): 4}[version]), "little")
    text = head.read(length)
    if not _HEADER.fullmatch(text):
        raise ValueError(f"{member.filename[:80]!r} does not hold an array of numbers or text: {text[:80]!r}")
    head.seek(begin)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[version](head)
    # An array of empty texts has any number of them in no bytes.
    fits = dtype.itemsize and math.prod(shape) * dtype.itemsize == member.file_size - head.tell()
    if dtype.hasobject or not fits:
        raise ValueError(f"{member.filename[:80]!r} does not hold {shape} {dtype}")
    with archive.open(member) as stream:
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array
