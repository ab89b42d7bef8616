"""Copies logs, runs, exports and other folders between this machine and object stores, such as ``s3://bucket/log``.

A reader finds the target whole at any moment: manifests, in the order of time, checkpoints' ``state.json``,
``saved_model.pb`` and ``summary.json`` come after the files that they declare complete, and an ingest's state last.
Schemas, manifests and states of checkpoints are created exclusively; everything else is copied if it differs.
"""

import hashlib
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from ctr.io.errors import InputError, PassingError, one_line
from ctr.io.files import address_fault, create_exclusively, directory_fault, is_temporary, write_atomic
from ctr.io.signals import Interrupted, stop_signals

log = logging.getLogger(__name__)

_Progress = Callable[[int], object]
_ADDRESS = re.compile(r"(s3|gs|az)://([^/\s]+)((?:/(?!\.{0,2}(?:/|$))[^/]+)*)/?")
_ALLOWED = "allowed: a folder, or s3://BUCKET/NAME (gs, az) without //, . and .."
_PIECE = 8 << 20  # bytes of an object's part
_THREADS = 8  # a request takes tens of milliseconds, whatever it is for
_LIMIT = 180.0  # seconds for which a request that fails is repeated
# Names of exceptions. ValueError: a name that can be no key.
_REFUSALS = {"PermissionDeniedError", "UnauthenticatedError", "InvalidPathError", "ValueError"}
_FAULTS = {"BaseError", "FileNotFoundError", "ValueError"}
# Local working folders: incomplete versions and checkpoints, runs that are being started, spilled rows.
_LEFT_OUT = re.compile(r"[0-9]+(\.former|\.damaged)?\.(partial|damaged)|\..+\.launching|\.spill-[0-9a-f]{16}")
_PARTITION = r"[0-9]{19}-([0-9]{19})"
_SHARD = rf"shards/{_PARTITION}-[0-9]{{4,}}-[0-9a-f]{{16}}\.parquet"
_NAMED = re.compile(rb'"file": *"([^"/]+\.(?:npz|parquet))"')
_VALUES = re.compile(rb'"values": *\{[^}]*"sha256": *"([0-9a-f]{16})')
_SCHEMA, _MANIFEST = r"schema\.json", rf"manifests/{_PARTITION}\.json"
_PARTS = (rf"sidecars/[^/]+/{_PARTITION}\.json", r"checkpoints/[0-9]{20}/state\.json")
_EXCLUSIVE = (_SCHEMA, *_PARTS, _MANIFEST)
# Files copied after all others, in this order: a partition's sidecars exist before the partition does.
_LATE = (*_PARTS, r"saved_model\.pb", _MANIFEST, r"summary\.json")
# State of an ingest, with the files that it names: copied last of all, in this order.
_STATES = (r"\.events/units/[^/]+\.json", r"\.ingest/state\.json", r"\.events/clock\.json")


