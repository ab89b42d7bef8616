"""Checkpoints: all arrays of a run and its position, in one folder that appears whole or not at all.

::

    checkpoints/00000000000000150000/arrays.npz   no pickled objects
    checkpoints/00000000000000150000/state.json   with the SHA-256 of arrays.npz

and of several workers a file of each other one beside the first one's ``arrays.npz``. The folder gets its name, by a
rename, when all in it is on the disk; so the greatest name points to the newest.
"""

import hashlib
import json
import logging
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ctr.io.documents import parse_json
from ctr.io.errors import InputError
from ctr.io.files import make_folder, sync_folder, write_atomic
from ctr.training.run.array_files import (
    ARRAYS,
    Share,
    Wanted,
    check_files,
    collect_parts,
    read_parts,
    write_arrays,
    write_part,
)
from ctr.workers.parts import Part

_STATE = "state.json"
_PARTIAL = ".partial"
_DAMAGED = ".damaged"
_PIECE = 1 << 22
_FAULTS = (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile)

log = logging.getLogger(__name__)

ContentT = TypeVar("ContentT")
ArrayT = TypeVar("ArrayT")

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype]]

WEIGHTS = "weights|"
"""Before the names of a state's arrays; the others are of metrics."""


class Copies:
    """Copies of arrays in memory that is kept from one checkpoint to the next: fresh pages cost more than copying."""

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
    limit: int | None = None,
    sound: tuple[int, int] = (-1, -1),
    share: Share | None = None,
) -> None:
    """Writes the checkpoint of position ``examples`` and deletes all but the newest ``keep``.

    Args:
        limit: bytes that all checkpoints may take together, this one included: older ones than the newest make room.
        sound: the positions of checkpoints that stay in any case: until this one is written, and from then on.
        share: of several workers, what this one writes of it, after the first one has called ``begin``.

    Raises InputError: there is not so much room, and nothing was deleted for it.
    """
    final = folder / f"{examples:020d}"
    partial = folder / f"{final.name}{_PARTIAL}"
    if share is not None and share.rank:
        write_part(partial, arrays, share)
        return
    if share is None:
        make_folder(folder)
        _remove_leftovers(folder)
    nbytes = sum(array.nbytes for array in arrays.values()) if share is None else share.nbytes
    _make_room(folder, nbytes, limit, sound[0])
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
        final.rename(folder / f"{final.name}.former{_PARTIAL}")
    partial.rename(final)
    sync_folder(folder)
    clean_up(folder, keep, sound[1])


def begin(folder: Path, examples: int) -> None:
    """Makes the folder in which several workers are going to write the checkpoint of position ``examples``."""
    make_folder(folder)
    _remove_leftovers(folder)
    (folder / f"{examples:020d}{_PARTIAL}").mkdir()


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f"*{_PARTIAL}"):
        shutil.rmtree(leftover)


def clean_up(folder: Path, keep: int, sound: int = -1) -> None:
    """Deletes what an interrupted ``save`` left, and all checkpoints but the newest ``keep`` and that of ``sound``."""
    _remove_leftovers(folder)
    complete = _complete(folder)
    for old in complete[:-keep]:
        if int(old.name) != sound:
            _delete(old)
    for damaged in folder.glob(f"*{_DAMAGED}"):
        # Kept to be looked at until the run is well past it.
        if len(complete) >= keep and damaged.name < complete[-keep].name:
            _delete(damaged)


def _delete(path: Path) -> None:
    # Renamed first, so that nobody finds half of it under its own name.
    shutil.rmtree(path.rename(path.with_name(f"{path.name}{_PARTIAL}")))


def _make_room(folder: Path, needed: int, limit: int | None, sound: int) -> None:
    """Deletes the oldest checkpoints, but the newest one and that of ``sound``, until another one fits."""
    complete = _complete(folder)
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in complete}
    taken, free = sum(sizes.values()), shutil.disk_usage(folder).free
    given_up = []
    for old in [*(path for path in complete[:-1] if int(path.name) != sound), None]:
        if needed <= free and (limit is None or taken + needed <= limit):
            break
        if old is None:
            room = f"{free} are free"
            if limit is not None and taken + needed > limit:
                room = f"checkpoint.disk_limit_gb allows {limit}"
            kept = f", beside the {taken} of what has to stay" if complete else ""
            raise InputError(f"{folder}: the next checkpoint takes {needed} bytes{kept}; {room}")
        given_up.append(old)
        taken, free = taken - sizes[old], free + sizes[old]
    for old in given_up:
        _delete(old)


