"""Logs and files of events at addresses of Beam's file systems, such as ``gs://bucket/log``, for ``--stream`` alone.

The functions of this package work on a temporary folder, whose files are copied from and to the address. A file
appears under its name when it is complete; manifests follow the files that they name. An existing manifest or record
with other content is an error. These file systems create no file exclusively: only one job at a time may write a log.
"""

import contextlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ctr.io.errors import InputError, one_line
from ctr.pipelines.events.drivers import Location
from ctr.pipelines.tables.input_files import UnreadableNowError

MANIFESTS = "manifests/*.json"
_GLOB = re.compile(r"[*?[]")
_THREADS = 16


def _beam() -> Any:
    # Loaded only for an address.
    from apache_beam.io import filesystems

    return filesystems


def for_workers(location: Location) -> Location:
    """Returns the absolute path or the address of a folder for workers.

    Raises InputError if no file system of Beam handles the address, or Beam would treat it as a pattern.
    """
    if isinstance(location, Path):
        return location.resolve()
    if _GLOB.search(location):
        raise InputError(f"{location}: an address with *, ? or [ would be read as a pattern")
    try:
        _beam().FileSystems.get_filesystem(location)
    except (ValueError, OSError) as error:
        raise InputError(f"{location}: {one_line(error)}") from None
    return location


def match_files(address: str, patterns: Sequence[str], limit: int | None = None) -> dict[str, Any]:
    """Returns, by relative path, the ``FileMetadata`` of an address's matching files. Raises UnreadableNowError."""
    try:
        system = _beam().FileSystems.get_filesystem(address)
        if system.has_dirs():
            # HDFS does not list a folder that does not exist.
            folder_of = {
                pattern: _GLOB.split(f"{address}/{pattern}")[0].rpartition("/")[0] for pattern in patterns
            }
            patterns = [pattern for pattern in patterns if system.exists(folder_of[pattern])]
        results = system.match([f"{address}/{pattern}" for pattern in patterns], [limit] * len(patterns))
    except OSError as error:
        raise UnreadableNowError(f"{address}: {one_line(error)}") from None
    files = [file for result in results for file in result.metadata_list]
    return {file.path.removeprefix(f"{address}/"): file for file in files}


@contextlib.contextmanager
def local_file(file: Location) -> Iterator[Path]:
    """Yields the path of a file; for an address, the path of a temporary copy."""
    if isinstance(file, Path):
        yield file
        return
    address, _, name = file.rpartition("/")
    with _temporary_folder(address) as folder:
        _download(file, folder / name)
        yield folder / name


@contextlib.contextmanager
def local_log(log: Location, *patterns: str, names: str = "") -> Iterator[Path]:
    """Yields the folder of a log; for an address, a temporary one, whose changes are then copied to the address.

    The temporary folder has copies of the files that match ``patterns``, and empty files for those that match the
    pattern ``names``. Unless the block raises, new files are copied to the address, and deleted copies deleted there.
    """
    if isinstance(log, Path):
        yield log
        return
    with _temporary_folder(log) as folder, ThreadPoolExecutor(_THREADS) as pool:
        copied = match_files(log, patterns)
        listed = match_files(log, [names]) if names else {}
        for name in (*copied, *listed):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        list(pool.map(lambda name: _download(f"{log}/{name}", folder / name), copied))
        yield folder
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        # Manifests last.
        order = ((name.startswith("manifests/"), name.endswith(".json"), name) for name in files)
        for *_, name in sorted(order):
            if name not in copied and name not in listed:
                _upload(folder / name, f"{log}/{name}")
        if deleted := [f"{log}/{name}" for name in copied if name not in files]:
            _beam().FileSystems.delete(deleted)


@contextlib.contextmanager
def _temporary_folder(address: str) -> Iterator[Path]:
    """Yields a temporary folder; errors raised in the block name the address instead of the folder."""
    with tempfile.TemporaryDirectory(prefix="ctr-") as folder:
        try:
            yield Path(folder)
        except InputError as error:
            error.args = (str(error).replace(folder, address),)
            raise
        except OSError as error:
            raise UnreadableNowError(f"{address}: {one_line(error)}") from None


def _download(address: str, path: Path) -> None:
    with _open(address) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)


def _open(address: str) -> Any:
    return _beam().FileSystems.open(address, compression_type=_beam().CompressionTypes.UNCOMPRESSED)


def _upload(path: Path, address: str) -> None:
    content = path.read_bytes()
    if _beam().FileSystems.exists(address):
        with _open(address) as file:
            if file.read() == content:
                return
        if path.suffix in (".json", ".yaml"):
            raise InputError(f"{address}: was published before with other content; the first version is kept")
        _beam().FileSystems.delete([address])
    # It is named like the temporary files of a local log.
    partial = f"{address}.partial-{secrets.token_hex(8)}"
    with _beam().FileSystems.create(partial, compression_type=_beam().CompressionTypes.UNCOMPRESSED) as file:
        file.write(content)
    _beam().FileSystems.rename([partial], [address])
