"""Input files: finds them, orders and names them, and opens them."""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctr.data.mapping import Mapping, input_patterns
from ctr.io.errors import InputError
from ctr.io.files import not_text
from ctr.io.paths import check_local

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class SourceFile:
    """One input file. ``name`` is used in rejects and in the hashes of rows, and does not depend on the machine."""

    number: int
    path: Path
    name: str


def find_files(inputs: Sequence[Path], patterns: Sequence[str], excluded: Sequence[str]) -> list[SourceFile]:
    """The files of ``inputs``, in order: files as given, of a folder those that match a pattern.

    The files of a folder are sorted by path, digits as numbers: day_2 comes before day_10. A file is named by
    its own name, or by its path below the given folder.

    Args:
        patterns: globs for folders.
        excluded: globs, seen from a file's own folder, of side tables; they are no input.

    Raises:
        InputError: an input that does not exist, a folder without files, two files of one name.
    """
    files: list[SourceFile] = []
    seen: dict[str, Path] = {}
    for given in inputs:
        if given.is_dir():
            matches = {path for pattern in patterns for path in given.glob(pattern) if path.is_file()}
            found = sorted(matches, key=lambda path: natural_order(path.relative_to(given).as_posix()))
            found = [path for path in found if not any(path.match(glob) for glob in excluded)]
            if not found:
                raise InputError(f"input {given}: no file in this folder matches {' or '.join(patterns)}")
            named = [(path, path.relative_to(given).as_posix()) for path in found]
        elif given.is_file():
            named = [(given, given.name)]
        else:
            check_local(given)
            raise InputError(f"input {given}: no such file or folder")
        for path, name in named:
            if name in seen:
                raise InputError(
                    f"input {path} and {seen[name]} are both named {name}, and rows are identified by file name and "
                    "number: give each file once, or the folder above them"
                )
            seen[name] = path
            files.append(SourceFile(len(files), path, name))
    if not files:
        raise InputError("no input is given")
    return files


def mapped_files(mapping: Mapping, inputs: Sequence[Path]) -> list[SourceFile]:
    """The files of ``inputs`` that a mapping reads (see ``find_files``); without side tables."""
    return find_files(inputs, input_patterns(mapping.input), [join.file for join in mapping.joins])


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sorts names by their parts, digits as numbers."""
    parts = re.split(r"([0-9]+)", name)
    key = [(int(part) if part.isdecimal() else -1, part) for part in parts]
    return [*key, (0, name)]


class UnreadableNowError(InputError):
    """A file that may be read later: the machine or its permissions are at fault, not its content."""


@contextmanager
def faults_named(path: Path) -> Iterator[None]:
    """Turns a fault while reading ``path`` into an InputError that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path}: is not text in UTF-8 (byte {byte:#04x}); save it as UTF-8") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise UnreadableNowError(f"{path}: cannot be read now: {' '.join(str(error).split())}") from None
        fault = "damaged, truncated or not of this format: " + " ".join(str(error).split())
        if "straddling object" in fault:
            fault = "a record is longer than the read buffer; check for a quote that is never closed"
        raise InputError(f"{path}: {fault}") from None


def open_bytes(path: Path) -> Any:
    """A readable Arrow stream of a text file's content, decompressed by its extension (.gz, .zst).

    Raises:
        InputError: it is compressed otherwise than its name says, or holds something else than text.
    """
    compression = _COMPRESSIONS.get(path.suffix)
    found = not_text(path)
    expected = f"compressed with {compression}" if compression is not None else ""
    if found != expected and path.stat().st_size:
        names = " or ".join(_COMPRESSIONS)
        allowed = f"text in UTF-8, and compressed text whose name ends in {names}"
        is_what = found or f"not {expected}, though its name ends in {path.suffix}"
        raise InputError(f"{path}: is {is_what}; allowed: {allowed}")
    file = pa.OSFile(str(path))
    return file if compression is None else pa.CompressedInputStream(file, compression)


def require_columns(path: Path, wanted: Sequence[str], found: Sequence[str]) -> None:
    """Raises InputError naming the file, and the missing columns and those it has, or one that it has twice."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(
            f"{path}: no column {', '.join(missing)}; the columns found are {', '.join(found) or '(none)'}"
        )
    repeated = [name for name in wanted if found.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: the column {repeated[0]} appears twice in the header")