def drop_after(folder: Path, examples: int) -> None:
    """Deletes the checkpoints of positions after ``examples``, the newest first.

    Raises InputError where that of ``examples``, unless it is 0, is not there; then none is deleted.
    """
    if examples and not (folder / f"{examples:020d}").is_dir():
        raise InputError(
            f"{folder}: the checkpoint {examples} is missing, but the run has to roll back to it"
        )
    for path in reversed(_complete(folder)):
        if int(path.name) > examples:
            _delete(path)
    if folder.is_dir():
        sync_folder(folder)


def _state_hash(content: Mapping[str, Any]) -> str:
    covered = {key: value for key, value in content.items() if key != "state_sha256"}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir() and path.name.isdecimal())


def restore_newest(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Reads the arrays and state of the newest checkpoint whose bytes are what was written; None where there is none.

    A damaged one is reported and renamed: it must not count among those that ``save`` keeps, nor stand where the next
    one will be. Raises InputError where every one is damaged.
    """
    return _newest_sound(folder, _read)


def newest_sound(folder: Path) -> int | None:
    """Finds the position of the checkpoint that ``restore_newest`` takes, without its arrays; see there."""

    def position(path: Path) -> int:
        _check(path)
        return int(path.name)

    return _newest_sound(folder, position)


def _newest_sound(folder: Path, read: Callable[[Path], ContentT]) -> ContentT | None:
    damaged: list[Path] = []
    for path in reversed(_complete(folder)):
        try:
            content = read(path)
        except _FAULTS as error:
            log.warning("checkpoint %s is damaged (%s); the one before it is used", path, error)
            damaged.append(path)
            continue
        for other in damaged:
            aside = other.with_name(f"{other.name}{_DAMAGED}")
            shutil.rmtree(aside, ignore_errors=True)
            other.rename(aside)
        return content
    if damaged:
        raise InputError(f"{folder}: every checkpoint is damaged; delete the run directory to start again")
    return None


def read_share(
    folder: Path, examples: int, wanted: Wanted
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Part]]:
    """Reads arrays, state and parts that one of several workers needs of a checkpoint that another one has checked."""
    path = folder / f"{examples:020d}"
    try:
        state = _read_state(path)
        arrays, parts = read_parts(path, _files(state), wanted)
    except _FAULTS as error:
        raise InputError(f"{path}: the checkpoint is damaged ({error})") from None
    return arrays, state, parts


def read(folder: Path, examples: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads arrays and state of the checkpoint of position ``examples``, or of the newest one; changes nothing."""
    while True:
        found = _complete(folder)
        if not found:
            raise InputError(f"{folder}: there is no checkpoint")
        chosen = found[-1:] if examples is None else [path for path in found if int(path.name) == examples]
        positions = ", ".join(str(int(path.name)) for path in found)
        if not chosen:
            raise InputError(f"{folder}: there is no checkpoint {examples}; there are {positions}")
        try:
            return _read(chosen[0])
        except _FAULTS as error:
            # Of a run that goes on it may have been deleted meanwhile; then others are there.
            if chosen[0].exists():
                raise InputError(
                    f"{chosen[0]}: the checkpoint is damaged ({error}); there are {positions}"
                ) from None


def weights_of(arrays: Mapping[str, ArrayT]) -> dict[str, ArrayT]:
    """Selects what there is for the arrays of a state, by their names there."""
    return {name.removeprefix(WEIGHTS): array for name, array in arrays.items() if name.startswith(WEIGHTS)}


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    state = _check(path)
    arrays, _ = read_parts(path, _files(state))
    return arrays, state


def _check(path: Path) -> dict[str, Any]:
    state = _read_state(path)
    check_files(path, [(entry["file"], entry["sha256"]) for entry in _files(state)])
    return state


def _read_state(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = parse_json((path / _STATE).read_bytes())
    if state["state_sha256"] != _state_hash(state):
        raise ValueError(f"{_STATE} was changed")
    return state


def _files(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    return state.get("worker_files") or [{"file": ARRAYS, "sha256": state["arrays_sha256"]}]
