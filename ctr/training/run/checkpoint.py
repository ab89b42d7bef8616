"""Checkpoints: all arrays of a run and its position, in one folder that appears whole or not at all.

::

    checkpoints/00000000000000150000/arrays.npz   no pickled objects
    checkpoints/00000000000000150000/state.json   with the SHA-256 of arrays.npz

The folder gets its name by a rename after all its files are on disk; the greatest name is the newest checkpoint.

The workers of a group write it together; any number of workers can read it (``part_files.py``).
"""

import hashlib
import json
import logging
import secrets
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np

from ctr.io.documents import parse_json
from ctr.io.errors import InputError, PassingError
from ctr.io.files import (
    PARTIAL,
    HashingFile,
    delete_version,
    file_sha256,
    make_folder,
    sync_folder,
    write_atomic,
)
from ctr.training.run.part_files import ARRAYS, ONLY_WRITER, Wanted, Writer, read_parts
from ctr.workers.parts import Part

log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype]]

WEIGHTS = "weights|"
"""Prefix of the names of a state's arrays; other prefixes name observers."""
_STATE = "state.json"
_DAMAGED = ".damaged"
_FAULTS = (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile)
_PIECE = 1 << 22


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes an .npz archive atomically; returns its SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    write_atomic(path, lambda file: _write(cast(IO[bytes], HashingFile(file, digest)), arrays))
    return digest.hexdigest()


def _write(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the bytes of ``np.savez`` directly from the arrays' memory, without a second copy."""
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


class Copies:
    """Copies of arrays, in memory that is reused by each checkpoint: fresh pages cost more than copying."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def make_room(self, layout: Layout) -> None:
        """Allocates and touches memory for arrays of these shapes and dtypes, which makes the first ``copy`` faster."""
        for name, (shape, dtype) in layout.items():
            flat = self._room(name, shape, dtype).reshape(-1)
            for begin in range(0, len(flat), _PIECE):
                flat[begin : begin + _PIECE] = 0

    def copy(
        self, layout: Layout, pieces: Iterable[tuple[str, int, np.ndarray]], more: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Copies arrays from ``pieces`` (name, first row, values) and ``more``; valid until the next call."""
        arrays = {name: self._room(name, shape, dtype) for name, (shape, dtype) in layout.items()}
        for name, begin, values in pieces:
            if values.ndim:
                arrays[name][begin : begin + len(values)] = values
            else:
                arrays[name][...] = values
        for name, array in more.items():
            arrays[name] = self._room(name, array.shape, array.dtype)
            np.copyto(arrays[name], array)
        self._arrays = arrays
        return arrays

    def _room(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        room = self._arrays.get(name)
        if room is None or (room.shape, room.dtype) != (shape, dtype):
            room = self._arrays[name] = np.empty(shape, dtype)
        return room


def save(
    folder: Path,
    examples: int,
    arrays: Mapping[str, np.ndarray],
    state: Mapping[str, Any],
    keep: int,
    writer: Writer = ONLY_WRITER,
) -> None:
    """Writes the checkpoint of position ``examples`` and deletes all but the newest ``keep``.

    Several writers call it after one called ``begin``. Raises PassingError (see ``begin``), or WorkerLostError.
    """
    final = _path(folder, examples)
    partial = folder / f"{final.name}{PARTIAL}"
    if writer.size == 1:
        begin(folder, examples, sum(array.nbytes for array in arrays.values()))
    digest = write_arrays(partial / writer.file, arrays)
    if writer.rank:
        writer.announce(partial, digest)
        return
    content = {**state, "arrays_sha256": digest}
    if others := writer.collect(partial):
        content["worker_files"] = [writer.entry(digest), *others]
    content["state_sha256"] = _state_hash(content)
    write_atomic(partial / _STATE, lambda file: file.write((json.dumps(content, indent=1) + "\n").encode()))
    if final.exists():
        # A checkpoint of the same position that was not due.
        final.rename(folder / f"{final.name}.former{PARTIAL}")
    partial.rename(final)
    sync_folder(folder)
    clean_up(folder, keep)


def begin(folder: Path, examples: int, nbytes: int) -> str:
    """Makes the folder of the checkpoint at position ``examples``; returns a random tag for all its writers.

    If the disk lacks ``nbytes``, deletes old checkpoints, but never the newest. Raises PassingError if even that does
    not free enough; then no checkpoint is deleted.
    """
    make_folder(folder)
    _remove_leftovers(folder)
    _make_room(folder, nbytes)
    (folder / f"{examples:020d}{PARTIAL}").mkdir()
    return f"-{secrets.token_hex(4)}"


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f"*{PARTIAL}"):
        shutil.rmtree(leftover)


def clean_up(folder: Path, keep: int) -> None:
    """Deletes leftovers of an interrupted ``save``, and all checkpoints except the newest ``keep``."""
    _remove_leftovers(folder)
    complete = _complete_checkpoints(folder)
    for old in complete[:-keep]:
        delete_version(old)
    for damaged in folder.glob(f"*{_DAMAGED}"):
        # It stays for inspection until the run is well past it.
        if len(complete) >= keep and damaged.name < complete[-keep].name:
            delete_version(damaged)


def _make_room(folder: Path, needed: int) -> None:
    """Deletes the oldest checkpoints, never the newest, until ``needed`` bytes are free."""
    complete = _complete_checkpoints(folder)
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in complete}
    free = shutil.disk_usage(folder).free
    given_up = []
    for old in [*complete[:-1], None]:
        if needed <= free:
            break
        if old is None:
            raise PassingError(f"{folder}: the next checkpoint takes {needed} bytes; {free} are free")
        given_up.append(old)
        free += sizes[old]
    for old in given_up:
        delete_version(old)


