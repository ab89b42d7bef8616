"""Working copies: a folder that a command works in, such as a run directory, and the folder of a store it is saved to.

A run writes, renames and deletes many files, of which none means anything before a checkpoint is complete. So it works
in ``CACHE/working/s3/bucket/run``, and ``save`` brings to the store what has changed there: what says that other files
are complete comes last. Whoever opens the working copy of the same address, on any machine, goes on from there.

Processes on several machines that work in one folder have a working copy each, of which one is saved. The others
(``leave_unsaved``) hand their files over to it through the store: ``hand_over``, ``wait_for``, ``expect``, ``fetch``.
Where processes share a folder, these do nothing but wait.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
    is_pulled,
    listed,
    note_pulled,
    stamp_of,
    versions_of,
)
from ctr.io.versions import PARTIAL

TREE = "working"
# What says that other files are complete, in the order in which it is saved.
_MARKS = ("", "state.json", "saved_model.pb", "summary.json")
_LAUNCHING = ".launching"
_LOCAL = (".lock", PARTIAL, ".damaged", _LAUNCHING)
_CHECKPOINTS = "checkpoints"
_LOOK_EVERY = 0.02  # seconds
_ASK_EVERY = 0.5  # seconds between two requests
_opened: dict[Path, ExitStack] = {}  # by this process, with the locks that it holds
_unsaved: set[Path] = set()  # of them those that ``save`` leaves alone


def open_working_copy(address: str) -> Path:
    """Makes a folder with what the store holds at an address, and nothing else; returns its path.

    Of a process that opened it and started this one, it stays as it is. Until ``save_outputs``, no other process of the
    machine can open it, nor a folder above or below. Raises InputError: one has.
    """
    folder = copy_of(address, TREE)
    if not is_pulled(folder):
        with ExitStack() as held:
            _lock(folder, address, held)
            make_folder(folder)
            _renew(folder)
            note_pulled(folder)
            _opened[folder] = held.pop_all()
    return folder


def _lock(folder: Path, address: str, held: ExitStack) -> None:
    locks = versions_of(folder, TREE, "locks")
    own = locks / _LOCAL[0]
    make_folder(locks)
    own.touch()
    busy = (
        f"{address}: another process works there, or in a folder above or below "
        "(workers of a cluster on one machine need a CTR_CACHE each)"
    )
    held.enter_context(hold(own, busy))
    above = (place / own.name for place in locks.parents)
    for other in (*above, *locks.rglob(own.name)):
        if other != own and other.is_file():
            with hold(other, busy):
                pass


def _renew(folder: Path) -> None:
    objects = listed(folder, TREE)
    for name, path in files_below(folder).items():
        if _is_local(name):
            path.unlink()
            continue
        one = Copy(path, TREE)
        if one.is_changed or one.tag != objects.get(name, ""):
            one.forget()
    for empty, _, _ in os.walk(folder, topdown=False):
        # A store has none.
        if empty != str(folder) and not os.listdir(empty):
            os.rmdir(empty)
    each(_get, (folder / name for name in objects if not _is_begun(name, objects)))
    for name in objects:
        if _is_begun(name, objects):
            # A checkpoint that a kill left without its state. It goes with this folder, once another one is complete.
            place = (folder / name).parent
            make_folder(place.with_name(f"{place.name}{PARTIAL}"))
            Copy(folder / name, TREE).note()


def _is_begun(name: str, objects: Mapping[str, str]) -> bool:
    place = PurePosixPath(name).parent
    return place.parent.name == _CHECKPOINTS and f"{place}/state.json" not in objects


def _get(path: Path) -> None:
    if not path.is_file():
        Copy(path, TREE).get()


def saved_to(folder: Path) -> str:
    """Returns the address that a folder is saved to; empty where it is of this machine alone."""
    # A run that begins with another one is not there before it has its name.
    return "" if folder.name.endswith(_LAUNCHING) else address_of(folder, TREE)


def save(folder: Path) -> None:
    """Brings to the store what has changed in a working copy since it was opened or saved; else does nothing.

    Raises InputError: another process has saved other files there, or the store does not answer.
    """
    if not saved_to(folder) or folder in _unsaved:
        return
    names = [name for name in files_below(folder) if not _is_local(name)]
    missing = files_below(versions_of(folder, TREE)).keys() - files_below(folder).keys()
    gone = [name for name in missing if not _is_kept(folder / name)]
    marked = [folder / name for name in gone if _mark(name)]
    for mark in range(len(_MARKS)):
        each(_save, (folder / name for name in names if _mark(name) == mark))
    each(_delete, marked)
    each(_delete, (folder / name for name in gone if not _mark(name)))


def save_outputs(out: Path | None) -> None:
    """Saves the working copies that this process has opened, which it lets go of, and an output directory in one."""
    with ExitStack() as held:
        folders = [*_opened]
        for folder in folders:
            held.push(_opened.pop(folder))
        for folder in {*folders, *([out] if out is not None else [])}:
            save(folder)


@contextmanager
def lets_go() -> Iterator[None]:
    """Lets go, after the block, of what was opened and is not saved, as where the words of a command are wrong."""
    try:
        yield
    finally:
        while _opened:
            _opened.popitem()[1].close()


def leave_unsaved(folder: Path) -> None:
    """Lets ``save`` do nothing for a working copy of this process: another machine saves its own one."""
    if folder in _opened:
        _unsaved.add(folder)
        _opened[folder].callback(_unsaved.discard, folder)


def _is_own(path: Path) -> bool:
    """Tells whether no other process has this folder: one that shares it was started by the one that opened it."""
    return any(folder == path or folder in path.parents for folder in _opened)


def hand_over(path: Path, name: Path) -> None:
    """Moves a file to where the working copy of another process has it as ``name``. Raises InputError: see ``save``."""
    if _is_own(path):
        Copy(name, TREE).put_or_agree(path, stamp_of(path))
        path.unlink()


def wait_for(path: Path, name: Path, is_late: Callable[[], bool]) -> bool:
    """Waits for a file that another process makes here, or hands over as ``name``; returns whether it came in time."""
    is_own = _is_own(path)
    while not path.exists() and not (is_own and _receive(path, name)):
        if is_late():
            return False
        time.sleep(_ASK_EVERY if is_own else _LOOK_EVERY)
    return True


def _receive(path: Path, name: Path) -> bool:
    one = Copy(name, TREE)
    found = one.content()
    if found is None:
        return False
    path.write_bytes(found[0])
    one.delete_object()
    return True


def expect(name: Path) -> None:
    """Notes a file that was handed over: it stays in the store as long as the folder that it belongs to is here."""
    if _is_own(name):
        Copy(name, TREE).note()


def fetch(folder: Path) -> None:
    """Copies what the store holds below a folder and this process's own copy lacks, or has in another version."""
    if _is_own(folder):
        copies = {Copy(folder / name, TREE): tag for name, tag in listed(folder, TREE).items()}
        lacking = [one.path for one, tag in copies.items() if one.tag != tag or not one.path.is_file()]
        each(lambda path: Copy(path, TREE).get(), lacking)


def _is_kept(path: Path) -> bool:
    places = path.parent, path.parent.with_name(f"{path.parent.name}{PARTIAL}")
    return Copy(path, TREE).is_only_noted and any(place.is_dir() for place in places)


def _delete(path: Path) -> None:
    # Nothing is done to the file: it may be back.
    Copy(path, TREE).delete_object()


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
        stamp = stamp_of(path)
        if one.is_changed:
            one.put_or_agree(path, stamp)
    except FileNotFoundError:
        # An older checkpoint made room.
        return
