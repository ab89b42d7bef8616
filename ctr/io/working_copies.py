"""Working copies: a folder that a command works in, such as a run directory, and the folder of a store it is saved to.

A run writes, renames and deletes many files, of which none means anything before a checkpoint is complete. So it works
in ``CACHE/working/s3/bucket/run``, and ``save`` brings to the store what has changed there: what says that other files
are complete comes last. Whoever opens the working copy of the same address, on any machine, goes on from there.
"""

from pathlib import Path, PurePosixPath

from ctr.io.files import is_temporary, make_folder
from ctr.io.locks import hold
from ctr.io.stores import (
    LOCAL,
    Copy,
    address_of,
    copy_of,
    each,
    files_below,
    listed,
    mark_pulled,
    versions_of,
)

TREE = "working"
# What says that other files are complete, in the order in which it is saved.
_MARKS = ("", "state.json", "delta.npz", "saved_model.pb", "summary.json")
_opened: set[Path] = set()  # by this process
_LOCK = ".lock"
_LOCAL = (_LOCK, ".partial", ".damaged")


def open_working_copy(address: str) -> Path:
    """Makes a folder with what the store holds at an address, and nothing else; returns its path.

    Of a process that opened it and started this one, it stays as it is. Raises InputError: another process works in it.
    """
    folder = copy_of(address, TREE)
    if mark_pulled(folder):
        make_folder(folder)
        (folder / _LOCK).touch()
        with hold(folder / _LOCK, f"{address}: another process works in it"):
            _renew(folder)
        _opened.add(folder)
    return folder


def _renew(folder: Path) -> None:
    objects = listed(folder, TREE)
    for name, path in files_below(folder).items():
        if name == _LOCK:
            continue
        if _is_local(name):
            path.unlink()
            continue
        one = Copy(path, TREE)
        if one.is_changed or one.tag != objects.get(name, ""):
            one.forget()
    each(_get, (folder / name for name in objects))


def _get(path: Path) -> None:
    if not path.is_file():
        Copy(path, TREE).get()


def saved_to(folder: Path) -> str:
    """Returns the address that a folder is saved to; empty where it is of this machine alone."""
    return address_of(folder, TREE)


def save(folder: Path) -> None:
    """Brings to the store what has changed in a working copy since it was opened or saved; else does nothing.

    Raises InputError: another process has saved other files there, or the store does not answer.
    """
    if not saved_to(folder):
        return
    names = [name for name in files_below(folder) if not _is_local(name)]
    for mark in range(len(_MARKS)):
        each(_save, (folder / name for name in names if _mark(name) == mark))
    gone = files_below(versions_of(folder, TREE)).keys() - files_below(folder).keys()
    for mark in reversed(range(len(_MARKS))):
        each(lambda path: Copy(path, TREE).delete(), (folder / name for name in gone if _mark(name) == mark))


def save_outputs(out: Path | None) -> None:
    """Saves the working copies that this process has opened, which it lets go of, and an output directory in one."""
    for folder in {*_opened, *([out] if out is not None else [])}:
        save(folder)
    _opened.clear()


def _is_local(name: str) -> bool:
    parts = PurePosixPath(name).parts
    is_local = any(part.endswith(_LOCAL) or part.startswith(LOCAL) for part in parts)
    return is_local or is_temporary(Path(name))


def _mark(name: str) -> int:
    name = PurePosixPath(name).name
    return _MARKS.index(name) if name in _MARKS else 0


def _save(path: Path) -> None:
    one = Copy(path, TREE)
    try:
        # What is written to a file meanwhile counts as a change.
        mtime_ns = path.stat().st_mtime_ns
        if one.is_changed:
            one.put_or_agree(path, mtime_ns)
    except FileNotFoundError:
        # An older checkpoint made room.
        return
