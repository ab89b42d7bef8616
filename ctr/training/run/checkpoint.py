"""Checkpoints: all arrays of a run and its position, in one folder that appears whole or not at all.

::

    checkpoints/00000000000000150000/arrays.npz   no pickled objects
    checkpoints/00000000000000150000/state.json   with the SHA-256 of arrays.npz

The folder gets its name by a rename after all its files are on disk; so the greatest name is the newest.

Each of several workers writes the arrays that it shares, the others to ``arrays-1.npz`` ..., and the first one also
those that all have, with a record of the parts. So any other number of workers can read them.
"""

import hashlib
import json
import logging
import secrets
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

import numpy as np

from ctr.io.arrays import each_array
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
from ctr.workers.cluster import WorkerLostError
from ctr.workers.parts import Part, reshard, reshard_to, shard

log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype]]

WEIGHTS = "weights|"
"""Prefix of the names of a state's arrays; the other arrays belong to metrics."""
ARRAYS = "arrays.npz"
_STATE = "state.json"
_DAMAGED = ".damaged"
_FAULTS = (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile)
_PIECE = 1 << 22
_MOMENT = 5.0
_LOOK_EVERY = 0.02  # seconds

Wanted = Callable[[str, int], Part | None]
"""From the name of an array and the length of its first or divided axis to the part of it to read; None: all of it."""


class Share(NamedTuple):
    """One worker's share of a checkpoint."""

    rank: int
    size: int
    parts: Mapping[str, Part]  # by the names of arrays, without the arrays that all workers have
    nbytes: int  # of the arrays of all workers
    patience: float  # seconds that the first worker waits for the files of others; 0: however long it takes
    attempt: str = ""  # of ``begin``: names the notes, so that nobody reads one that an earlier attempt left
    is_leaving: Callable[[], bool] = lambda: False  # this process is going to end: it waits a moment only


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes an archive, which appears whole or not at all; returns its SHA-256."""
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


def write_part(folder: Path, arrays: Mapping[str, np.ndarray], share: Share) -> None:
    """Writes the arrays of a worker other than the first, then a note that announces them to the first."""
    name = f"arrays-{share.rank}.npz"
    entry = _file_entry(name, write_arrays(folder / name, arrays), share)
    # The note lasts until it is read. Once it has its name, the first worker may rename the folder: nothing more can be
    # done in it.
    note = _note(folder, share.rank, share)
    new = note.with_suffix(".new")
    new.write_text(json.dumps(entry))
    new.replace(note)


def collect_parts(folder: Path, sha256: str, share: Share) -> list[dict[str, Any]]:
    """Waits for the files of all workers; returns entries for ``read_parts``. Raises WorkerLostError: some are late."""
    entries = [_file_entry(ARRAYS, sha256, share)]
    begun = time.monotonic()

    def patience() -> float:
        return _MOMENT if share.is_leaving() else share.patience

    for rank in range(1, share.size):
        note = _note(folder, rank, share)
        while not note.exists():
            if patience() and time.monotonic() - begun > patience():
                raise WorkerLostError(f"{folder}: worker {rank} has not written its part in {patience():g} s")
            time.sleep(_LOOK_EVERY)
        entries.append(dict(parse_json(note.read_bytes())))
        note.unlink()
    return entries


def _file_entry(file: str, sha256: str, share: Share) -> dict[str, Any]:
    return {
        "file": file,
        "sha256": sha256,
        "parts": {name: part.as_json() for name, part in share.parts.items()},
    }


def _note(folder: Path, rank: int, share: Share) -> Path:
    return folder / f"part-{rank}{share.attempt}.json"


def read_parts(
    folder: Path, entries: Iterable[Mapping[str, Any]], wanted: Wanted = lambda name, rows: None
) -> tuple[dict[str, np.ndarray], dict[str, Part]]:
    """Reads the arrays of a checkpoint file by file; also returns the requested parts of arrays, by name.

    ``entries`` are from ``collect_parts``; without ``parts`` an array is whole. Raises ValueError if parts are missing.
    """
    whole: dict[str, list[tuple[Part, np.ndarray]]] = {}
    arrays: dict[str, np.ndarray] = {}
    parts: dict[str, Part] = {}
    seen: dict[str, int] = {}
    for entry in entries:
        of_file = {name: Part.from_json(content) for name, content in entry.get("parts", {}).items()}
        for name, values in each_array(folder / entry["file"]):
            part = of_file.get(name)
            selected = wanted(name, part.total if part is not None else len(values) if values.ndim else 0)
            if selected is None and part is None:
                arrays[name] = values
            elif selected is None and part is not None:
                whole.setdefault(name, []).append((part, values))
            elif selected is not None and part is None:
                parts[name], arrays[name] = selected, shard(values, selected)
            elif selected is not None and part is not None:
                parts[name], arrays[name] = selected, reshard_to(selected, [(part, values)], arrays.get(name))
                seen[name] = seen.get(name, 0) + len(part.rows)
    for name, count in seen.items():
        if count != parts[name].total:
            raise ValueError(f"{name}: {count} of {parts[name].total} rows are there")
    return arrays | {name: reshard(pieces) for name, pieces in whole.items()}, parts


class Copies:
    """Copies of arrays in memory that checkpoints reuse: fresh pages cost more than copying."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def make_room(self, layout: Layout) -> None:
        """Touches the memory for arrays of these shapes and dtypes, so that the first copy need not."""
        for name, (shape, dtype) in layout.items():
            flat = self._room(name, shape, dtype).reshape(-1)
            for begin in range(0, len(flat), _PIECE):
                flat[begin : begin + _PIECE] = 0

    def copy(
        self, layout: Layout, pieces: Iterable[tuple[str, int, np.ndarray]], more: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Copies arrays from pieces (name, first row, values), and ``more``; valid until the next call."""
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
    share: Share | None = None,
) -> None:
    """Writes the checkpoint of position ``examples`` and deletes all but the newest ``keep``.

    ``share`` is this worker's share if there are several, after the first one has called ``begin``. Older
    checkpoints than the newest are deleted first on a disk that is full.

    Raises PassingError if the disk has no room for it; then nothing was deleted.
    """
    final = _path(folder, examples)
    partial = folder / f"{final.name}{PARTIAL}"
    if share is not None and share.rank:
        write_part(partial, arrays, share)
        return
    if share is None:
        make_folder(folder)
        _remove_leftovers(folder)
    nbytes = sum(array.nbytes for array in arrays.values()) if share is None else share.nbytes
    _make_room(folder, nbytes)
    if share is None:
        partial.mkdir()
    digest = write_arrays(partial / ARRAYS, arrays)
    content = {**state, "arrays_sha256": digest}
    if share is not None:
        content["worker_files"] = collect_parts(partial, digest, share)
    content["state_sha256"] = _state_hash(content)
    write_atomic(partial / _STATE, lambda file: file.write((json.dumps(content, indent=1) + "\n").encode()))
    if final.exists():
        # One that was not due, of the same position.
        final.rename(folder / f"{final.name}.former{PARTIAL}")
    partial.rename(final)
    sync_folder(folder)
    clean_up(folder, keep)


def begin(folder: Path, examples: int) -> str:
    """Makes the folder for several workers' checkpoint at ``examples``; returns a random tag that all use."""
    make_folder(folder)
    _remove_leftovers(folder)
    (folder / f"{examples:020d}{PARTIAL}").mkdir()
    return f"-{secrets.token_hex(4)}"


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f"*{PARTIAL}"):
        shutil.rmtree(leftover)


