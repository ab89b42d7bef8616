"""Archives of arrays."""

import errno
import hashlib
import io
import os
import pickle
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ctr.io.arrays import each_array, hash_arrays


def read_arrays(file: Path | io.BytesIO) -> dict[str, np.ndarray]:
    return dict(each_array(file))


def pack(members: dict[str, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    file.seek(0)
    return file


def array(descr: str, shape: str, content: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def test_the_hash_covers_name_type_shape_and_every_byte():
    text = b"a float32 (2, 1)\n" + np.array([1, 2], np.float32).tobytes()
    assert hash_arrays({"a": np.array([[1], [2]], np.float32)}) == hashlib.sha256(text).hexdigest()
    plain = {"a": np.array([1.0, 2.0], np.float32), "b": np.array([1, 2]), "c": np.array(0.5, np.float32)}
    changed = [
        {"c": np.array(0.25, np.float32)},
        {"a": plain["a"].view(np.int32)},
        {"a": plain["a"].reshape(2, 1)},
        {"a": plain["a"] * np.float32(-1)},
        {"b": np.array([2, 1])},
        {"d": np.zeros(0)},
    ]
    hashes = {hash_arrays({**plain, **change}) for change in changed}
    assert len({hash_arrays(plain), *hashes}) == len(changed) + 1
    assert hash_arrays(dict(reversed(plain.items()))) == hash_arrays(plain)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (array("'<f8'", "(10,)", bytes(64)), "."),
        (array("'|O'", "(1,)", pickle.dumps([print])), "pickle"),
        (array("'<f8'", "x", bytes(64)), "."),
        (b"\x93NUMPY\x07\x00" + bytes(64), "."),
    ],
)
def test_members_that_are_not_what_they_say(content, words):
    with pytest.raises(ValueError, match=words) as raised:
        read_arrays(pack({"a.npy": content}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("failure", [MemoryError(), OSError(errno.EIO, os.strerror(errno.EIO))])
def test_a_shortage_or_a_disk_that_fails_is_not_taken_for_damage(failure):
    content = io.BytesIO()
    np.savez_compressed(content, a=np.arange(9), b=np.zeros(100_000))
    reads = 0

    class Failing(io.BytesIO):
        def read(self, *size):
            nonlocal reads
            reads -= 1
            if not reads:
                raise failure
            return super().read(*size)

    last = 0
    while not reads:
        last, reads = last + 1, last + 1
        with suppress(type(failure)):
            found = read_arrays(Failing(content.getvalue()))
    assert found["a"].tolist() == list(range(9))
    assert last > 5
