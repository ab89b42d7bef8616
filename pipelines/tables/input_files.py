"""Lists, orders, names and opens input files; defines the chunks of raw columns that are read from them."""

import errno
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from ctr.io.errors import InputError, PassingError
from ctr.io.files import check_local, not_text
from ctr.pipelines.tables.rejects import Reject

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_BLANK_BYTES = 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # of UTF-8, which some programs write at the beginning of a file


@dataclass(frozen=True)
class SourceFile:
    """Input file. ``name`` is used in rejects and in the hashes of rows, and does not depend on the machine."""

    number: int
    path: Path
    name: str


def find_files(inputs: Sequence[Path], patterns: Sequence[str], excluded: Sequence[str]) -> list[SourceFile]:
    """Lists the files of ``inputs``, in order: each file, and the files of each folder that match a pattern.

    The files of a folder are sorted by path, digits as numbers: day_2 comes before day_10. A file is named by its
    name, or by its path below the input folder. Hidden files, whose names or folders begin with . or _, are left out,
    unless a pattern begins so. ``excluded`` are globs, relative to a file's folder, of side tables, which are no input.
    Raises InputError for an input that does not exist, a folder without files, or two files of one name.
    """
    files: list[SourceFile] = []
    seen: dict[str, Path] = {}
    for entry in inputs:
        if entry.is_dir():
            matches = {
                path
                for pattern in patterns
                for path in entry.glob(pattern)
                if path.is_file() and (pattern[:1] in HIDDEN or not is_hidden(path.relative_to(entry)))
            }
            paths = sorted(matches, key=lambda path: natural_order(path.relative_to(entry).as_posix()))
            paths = [path for path in paths if not any(path.match(glob) for glob in excluded)]
            if not paths:
                raise InputError(f"input {entry}: no file in this folder matches {' or '.join(patterns)}")
            named = [(path, path.relative_to(entry).as_posix()) for path in paths]
        elif entry.is_file():
            named = [(entry, entry.name)]
        else:
            check_local(entry)
            raise InputError(f"input {entry}: no such file or folder")
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


HIDDEN = (".", "_")


def is_hidden(path: Path) -> bool:
    """Returns whether a part of a relative path begins with . or _, as programs' private files do."""
    return any(part.startswith(HIDDEN) for part in path.parts)


def natural_order(name: str) -> list[tuple[int, str]]:
    """Returns a sort key of a name, in which digits count as numbers."""
    parts = re.split(r"([0-9]+)", name)
    key = [(int(part) if part.isdecimal() else -1, part) for part in parts]
    return [*key, (0, name)]


class UnreadableNowError(PassingError):
    """Raised for a file that may be readable later: the machine or its permissions are at fault, not its content."""


@contextmanager
def faults_named(path: Path) -> Iterator[None]:
    """Converts a fault while reading ``path`` to an InputError that names it."""
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
    """Opens text as an Arrow stream, decompressed by its extension (.gz, .zst). Raises InputError for other content."""
    compression = _COMPRESSIONS.get(path.suffix)
    encoding = not_text(path)
    expected = f"compressed with {compression}" if compression is not None else ""
    if encoding != expected and path.stat().st_size:
        names = " or ".join(_COMPRESSIONS)
        allowed = f"text in UTF-8, and compressed text whose name ends in {names}"
        is_what = encoding or f"not {expected}, though its name ends in {path.suffix}"
        how = f": iconv -f {encoding} -t UTF-8 makes it so" if encoding == "UTF-16" else ""
        raise InputError(f"{path}: is {is_what}; allowed: {allowed}{how}")
    file = pa.OSFile(str(path))
    return file if compression is None else pa.CompressedInputStream(file, compression)


def is_blank(path: Path) -> bool:
    """Returns whether a file holds nothing but white space, as an empty part of an export does."""
    if path.stat().st_size > _BLANK_BYTES:
        return False
    if not_text(path) not in ("", *(f"compressed with {name}" for name in _COMPRESSIONS.values())):
        return False
    with faults_named(path), open_bytes(path) as stream:
        start = bytes(stream.read(_BLANK_BYTES + 1))
    return len(start) <= _BLANK_BYTES and not start.removeprefix(BYTE_ORDER_MARK).strip()


def folder_keys(path: Path) -> dict[str, str | None]:
    """Returns the columns of folders such as ``dt=2023-11-14`` above a file, whose values hold for all its rows.

    If two folders have one key, the nearer counts. Hive writes %3A for a colon, a reserved name for a missing value.
    """
    values: dict[str, str | None] = {}
    for part in path.absolute().parts[:-1]:
        key, equals, value = part.partition("=")
        if key and equals and value:
            values[unquote(key)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return values


def require_columns(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Raises InputError if a wanted column is missing or repeated in a file; names the file and the columns found."""
    counts = Counter(names)
    missing = [name for name in wanted if not counts[name]]
    if missing:
        raise InputError(
            f"{path}: no column {', '.join(missing)}; the columns found are {', '.join(names) or '(none)'}"
        )
    repeated = [name for name in wanted if counts[name] > 1]
    if repeated:
        raise InputError(f"{path}: the column {repeated[0]} appears twice in the header")


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one source file."""

    file: int  # its number
    # The raw columns of N rows, text as ``binary`` (not yet checked to be UTF-8) or ``string``.
    table: pa.Table
    rows: np.ndarray  # [N] int64, the 1-based line or record number of each
    rejects: list[Reject]  # rows of this chunk that could not be read at all
    keys: Sequence[str] = ()  # of JSON lines: all keys that occur in a row

    @property
    def count(self) -> int:
        """Returns the number of input rows that this chunk accounts for."""
        return self.table.num_rows + len(self.rejects)

    @property
    def last_row(self) -> int:
        """Returns the number of the last row that this chunk accounts for, 0 without any."""
        return max([0, *self.rows[-1:].tolist(), *(reject.row for reject in self.rejects)])


def with_constants(chunk: Chunk, values: dict[str, str | None]) -> Chunk:
    """Appends columns with one value in all rows; a value of None is missing."""
    table = chunk.table
    for name, value in values.items():
        rows = len(chunk.rows)
        table = table.append_column(name, pa.nulls(rows) if value is None else pa.repeat(value, rows))
    return replace(chunk, table=table)
