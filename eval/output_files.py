"""What a command may write over: nothing but a regular file of the kind that it writes itself."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def irregular(path: Path) -> str:
    """What ``path`` names when that is there and no regular file, in words; empty otherwise.

    A symbolic link is one whatever it points to: the name would become a file of its own, and what it stood for,
    such as a terminal (``/dev/stdout``) or a file elsewhere, would not be written.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    if stat.S_ISLNK(mode):
        return f"a symbolic link to {os.readlink(path)}"
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def directory_fault(folder: Path) -> str:
    """Why there can be no directory ``folder``, in one line; empty where there is one or can be one."""
    for place in (folder, *folder.parents):
        if place.is_dir():
            return ""
        if what := irregular(place):
            missing = ", which does not exist" if place.is_symlink() and not place.exists() else ""
            return f"{place}: is {what}{missing}; allowed: a directory"
        if place.exists():
            return f"{place}: is a file; allowed: a directory"
    return ""


def file_fault(path: Path, kind: str, is_kind: Callable[[Path], bool]) -> str:
    """Why a file must not be written to ``path``, in one line; empty where it may.

    Args:
        path: where. A new name, an empty file and a file of the same kind are allowed.
        kind: of the file, with its article, for the message.
        is_kind: returns whether a regular file is of that kind.
    """
    allowed = f"allowed: a new file, or {kind} to replace"
    if what := irregular(path):
        return f"{path}: is {what}; {allowed}"
    if fault := directory_fault(path.parent):
        return fault
    if path.exists() and path.stat().st_size and not is_kind(path):
        return f"{path}: already exists, and is not {kind}; {allowed}"
    return ""