def newest_position(folder: Path) -> tuple[int, int]:
    """Returns the numbers of rows scored and learned from at the checkpoint of ``newest_sound``; zeros without one."""
    # Imported here, because it loads pyarrow, which printing a finished run does not need.
    from ctr.training.run.position import Position

    newest, position = newest_sound(folder), Position()
    if newest is not None:
        position = Position.from_json(_read_state(_path(folder, newest))["position"])
    return position.examples, position.learned


def _state_hash(content: Mapping[str, Any]) -> str:
    covered = {key: value for key, value in content.items() if key != "state_sha256"}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _path(folder: Path, examples: int) -> Path:
    return folder / f"{examples:020d}"


def _complete_checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir() and path.name.isdecimal())


def newest_sound(folder: Path) -> int | None:
    """Returns the position of the newest intact checkpoint, or None if there is none.

    Damaged ones are renamed, which frees their position for a new one. Raises InputError if all are damaged.
    """
    damaged: list[Path] = []
    for path in reversed(_complete_checkpoints(folder)):
        try:
            _check(path)
        except _FAULTS as error:
            log.warning("checkpoint %s is damaged (%s); the one before it is used", path, error)
            damaged.append(path)
            continue
        for other in damaged:
            aside = other.with_name(f"{other.name}{_DAMAGED}")
            shutil.rmtree(aside, ignore_errors=True)
            other.rename(aside)
        return int(path.name)
    if damaged:
        raise InputError(f"{folder}: every checkpoint is damaged; delete the run directory to start again")
    return None


def read_share(
    folder: Path, examples: int, wanted: Wanted
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Part]]:
    """Reads the ``wanted`` parts of an intact checkpoint's arrays; returns arrays, state and parts (``read_parts``).

    Raises InputError if the checkpoint is damaged or missing.
    """
    path = _path(folder, examples)
    try:
        state = _read_state(path)
        arrays, parts = read_parts(path, _array_files(state), wanted)
    except _FAULTS as error:
        raise InputError(f"{path}: the checkpoint is damaged ({error})") from None
    return arrays, state, parts


def read(folder: Path, examples: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads the arrays and state of the checkpoint at position ``examples``, or of the newest; changes nothing.

    Raises InputError if there is none, or it is damaged.
    """
    while True:
        paths = _complete_checkpoints(folder)
        if not paths:
            raise InputError(f"{folder}: there is no checkpoint")
        chosen = paths[-1:] if examples is None else [path for path in paths if int(path.name) == examples]
        positions = ", ".join(str(int(path.name)) for path in paths)
        if not chosen:
            raise InputError(f"{folder}: there is no checkpoint {examples}; there are {positions}")
        try:
            state = _check(chosen[0])
            return read_parts(chosen[0], _array_files(state))[0], state
        except _FAULTS as error:
            # A run in progress may have deleted it meanwhile; then there are newer ones.
            if chosen[0].exists():
                raise InputError(
                    f"{chosen[0]}: the checkpoint is damaged ({error}); there are {positions}"
                ) from None


def weights_of(arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Selects the entries of a checkpoint that belong to the state, by their names in the state."""
    return {name.removeprefix(WEIGHTS): array for name, array in arrays.items() if name.startswith(WEIGHTS)}


def _check(path: Path) -> dict[str, Any]:
    state = _read_state(path)
    for entry in _array_files(state):
        if file_sha256(path / entry["file"]) != entry["sha256"]:
            raise ValueError(f"{entry['file']} does not have the recorded SHA-256")
    return state


def _read_state(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = parse_json((path / _STATE).read_bytes())
    if state["state_sha256"] != _state_hash(state):
        raise ValueError(f"{_STATE} was changed")
    return state


def _array_files(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    return state.get("worker_files") or [{"file": ARRAYS, "sha256": state["arrays_sha256"]}]
