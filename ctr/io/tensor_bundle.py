"""Reads the variables of a SavedModel, or of a checkpoint of TensorFlow, without TensorFlow.

``PREFIX.index`` is a sorted table of LevelDB, from each tensor's name to a message ``BundleEntryProto``;
``PREFIX.data-00000-of-00001`` has the bytes of one tensor after the other. Sources: ``tensor_bundle.h``,
``tensor_bundle.proto`` and ``table_format.txt`` of TensorFlow.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_DATA_TYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    14: np.dtype(ml_dtypes.bfloat16),
}
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def read_bundle(prefix: Path) -> dict[str, np.ndarray]:
    """Maps the tensors of a bundle of one data file to memory: by name, read-only; those of text are left out.

    Nothing is read before it is used, but tensors that begin where numbers of their type may not are copied. Checksums
    are not verified: a model's metadata has hashes of its files.

    Raises:
        ValueError: the files are malformed, or have something that no export has.
        OSError: they cannot be read.
    """
    index = prefix.with_name(f"{prefix.name}.index").read_bytes()
    data = np.asarray(np.memmap(prefix.with_name(f"{prefix.name}.data-00000-of-00001"), np.uint8, "r"))
    try:
        entries = dict(_entries(index))
        return {
            name.decode(): tensor
            for name, entry in entries.items()
            if name and (tensor := _tensor(entry, data)) is not None
        }
    except (IndexError, struct.error, TypeError) as error:
        raise ValueError(f"not a bundle of tensors: {error}") from None


def _tensor(entry: bytes, data: np.ndarray) -> np.ndarray | None:
    fields: dict[int, int] = {}
    shape: list[int] = []
    for number, value in _fields(entry):
        if number == 2 and isinstance(value, bytes):
            dimensions = [dict(_fields(one)) for key, one in _fields(value) if key == 2]  # type: ignore[arg-type]
            shape = [int(dimension.get(1, 0)) for dimension in dimensions]
        elif isinstance(value, int):
            fields[number] = value
        else:
            raise ValueError("a tensor in slices")
    kind = _DATA_TYPES.get(fields.get(1, 0))
    if kind is None:
        return None
    begin, size = fields.get(4, 0), fields.get(5, 0)
    if fields.get(3, 0) or size != math.prod(shape) * kind.itemsize or begin + size > len(data):
        raise ValueError(f"a tensor of shape {shape} does not fit its {size} bytes")
    tensor = data[begin : begin + size].view(kind).reshape(shape)
    # NumPy would copy all of it whenever some of its rows are taken.
    return tensor if tensor.flags.aligned else tensor.copy()


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(table) < _FOOTER or struct.unpack("<Q", table[-8:])[0] != _MAGIC:
        raise ValueError("not a sorted table")
    footer, place = table[-_FOOTER:], 0
    handles = []
    for _ in range(4):
        number, place = _varint(footer, place)
        handles.append(number)
    for _, handle in _block(table, handles[2], handles[3]):
        begin, place = _varint(handle, 0)
        size, _ = _varint(handle, place)
        yield from _block(table, begin, size)


def _block(table: bytes, begin: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if begin + size >= len(table) or table[begin + size] != 0:
        raise ValueError("a block is compressed or outside the file")
    block = table[begin : begin + size]
    end = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    place, key = 0, b""
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + length]
        place += length


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
            yield tag >> 3, message[place : place + size]
        elif kind in (_FIXED_32, _FIXED_64):
            size = 4 if kind == _FIXED_32 else 8
            yield tag >> 3, int.from_bytes(message[place : place + size], "little")
        else:
            raise ValueError(f"a field of kind {kind}")
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
