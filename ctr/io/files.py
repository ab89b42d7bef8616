"""Files that appear whole or not at all, hashes of files, locks between processes, and folders of versions.

Paths are local. An address such as ``s3://bucket/log`` would be taken for a local path such as
``s3:/bucket/log``, and outputs would be written there. Such a path is refused here, for all commands, keys of
configurations and functions.

The system releases a process's locks when it ends for any reason.

In a directory of versions, each folder is named by its version, a whole number. The name of an incomplete version
ends in ``PARTIAL``. TensorFlow Serving, which looks for numbers, ignores it.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

from ctr.io.errors import InputError, PassingError

log = logging.getLogger(__name__)


# One letter is a drive. A path has lost one of the slashes: Path("gs://bucket") is `gs:/bucket`.
_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")


def address_fault(path: str | os.PathLike[str]) -> str:
    """Returns why a path cannot be local, without naming it; empty if it can."""
    match = _ADDRESS.match(os.fspath(path))
    if match is None:
        return ""
    return f"is an address ({match[1]}://); allowed: a local path, to which ctr sync copies s3://, gs:// or az://"


def check_local(path: str | os.PathLike[str]) -> None:
    """Raises InputError for an address such as ``s3://bucket/log``."""
    if fault := address_fault(path):
        text = os.fspath(path)
        raise InputError(f"{text if '://' in text else text.replace(':/', '://', 1)}: {fault}")


_TEMPORARY_MARK = ".partial-"
# Folders from which this process has removed leftover temporary files.
_swept: set[str] = set()

_TEMPORARY_NAME = re.compile(rf"{re.escape(_TEMPORARY_MARK)}[0-9a-f]{{16}}$")

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def irregular(path: Path) -> str:
    """Describes what ``path`` names if it exists and is no regular file; empty otherwise.

    A symbolic link counts as irregular whatever its target: writing would replace the link by a new file, and its
    target, such as a terminal (``/dev/stdout``) or a file elsewhere, would not be written.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    if stat.S_ISLNK(mode):
        return f"a symbolic link to {os.readlink(path)}"
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def directory_fault(folder: Path) -> str:
    """Returns why ``folder`` cannot be a directory, in one line; empty if it is one or can be created."""
    if fault := address_fault(folder):
        return f"{folder}: {fault}"
    for ancestor in (folder, *folder.parents):
        # Both checks are needed: another thread may create the folder between them.
        what = irregular(ancestor)
        if what == _KINDS[stat.S_IFDIR] or ancestor.is_dir():
            return ""
        if what:
            missing = ", which does not exist" if ancestor.is_symlink() and not ancestor.exists() else ""
            return f"{ancestor}: is {what}{missing}; allowed: a directory"
        if ancestor.is_file():
            return f"{ancestor}: is a file; allowed: a directory"
    return ""


def file_fault(path: Path, kind: str, is_kind: Callable[[Path], bool]) -> str:
    """Returns why a file of a ``kind`` (with its article) must not be written to ``path``, in one line; else empty.

    A new name, an empty file and a file of the same kind are allowed; ``is_kind`` is called with a regular file.
    """
    allowed = f"allowed: a new file, or {kind} to replace"
    if what := irregular(path):
        return f"{path}: is {what}; {allowed}"
    if fault := directory_fault(path.parent):
        return fault
    if path.exists() and path.stat().st_size and not is_kind(path):
        return f"{path}: already exists, and is not {kind}; {allowed}"
    return ""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds ``path`` as the file name to an OSError that the block raises without one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync_folder(folder: Path) -> None:
    """Flushes the entries of a folder to disk, so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Creates a folder and its parents, flushed to disk. Raises InputError if a file is in the way."""
    if folder.is_dir():
        return
    if fault := directory_fault(folder):
        raise InputError(fault)
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


@contextlib.contextmanager
def _written(path: Path, write: Callable[[BinaryIO], object]) -> Iterator[Path]:
    """Yields a durable temporary file beside ``path``, locked for the block, which may rename it; deletes it after."""
    make_folder(path.parent)
    parent = os.path.abspath(path.parent)
    if parent not in _swept:
        remove_temporaries(path.parent)
        _swept.add(parent)
    # Closing the file after a failed write fails again, and that error has no file name either.
    with naming(path), contextlib.ExitStack() as stack:
        temporary, file = _create_locked(path)
        stack.callback(lambda: temporary.unlink(missing_ok=True))
        stack.enter_context(file)
        write(file)
        file.flush()
        os.fsync(file.fileno())
        yield temporary


def _create_locked(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = path.with_name(f"{path.name}{_TEMPORARY_MARK}{secrets.token_hex(8)}")
        file = temporary.open("xb")
        # A file system without locks keeps files that a killed process left.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have removed the file before it was locked.
        if temporary.exists():
            return temporary, file
        file.close()


def write_all(file: RawIOBase, content: bytes) -> None:
    """Writes all content to an unbuffered file, whose writes may be partial."""
    while content:
        content = content[file.write(content) or 0 :]


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Creates or replaces a regular file (else InputError): temporary name, fsync, rename, fsync of the folder."""
    if what := irregular(path):
        raise InputError(f"{path}: is {what}; allowed: a new name, or a regular file to replace")
    with _written(path, write) as temporary:
        temporary.replace(path)
    sync_folder(path.parent)
    log.info("wrote %s", path)


def write_atomic_bytes(path: Path, content: bytes) -> None:
    """Creates or replaces ``path`` as ``write_atomic`` does."""
    write_atomic(path, lambda file: file.write(content))