class _Folder:
    """A folder on this machine or in an object store, whose files are read and written by name."""

    def __init__(self, address: str) -> None:
        self.address, self._path = address, Path(address)
        self._store: Any = None
        match = _ADDRESS.fullmatch(address)
        if match is None:
            if wrong := (f"{address}: {_ALLOWED}" if address_fault(address) else directory_fault(self._path)):
                raise InputError(wrong)
            return
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        self._folder = f"{match[3]}/".removeprefix("/")
        allows_http = os.environ.get("AWS_ALLOW_HTTP" if match[1] == "s3" else "AZURE_ALLOW_HTTP", "")
        options = {
            "timeout": timedelta(minutes=10),  # of a request with its body
            # Otherwise forgotten. Google's address is https unless its credentials name another.
            "allow_http": match[1] == "gs" or allows_http.lower() in ("1", "true"),
        }
        how: Any = {"client_options": options, "retry_config": {"max_retries": 3}}  # ``_Sync.copy`` goes on
        try:
            self._store = from_url(f"{match[1]}://{match[2]}", **how)
        except (BaseError, ValueError) as error:
            raise InputError(f"{address}: {_shown(error)[:300]}") from None

    def entries(self) -> dict[str, tuple[int, str]]:
        """Returns each file's size in bytes and its tag, by name; tags differ if contents do."""
        if self._store is None:
            files = _files(self._path) if self._path.is_dir() else ()
            stats = {path.relative_to(self._path).as_posix(): path.stat() for path in files}
            return {name: (stat.st_size, str(stat.st_mtime_ns)) for name, stat in stats.items()}
        items = self._store.list(self._folder.rstrip("/") or None).collect()
        objects = {item["path"].removeprefix(self._folder): item for item in items}
        # Some tools make an object for a folder.
        folders = {str(folder) for name in objects for folder in PurePosixPath(name).parents}
        listing = {name: item for name, item in objects.items() if name not in folders}
        # Some stores list a tag without the quotes that it has elsewhere.
        return {name: (item["size"], str(item["e_tag"]).strip('"')) for name, item in listing.items()}

    def etag(self, name: str, tag: str) -> str:
        """Returns the ETag that S3 would assign to a local file put by ``write``; for an object, ``tag``."""
        if self._store is not None:
            return tag
        parts = [hashlib.md5(piece, usedforsecurity=False) for piece in self.read(name)] or [hashlib.md5(b"")]
        whole = hashlib.md5(b"".join(part.digest() for part in parts), usedforsecurity=False)
        return f"{whole.hexdigest()}-{len(parts)}" if len(parts) > 1 else parts[0].hexdigest()

    def read(self, name: str) -> Iterator[bytes]:
        """Yields a file's content in pieces. Raises FileNotFoundError if it does not exist."""
        if self._store is not None:
            yield from map(bytes, self._store.get(self._folder + name).stream(min_chunk_size=_PIECE))
        else:
            with (self._path / name).open("rb") as file:
                yield from iter(lambda: file.read(_PIECE), b"")

    def write(self, name: str, pieces: Iterator[bytes], mode: Any = "overwrite") -> str:
        """Creates or replaces a file, which appears whole; returns its tag, or with ``create`` "" if it exists."""
        if self._store is None:
            if mode != "create":
                write_atomic(self._path / name, lambda file: file.writelines(pieces))
            elif not create_exclusively(self._path / name, b"".join(pieces)):
                return ""
            return str((self._path / name).stat().st_mtime_ns)
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        start = list(itertools.islice(pieces, 2))
        is_small = sum(map(len, start)) <= _PIECE or mode == "create"
        content = b"".join([*start, *pieces]) if is_small else itertools.chain(start, pieces)
        how = {"mode": mode, "use_multipart": not is_small, "chunk_size": _PIECE, "max_concurrency": 4}
        try:
            return str(self._store.put(self._folder + name, content, **how)["e_tag"]).strip('"')
        except (AlreadyExistsError, PreconditionError):
            return ""


class _Sync:
    """Copies a source to a target in passes; a later pass copies the changes since."""

    def __init__(self, source: _Folder, target: _Folder, begin_us: int, progress: _Progress) -> None:
        self._source, self._target, self._begin_us, self._progress = source, target, begin_us, progress
        self._same: dict[str, tuple[str, str]] = {}  # the tags of both where they had the same content
        self._here: dict[str, tuple[int, str]] = {}
        self._there: dict[str, tuple[int, str]] = {}
        self.copied: set[str] = set()

    def copy(self) -> None:
        """Copies all files that differ; retries for ``_LIMIT`` seconds after failures that may be temporary."""
        begun, done = time.monotonic(), len(self.copied)
        while True:
            try:
                return self._pass()
            except Exception as error:
                # Compared by name, since obstore need not be installed to copy between two folders.
                kinds = {kind.__name__ for kind in type(error).__mro__}
                if not kinds & _FAULTS:
                    raise
                shown = _shown(error)
                both = (self._source.address, self._target.address)
                fault = f"{' and '.join(filter(_ADDRESS.fullmatch, both)) or both[0]}: {shown[:300]}"
                is_refused = re.search(r"^no such bucket$|status code: 4(?!04|08|09|29)", shown)
                if kinds & _REFUSALS or (is_refused and "RequestTimeout" not in str(error)):
                    raise InputError(fault) from None
                if len(self.copied) > done:
                    begun, done = time.monotonic(), len(self.copied)
                waited = time.monotonic() - begun
                if waited > _LIMIT:
                    raise PassingError(fault) from None
            time.sleep(min(0.2 + waited / 2, 10.0))

    def _pass(self) -> None:
        # A file that declares others complete counts if it was there before these were listed.
        before = self._here = self._source.entries()
        self._there = self._target.entries()
        state_names = [name for pattern in _STATES for name in sorted(before) if _matches(name, pattern)]
        states = {name: b"".join(self._source.read(name)) for name in state_names if not self._is_same(name)}
        self._here = self._source.entries()
        if states and self._here != before:
            log.warning("%s: changes; .ingest and .events wait for the next copy", self._source.address)
            states = {}
        names = [name for name in self._here if self._is_wanted(name) and not self._is_same(name)]
        # First of all: whether these are the same log or run.
        exclusive = {name for name in names if _matches(name, *_EXCLUSIVE)}
        first = {name for name in exclusive if name in self._there or _matches(name, _SCHEMA)}
        late = [name for pattern in _LATE for name in sorted({*names} - first) if _matches(name, pattern)]
        for name in sorted(first):
            self._create(name)
        with ThreadPoolExecutor(_THREADS, "sync") as threads:
            for _ in threads.map(self._copy, sorted({*names} - {*first, *late})):
                self._progress(len(self.copied))
        for name in filter(before.__contains__, late):
            (self._create if name in exclusive else self._copy)(name)
        for name, content in states.items():
            self._copy(name, content)

    def _is_wanted(self, name: str) -> bool:
        *folders, file = PurePosixPath(name).parts
        partition = re.match(_PARTITION, file)
        is_before = partition is not None and int(partition[1]) <= self._begin_us
        is_local = file == ".lock" or is_temporary(Path(file)) or any(map(_LEFT_OUT.fullmatch, folders))
        return not (is_local or is_before or _matches(name, *_STATES))

    def _is_same(self, name: str) -> bool:
        (size, tag), (other_size, other_tag) = self._here[name], self._there.get(name, (-1, ""))
        if size != other_size or self._same.get(name) == (tag, other_tag):
            return size == other_size
        # The name of a shard has a hash of its content.
        if not _matches(name, _SHARD) and self._source.etag(name, tag) != self._target.etag(name, other_tag):
            return False
        self._same[name] = tag, other_tag
        return True

    def _copy(self, name: str, content: bytes | None = None) -> None:
        pieces = self._source.read(name) if content is None else iter([content])
        self._same[name] = self._here.get(name, (0, ""))[1], self._target.write(name, pieces)
        self.copied.add(name)

    def _create(self, name: str) -> None:
        """Creates a file after the files that it declares complete, even those that an old listing lacks."""
        content, path = b"".join(self._source.read(name)), PurePosixPath(name)
        folder, above = path.parent, path.parent.parent
        base = above / "shards" if folder.name == "manifests" else folder
        files = [base / file.decode() for file in _NAMED.findall(content)]
        files += [above / f"values/{path.stem}-{sha.decode()}.parquet" for sha in _VALUES.findall(content)]
        for needed in map(str, files or [folder / "arrays.npz"] * (above.name == "checkpoints")):
            if not {name, needed} & (self._there.keys() | self.copied):
                self._copy(needed)
        if self._target.write(name, iter([content]), "create"):
            self.copied.add(name)
        # After a lost answer it is the content sent. While another process creates it, it may be empty yet.
        elif (existing := b"".join(self._target.read(name))) != content:
            if _matches(name, _SCHEMA) and b'"version"' not in existing:
                return self._copy(name)  # over somebody's file of this name, of no log or run
            where = f"{self._target.address}/{name}"
            raise InputError(f"{where}: is there, of another log or run, and is kept; use another DST")
        self._same[name] = self._here[name][1], self._there.get(name, (0, ""))[1]


