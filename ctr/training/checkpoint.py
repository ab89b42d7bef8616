"""Checkpoints: all arrays of a run and its position, in one folder that appears whole or not at all.

::

    checkpoints/00000000000000150000/arrays.npz   no pickled objects
    checkpoints/00000000000000150000/state.json   with the SHA-256 of arrays.npz
"""

import hashlib
import json
import logging
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctr.errors import InputError
from ctr.eval.array_files import read_arrays
from ctr.eval.documents import parse_json
from ctr.files import file_sha256, make_folder, sync_folder, write_atomic

_ARRAYS = "arrays.npz"
_STATE = "state.json"
_PARTIAL = ".partial"
_DAMAGED = ".damaged"
_FAULTS = (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile)

log = logging.getLogger(__name__)


def save(
    folder: Path, examples: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any], keep: int
) -> None:
    """Writes the checkpoint of position ``examples`` and deletes all but the newest ``keep``."""
    make_folder(folder)
    clean_up(folder, keep)
    final = folder / f"{examples:020d}"
    partial = folder / f"{final.name}{_PARTIAL}"
    partial.mkdir()
    write_atomic(partial / _ARRAYS, lambda file: np.savez(file, allow_pickle=False, **arrays))
    content = {**state, "arrays_sha256": file_sha256(partial / _ARRAYS)}
    content["state_sha256"] = _state_hash(content)
    write_atomic(partial / _STATE, lambda file: file.write((json.dumps(content, indent=1) + "\n").encode()))
    partial.rename(final)
    sync_folder(folder)
    clean_up(folder, keep)


def clean_up(folder: Path, keep: int) -> None:
    """Deletes what an interrupted ``save`` left, and all but the newest ``keep`` checkpoints."""
    for leftover in folder.glob(f"*{_PARTIAL}"):
        shutil.rmtree(leftover)
    for old in _complete(folder)[:-keep]:
        # Renamed first, so that nobody finds half of it under its own name.
        shutil.rmtree(old.rename(folder / f"{old.name}{_PARTIAL}"))


def _state_hash(content: Mapping[str, Any]) -> str:
    covered = {key: value for key, value in content.items() if key != "state_sha256"}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir() and path.name.isdigit())


def restore_newest(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The arrays and state of the newest checkpoint whose bytes are what was written.

    A damaged one is reported and the one before it taken. Then the damaged one is set aside under another
    name: it must not count among those that ``save`` keeps, nor stand where the next one will be.

    Returns:
        None when there is no checkpoint.

    Raises:
        InputError: there are checkpoints, but every one of them is damaged.
    """
    damaged: list[Path] = []
    for path in reversed(_complete(folder)):
        try:
            content = _read(path)
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


def read(folder: Path, examples: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and state of the checkpoint of position ``examples``, or of the newest one; changes nothing.

    Raises:
        InputError: there is none, or its bytes are not what was written.
    """
    while True:
        found = _complete(folder)
        if not found:
            raise InputError(f"{folder}: there is no checkpoint")
        wanted = found[-1:] if examples is None else [path for path in found if int(path.name) == examples]
        positions = ", ".join(str(int(path.name)) for path in found)
        if not wanted:
            raise InputError(f"{folder}: there is no checkpoint {examples}; there are {positions}")
        try:
            return _read(wanted[0])
        except _FAULTS as error:
            # Of a run that goes on it may have been deleted meanwhile; then others are there.
            if wanted[0].exists():
                raise InputError(
                    f"{wanted[0]}: the checkpoint is damaged ({error}); there are {positions}"
                ) from None


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    state = parse_json((path / _STATE).read_bytes())
    if state["state_sha256"] != _state_hash(state):
        raise ValueError(f"{_STATE} was changed")
    if file_sha256(path / _ARRAYS) != state["arrays_sha256"]:
        raise ValueError(f"{_ARRAYS} does not have the recorded SHA-256")
    return read_arrays(path / _ARRAYS), state