def clean_up(folder: Path, keep: int) -> None:
    """Deletes leftovers of an interrupted ``save``, and all checkpoints but the newest ``keep``."""
    _remove_leftovers(folder)
    complete = _complete_checkpoints(folder)
    for old in complete[:-keep]:
        delete_version(old)
    for damaged in folder.glob(f"*{_DAMAGED}"):
        # It stays for inspection until the run is well past it.
        if len(complete) >= keep and damaged.name < complete[-keep].name:
            delete_version(damaged)


def _make_room(folder: Path, needed: int) -> None:
    """Deletes the oldest checkpoints, but the newest one, until another one fits."""
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
    """Returns the numbers of rows scored and learned from at the newest sound checkpoint; 0 without one."""
    # Loads pyarrow, without which a finished run is printed.
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
    """Reads arrays, state and parts that a worker needs from a checkpoint that the first one has checked.

    Raises InputError: the checkpoint is damaged or missing.
    """
    path = _path(folder, examples)
    try:
        state = _read_state(path)
        arrays, parts = read_parts(path, _array_files(state), wanted)
    except _FAULTS as error:
        raise InputError(f"{path}: the checkpoint is damaged ({error})") from None
    return arrays, state, parts


def read(folder: Path, examples: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads arrays and state of the checkpoint of position ``examples``, or of the newest one; changes nothing.

    Raises InputError: there is none, or it is damaged.
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
    """Returns the state's entries of a checkpoint's arrays, or of other values by array, by names in the state."""
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
