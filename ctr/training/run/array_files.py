"""The arrays of a checkpoint in files: one, or one of each worker where several train together.

Each worker writes what it has parts of, and the first one also what all have; which parts they are is noted beside. So
a checkpoint of any number of workers is read as that of one process, or by any other number of them.
"""

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

import numpy as np

from ctr.io.arrays import each_array
from ctr.io.documents import parse_json
from ctr.io.files import file_sha256, write_atomic
from ctr.workers.cluster import WorkerLostError
from ctr.workers.parts import Part, reshard, reshard_to, shard

ARRAYS = "arrays.npz"
_PIECE = 1 << 22
_LOOK_EVERY = 0.02
_MOMENT = 5.0

Wanted = Callable[[str, int], Part | None]
"""From the name of an array and the length of its first or divided axis to the part of it to read; None: all of it."""


class Share(NamedTuple):
    """What one of several workers writes of a checkpoint."""

    rank: int
    size: int
    parts: Mapping[str, Part]  # by the names of arrays; those that all workers have are not there
    nbytes: int  # of the arrays of all workers
    patience: float  # seconds that the first worker waits for the files of others; 0: however long it takes
    is_leaving: Callable[[], bool] = lambda: False  # this process is going to end: it waits a moment only


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes an archive, which appears whole or not at all; returns its SHA-256."""
    digest = hashlib.sha256()
    write_atomic(path, lambda file: _write(cast(IO[bytes], _Hashing(file, digest)), arrays))
    return digest.hexdigest()


class _Hashing(io.RawIOBase):
    """Writes to a file front to back, and hashes what it writes: the file need not be read again for that."""

    def __init__(self, file: BinaryIO, digest: "hashlib._Hash") -> None:
        self._file, self._digest = file, digest

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._digest.update(content)
        return self._file.write(content)


def _write(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """What ``np.savez`` writes, from the arrays' own memory instead of a second copy."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            array = np.asarray(array, order="C")
            if array.dtype.hasobject:
                raise ValueError(f"{name}: Python objects would have to be pickled")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
                content = array.reshape(-1).view(np.uint8).data
                for begin in range(0, len(content), _PIECE):
                    member.write(content[begin : begin + _PIECE])


def write_part(folder: Path, arrays: Mapping[str, np.ndarray], share: Share) -> None:
    """Writes the arrays of a worker that is not the first one, then the note that tells the first one of them."""
    name = f"arrays-{share.rank}.npz"
    entry = _entry(name, write_arrays(folder / name, arrays), share)
    # The note lasts until it is read. Once it has its name, the first worker may rename the folder: nothing more can be
    # done in it.
    new = _note(folder, share.rank).with_suffix(".new")
    new.write_text(json.dumps(entry))
    new.replace(_note(folder, share.rank))


def collect_parts(folder: Path, sha256: str, share: Share) -> list[dict[str, Any]]:
    """Waits for the files of all workers, the first of which wrote ``sha256``; returns the entries for ``read_parts``.

    Raises WorkerLostError where some did not come in time.
    """
    entries = [_entry(ARRAYS, sha256, share)]
    begun = time.monotonic()
    for rank in range(1, share.size):
        note = _note(folder, rank)
        while not note.exists():
            patience = _MOMENT if share.is_leaving() else share.patience
            if patience and time.monotonic() - begun > patience:
                raise WorkerLostError(f"{folder}: worker {rank} has not written its part in {patience:g} s")
            time.sleep(_LOOK_EVERY)
        entries.append(dict(parse_json(note.read_bytes())))
        note.unlink()
    return entries


def _entry(file: str, sha256: str, share: Share) -> dict[str, Any]:
    return {
        "file": file,
        "sha256": sha256,
        "parts": {name: part.as_json() for name, part in share.parts.items()},
    }


def _note(folder: Path, rank: int) -> Path:
    return folder / f"part-{rank}.json"


def check_files(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Raises ValueError where a file does not have the SHA-256 that comes with its name."""
    for name, sha256 in files:
        if file_sha256(folder / name) != sha256:
            raise ValueError(f"{name} does not have the recorded SHA-256")


def read_parts(
    folder: Path, entries: Iterable[Mapping[str, Any]], wanted: Wanted = lambda name, rows: None
) -> tuple[dict[str, np.ndarray], dict[str, Part]]:
    """Reads the arrays of a checkpoint file by file, and says of those not wanted whole which parts they are.

    ``entries``: of ``collect_parts``; of whole arrays without ``parts``. Raises ValueError where parts are missing.
    """
    whole: dict[str, list[tuple[Part, np.ndarray]]] = {}
    arrays: dict[str, np.ndarray] = {}
    parts: dict[str, Part] = {}
    seen: dict[str, int] = {}
    for name, part, values in _read_all(folder, entries):
        total = part.total if part is not None else len(values) if values.ndim else 0
        own = wanted(name, total)
        if part is None and own is None:
            arrays[name] = values
        elif own is None:
            assert part is not None
            whole.setdefault(name, []).append((part, values))
        elif part is None:
            parts[name], arrays[name] = own, shard(values, own)
        else:
            parts[name], arrays[name] = own, reshard_to(own, [(part, values)], arrays.get(name))
            seen[name] = seen.get(name, 0) + len(part.rows)
    for name, count in seen.items():
        if count != parts[name].total:
            raise ValueError(f"{name}: {count} of {parts[name].total} rows are there")
    return arrays | {name: reshard(found) for name, found in whole.items()}, parts


def _read_all(
    folder: Path, entries: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, Part | None, np.ndarray]]:
    for entry in entries:
        parts = {name: Part.from_json(content) for name, content in entry.get("parts", {}).items()}
        for name, values in each_array(folder / entry["file"]):
            yield name, parts.get(name), values
