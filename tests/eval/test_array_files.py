"""Archives of arrays from elsewhere."""

import io
import pickle
import struct
import zipfile

import numpy as np
import pytest

from ctr.eval.array_files import read_arrays


def pack(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def array(descr: str, shape: str, content: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_wrote_comes_back(tmp_path, save):
    arrays = {
        "a/b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "text": np.array("déjà"),
        "none": np.zeros((0, 4), np.int8),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "zeros": np.zeros(100_000),
    }
    save(tmp_path / "x.npz", **arrays)
    found = read_arrays(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    for name, one in arrays.items():
        assert found[name].dtype == one.dtype
        np.testing.assert_array_equal(found[name], one)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (array("'<f8'", "(10000000000000,)", bytes(64)), "does not hold"),
        (array("'<f8'", "(2, 2)", bytes(64)), "does not hold"),
        (array("'<f8'", "(-1,)", bytes(64)), "does not hold|shape"),
        (array("'|O'", "(1,)", pickle.dumps([print])), "does not hold"),
        (array("'<f8'", "x", bytes(64)), "."),
        (array("'<f8'", "(" * 400, bytes(64)), "."),
        (b"\x93NUMPY\x07\x00" + bytes(64), "."),
        (pickle.dumps([1]), "."),
        (b"", "."),
    ],
)
def test_members_that_are_not_what_they_say(content, words):
    with pytest.raises(ValueError, match=words) as raised:
        read_arrays(pack({"a.npy": content}))
    assert "\n" not in str(raised.value)


def test_archives_that_are_refused():
    good = array("'<f8'", "(1,)", bytes(8))
    for file, words in (
        (io.BytesIO(b"no archive"), "zip"),
        (pack({"a.txt": good}), r"no array \(.npy\)"),
        (pack({"a.npy": good}, zipfile.ZIP_LZMA), "packed in another way"),
        (io.BytesIO(pack({"a.npy": good}).getvalue()[:-20]), "zip"),
    ):
        with pytest.raises(ValueError, match=words):
            read_arrays(file)
    with pytest.raises(ValueError, match=r"have 68 bytes; allowed: 10|have [0-9]+ bytes; allowed: 10"):
        read_arrays(pack({"a.npy": good}), most_bytes=10)


def test_a_member_that_says_that_it_is_larger_than_it_can_be():
    content = bytearray(pack({"a.npy": array("'|u1'", "(100000000000,)")}).getvalue())
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = struct.pack("<I", 2**32 - 2)
    with pytest.raises(ValueError, match="cannot have the 4294967294 bytes"):
        read_arrays(io.BytesIO(bytes(content)))