def create_exclusively(path: Path, content: bytes) -> bool:
    """Creates ``path`` with all of ``content`` unless it exists; returns whether this call created it.

    The name appears by a hard link, which is atomic and fails when the name is taken: of several publishers exactly one
    wins, and no reader ever sees half a file.
    """
    with _written(path, lambda file: file.write(content)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    log.info("wrote %s", path)
    return True


class HashingFile(RawIOBase):
    """Writes to a file front to back and hashes the written bytes, so that the file need not be read again."""

    def __init__(self, file: BinaryIO, digest: "hashlib._Hash") -> None:
        self._file, self._digest = file, digest

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._digest.update(content)
        return self._file.write(content)


def file_sha256(path: Path) -> str:
    """Hashes a file's bytes by SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_temporary(path: Path) -> bool:
    """Returns whether a file is a temporary one of ``write_atomic`` or ``create_exclusively``."""
    return _TEMPORARY_NAME.search(path.name) is not None


def remove_temporaries(folder: Path) -> None:
    """Deletes files left by interrupted writes in ``folder``. Files of a living process are locked, and stay."""
    for path in folder.glob(f"*{_TEMPORARY_MARK}*"):
        # Except files that are locked, already deleted, or owned by another user.
        if is_temporary(path) and not irregular(path):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


@contextlib.contextmanager
def hold(path: Path, busy: str = "") -> Iterator[None]:
    """Holds a lock on a folder or a file for this process until the block ends.

    Raises:
        PassingError: another process holds it; ``busy`` is the message. If ``busy`` is empty, waits instead.
        FileNotFoundError: the path does not exist.
    """
    lock = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise PassingError(busy) from None
        yield
    finally:
        os.close(lock)


def check_output_file(path: Path, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Raises InputError if ``path`` is a file of another kind, which must not be replaced (see ``file_fault``)."""
    if fault := file_fault(path, kind, is_kind):
        raise InputError(fault)


def check_output_folder(folder: Path, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Refuses to write into a directory, or a link to one, that has content, unless it is of this kind.

    ``kind`` is the command's output, with its article; ``is_kind`` is called with a directory with content.
    Raises InputError, which says what is in the way and what is allowed.
    """
    if folder.is_dir():
        held = (path.name for path in folder.iterdir() if path.name != ".lock" and not is_temporary(path))
        names = sorted(held)
        if names and not is_kind(folder):
            raise InputError(
                f"{folder} is neither empty nor {kind} (it holds {names[0]}): use another output directory"
            )
    elif what := irregular(folder) or ("a file" if folder.exists() else ""):
        raise InputError(f"{folder} is neither empty nor {kind}, but {what}: use another output directory")
    elif fault := directory_fault(folder.parent):
        raise InputError(fault)


def require_file(path: Path, what: str) -> Path:
    """Returns ``path``. Raises InputError, which names it, if there is no such file."""
    if path.is_file():
        return path
    if path.is_dir():
        raise InputError(f"{what} {path}: is a directory; allowed: a file")
    check_local(path)
    if kind := irregular(path):
        raise InputError(f"{what} {path}: is {kind}, and leads to no file; allowed: a regular file")
    raise InputError(f"{what} {path}: no such file")


_BEGINNINGS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"PAR1": "a Parquet file",
    b"SQLite format 3\x00": "an SQLite database",
    b"Obj\x01": "an Avro file",
    b"ARROW1\x00\x00": "an Arrow or Feather file",
    b"SEQ\x06": "a Hadoop sequence file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an Excel workbook (.xls)",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"%PDF-": "a PDF document",
    **{bytes((0x80, protocol)): "a Python pickle" for protocol in range(2, 6)},
}
# Words that text may also begin with.
_BINARY_BEGINNINGS = {b"ORC": "an ORC file", b"FEA1": "a Feather file"}


def not_text(path: Path) -> str:
    """Describes a file's content by its first bytes if it is not UTF-8 text; empty if it may be text."""
    with path.open("rb") as file:
        start = file.read(512)
    kind = next((what for mark, what in _BEGINNINGS.items() if start.startswith(mark)), "")
    if kind == _BEGINNINGS[b"PK\x03\x04"] and (b"[Content_Types].xml" in start or b"xl/" in start):
        kind = "an Excel workbook (.xlsx)"
    kind = "a tar archive" if start[257:262] == b"ustar" else kind
    # The length of a record below 4 GB, its checksum, and a message.
    kind = kind or ("a TFRecord file" if start[4:8] == bytes(4) and start[12:13] == b"\n" else "")
    start = start[:64]
    if not kind and min(start, default=9) < 9:
        kind = next((what for mark, what in _BINARY_BEGINNINGS.items() if start.startswith(mark)), "")
    # ASCII in UTF-16 without a mark: every other byte is 0.
    return kind or ("UTF-16" if len(start) > 3 and 0 in (max(start[::2]), max(start[1::2])) else "")


def names_in(folder: Path, suffix: str) -> list[str]:
    """Lists the names that end with ``suffix`` in a folder, unordered; none if the folder does not exist."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(suffix)]
    except FileNotFoundError:
        return []


PARTIAL = ".partial"
MODEL_FILE = "saved_model.pb"


def versions(folder: Path) -> list[Path]:
    """Lists the versions in a folder, the lowest number first."""
    return sorted(
        (path for path in folder.glob("*") if path.name.isdecimal() and path.is_dir()), key=version_number
    )


def is_partial(name: str) -> bool:
    """Returns whether a folder of this name is an incomplete version."""
    return name.endswith(PARTIAL) and name.removesuffix(PARTIAL).isdecimal()


def delete_version(path: Path) -> None:
    """Deletes a version, or a checkpoint, in a folder that this process holds."""
    # Renamed first, so that no reader sees a partly deleted version.
    shutil.rmtree(path.rename(path.with_name(f"{path.name}{PARTIAL}")))


def version_number(path: Path) -> int:
    """Returns the number of a version's folder, as listed by ``versions``."""
    return int(path.name)
