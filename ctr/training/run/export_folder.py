"""A folder of exported models, a folder each under its position: who may write there, and how one vanishes."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctr.io.files import check_output_folder, sync_folder
from ctr.io.locks import hold
from ctr.io.versions import (
    DELTA_FILE,
    FULL_FILE,
    PARTIAL,
    is_partial,
    is_version,
    version_number,
    versions,
)


def check_models_folder(out: Path) -> None:
    """Raises InputError where a directory is neither empty nor one of exported models."""
    check_output_folder(out, "a directory of exported models", _holds_models)


def _holds_models(folder: Path) -> bool:
    return any(
        is_partial(path.name)
        or (is_version(path.name) and any((path / name).is_file() for name in (FULL_FILE, DELTA_FILE)))
        for path in folder.iterdir()
        if path.is_dir()
    )


@contextmanager
def only_publisher(out: Path, wait: bool) -> Iterator[None]:
    """Holds a folder of models for this process, and clears away what an interrupted one left half there.

    Args:
        out: the folder, which is there.
        wait: until no other process holds it.

    Raises:
        InputError: another process holds it, and this one does not wait.
    """
    (out / ".lock").touch()
    with hold(out / ".lock", "" if wait else f"{out}: another process is exporting to this directory"):
        for leftover in out.glob(f"*{PARTIAL}"):
            if leftover.is_dir() and is_partial(leftover.name):
                shutil.rmtree(leftover)
        yield


def delete_model(path: Path) -> None:
    """Deletes one of the models in a folder that this process holds."""
    # Renamed first, so that nobody finds half of it under its own name.
    shutil.rmtree(path.rename(path.with_name(f"{path.name}{PARTIAL}")))


def drop_after(out: Path, examples: int) -> None:
    """Deletes the models of positions after ``examples``, the newest first; durably."""
    if not out.is_dir():
        return
    with only_publisher(out, wait=True):
        for version in reversed(versions(out)):
            if version_number(version) > examples:
                delete_model(version)
        sync_folder(out)