def _files(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    resolved = folder.resolve()
    if resolved in above:
        raise InputError(f"{folder}: links to a folder that holds it; remove the link")
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path, (*above, resolved))
        elif path.is_file():
            yield path


def _shown(error: Exception) -> str:
    # The rest is for programmers; a request's query may hold a signature, and XML the key.
    said = str(error).partition("\n\nDebug source")[0]
    if "NoSuchBucket" in said or "ContainerNotFound" in said:
        return "no such bucket"
    return one_line(Exception(re.sub(r"\?[^\s)\"]*|(?<=//)[^/@\s]*@|:?\s*<.*", "", said, flags=re.DOTALL)))


def _matches(name: str, *patterns: str) -> bool:
    return any(re.search(rf"(?:^|/){pattern}\Z", name) for pattern in patterns)


def sync(
    source: str,
    target: str,
    begin_us: int = 0,
    follow_seconds: float | None = None,
    progress: _Progress = lambda files: None,
) -> int:
    """Copies the files that ``target`` lacks or that differ there; both are folders or addresses. Returns their number.

    Args:
        begin_us: leaves out the partitions of a log that end by then, in microseconds.
        follow_seconds: repeats at this interval until SIGINT or SIGTERM, then once more, and raises Interrupted.
        progress: called with the number of files copied so far.

    Raises InputError for a bad address or source, or a target of another log or run; PassingError: a store fails.
    """
    try:
        copies = _Sync(_Folder(source), _Folder(target), begin_us, progress)
    except ModuleNotFoundError:
        raise InputError("ctr sync requires the package obstore", "pip install 'clicktrain[cloud]'") from None
    if follow_seconds is None and not _ADDRESS.fullmatch(source) and not Path(source).is_dir():
        raise InputError(f"{source}: no such folder")
    umask = os.umask(0o077)  # copies can be read by their owner alone
    try:
        with stop_signals() if follow_seconds else nullcontext(lambda: None) as stop:
            while follow_seconds and not stop():
                copies.copy()
                until = time.monotonic() + follow_seconds
                while time.monotonic() < until and not stop():
                    time.sleep(min(follow_seconds, 0.1))
            copies.copy()
    finally:
        os.umask(umask)
    if name := stop():
        raise Interrupted(name, f"interrupted; {target} has all of {source}")
    return len(copies.copied)
