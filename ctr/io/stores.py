"""Object stores: addresses such as ``s3://bucket/log``, and the copies of their objects in a cache on this machine.

The path of a copy names its object (``CACHE/objects/s3/bucket/log/schema.json``), so that every process, on any
machine, finds the store by the path alone, and what reads files reads copies. A file that is written there through
``ctr.io.files`` is in the store before it is in the cache, under a condition: nobody else has written the object since
it was copied. So of several publishers exactly one wins, as on a disk.

``CACHE`` is ``$CTR_CACHE``, else ``~/.cache/ctr``; it may be deleted while no command runs. Copies of shards take at
most ``$CTR_CACHE_GB`` (100) there, all others as much as what they are copies of. Access is granted by the
environment alone, by the names that obstore documents (``AWS_...``, ``GOOGLE_...``, ``AZURE_...``).
"""

import contextlib
import functools
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path, PosixPath, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ctr.io.errors import InputError, PassingError, one_line

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import ObjectStore

FoundT = TypeVar("FoundT")

SCHEMES = ("s3", "gs", "az")
OBJECTS = "objects"
LOCAL = ".spill-"
"""How the names of folders begin that stay on this machine, wherever they are."""
_ADDRESS = re.compile(rf"({'|'.join(SCHEMES)})://([^/]+)(?:/(.*))?", re.DOTALL)
_PULLED = "CTR_PULLED"  # the paths that this process or the one that started it has pulled
_GIGABYTES = "CTR_CACHE_GB"  # that the copies of shards may take together
_fetched = 0  # bytes of shards since there was last made room for them
_TRIES = 5  # of a request that fails for reasons for which obstore does not repeat it
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_LARGE = 64 << 20  # bytes
_MOMENT = 60.0  # seconds
_PULLING = threading.Lock()
_THREADS = 16  # a request takes tens of milliseconds, whatever it is for
_PIECE = 8 << 20  # bytes


def _cache() -> Path:
    # Resolved, since paths below it are resolved in many places, too.
    return Path(os.path.realpath(os.environ.get("CTR_CACHE") or Path.home() / ".cache" / "ctr"))


class CopyPath(PosixPath):
    """Path below the cache that names the same object in another process, whose cache may lie elsewhere (pickle)."""

    def __reduce__(self) -> tuple[Callable[..., Path], tuple[str, ...]]:
        cache = _cache()
        return (_in_cache, (str(self.relative_to(cache)),)) if cache in self.parents else (Path, (str(self),))


def _in_cache(name: str) -> Path:
    return CopyPath(_cache(), name)


def portable(path: Path) -> Path:
    """Returns a path of the cache such that other processes can be given it; any other as it is."""
    return CopyPath(path) if address_of(path) else path


def copy_of(address: str, tree: str = OBJECTS) -> Path:
    """Returns the path in the cache of the object or folder at an address. Raises InputError for a wrong address."""
    match = _ADDRESS.fullmatch(address)
    parts = (match[3] or "").rstrip("/").split("/") if match else [".."]
    if (
        match is None
        or not address.isprintable()
        or {".", ".."} & {match[2], *parts}
        or ("" in parts and len(parts) > 1)
    ):
        raise InputError(
            f"{address}: not an address of an object store; allowed: s3://BUCKET/NAME (or gs, az)"
        )
    return CopyPath(_cache(), tree, match[1], match[2], *parts)


def address_of(path: str | os.PathLike[str], tree: str = OBJECTS) -> str:
    """Returns the address of which ``path`` is the copy; empty where it is a file of this machine."""
    absolute, copies = os.path.abspath(path), f"{_cache() / tree}/"
    name = absolute.removeprefix(copies)
    return "" if name == absolute or f"/{LOCAL}" in name else name.replace("/", "://", 1)


def with_addresses(text: str) -> str:
    """Writes addresses in place of the paths of their copies, in a message."""
    return re.sub(rf"{re.escape(str(_cache()))}/[a-z0-9]+/({'|'.join(SCHEMES)})/", r"\1://", text)


class Copy:
    """A file of the cache, and what is known of the object that it is a copy of."""

    def __init__(self, path: Path, tree: str = OBJECTS) -> None:
        self.path, self.address = path, address_of(path, tree)
        scheme, _, rest = self.address.partition("://")
        bucket, _, self.name = rest.partition("/")
        self.store = _connect(scheme, bucket)
        self._note = versions_of(path, tree)

    @property
    def version(self) -> "UpdateVersion | None":
        """The version of the object that was last copied or written; None if none was."""
        return self._read_note()[0]

    @property
    def tag(self) -> str:
        """The tag of this version; empty if there is none."""
        return _tag(self.version) if self.version else ""

    @property
    def is_changed(self) -> bool:
        """Whether the file is not what was copied or written."""
        try:
            return stamp_of(self.path) != self._read_note()[1]
        except FileNotFoundError:
            return True

    def _read_note(self) -> tuple[Any, Any]:
        try:
            version, stamp = json.loads(self._note.read_bytes())
        except (OSError, ValueError):
            return None, None
        return version, stamp

    def _write_note(self, found: Any, stamp: Sequence[int] | None) -> None:
        text = json.dumps([_version(found), stamp])
        _replace(self._note, lambda file: file.write(text.encode()))

    @property
    def is_only_noted(self) -> bool:
        """Whether the object is known of which no copy was made (``note``)."""
        version, stamp = self._read_note()
        return version is not None and stamp is None

    def note(self) -> None:
        """Notes the version of the object, of which no copy is made. Raises FileNotFoundError: there is none."""
        import obstore

        self._write_note(_read(self.address, lambda: obstore.head(self.store, self.name)), None)

    def get(self) -> bool:
        """Copies the object; returns whether there is one."""
        import obstore

        def read() -> tuple[Any, Sequence[int]]:
            answer = obstore.get(self.store, self.name)
            pieces = answer.stream(min_chunk_size=_PIECE)
            return answer.meta, _replace(self.path, lambda file: file.writelines(pieces))

        if not self.name:
            return False
        try:
            self._write_note(*_read(self.address, read))
        except FileNotFoundError:
            return False
        return True

    def put(self, content: Path | bytes, before: "UpdateVersion | None", stamp: Sequence[int]) -> bool:
        """Writes the object if it is of version ``before``, None: if there is none; returns whether it was.

        A file is written in parts, which no store takes under a condition. ``stamp`` is that of the file which is
        going to be the copy.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        in_parts = isinstance(content, Path)
        mode: Literal["create", "overwrite"] | UpdateVersion = "overwrite" if in_parts else before or "create"
        try:
            with _faults(self.address):
                found = obstore.put(self.store, self.name, content, mode=mode, use_multipart=in_parts)
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            return False
        self._write_note(found, stamp)
        return True

    def put_or_agree(self, content: Path, stamp: Sequence[int]) -> None:
        """Writes the object if nobody has since ``version``, or with the same content; else raises InputError.

        After a lost answer a request is repeated, and a store may say of the second one that somebody has written.
        """
        # Large are arrays and shards: what names them, a checkpoint's state or a manifest, is small and comes later.
        given = content if content.stat().st_size > _LARGE else content.read_bytes()
        for _ in range(_TRIES):
            if self.put(given, self.version, stamp):
                return
            found = self.content()
            if found is None:
                # It was deleted since it was copied.
                self._note.unlink(missing_ok=True)
            elif found[0] == given:
                return self._write_note(found[1], stamp)
            elif _tag(found[1]) != self.tag:
                raise PassingError(
                    f"{self.address}: another process has written it meanwhile; what it wrote is kept",
                    "run the command again",
                )
        raise self.refused()

    def refused(self) -> PassingError:
        """Makes the error for an object that others seem to write all the time."""
        return PassingError(
            f"{self.address}: the store refuses to write it, as if others wrote it all the time"
        )

    def content(self) -> tuple[bytes, Any] | None:
        """Reads the object, which is not copied: its bytes and what the store says of it; None if there is none."""
        import obstore

        def read() -> tuple[bytes, Any]:
            answer = obstore.get(self.store, self.name)
            return answer.bytes().to_bytes(), answer.meta

        try:
            return _read(self.address, read)
        except FileNotFoundError:
            return None

    def delete(self) -> None:
        """Deletes the object, if there is one, and the copy."""
        self.delete_object()
        self.forget()

    def delete_object(self) -> None:
        """Deletes the object, if there is one."""
        import obstore

        with contextlib.suppress(FileNotFoundError), _faults(self.address):
            obstore.delete(self.store, self.name)
        self._note.unlink(missing_ok=True)

    def forget(self) -> None:
        """Deletes the copy."""
        self._note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def versions_of(path: Path, tree: str = OBJECTS, what: str = "versions") -> Path:
    """Returns where the versions of a file's object, or of those below a folder, are noted, or something else is."""
    return _cache() / f"{tree}-{what}" / path.absolute().relative_to(_cache() / tree)


@functools.cache
def _connect(scheme: str, bucket: str) -> "ObjectStore":
    try:
        from obstore.store import from_url
    except ImportError:
        raise InputError(
            f"{scheme}://{bucket}: object stores require the package obstore",
            "pip install 'clicktrain[cloud]'",
        ) from None
    with _faults(f"{scheme}://{bucket}"):
        return from_url(
            f"{scheme}://{bucket}",
            # Of a request with its body: obstore repeats none that took so long.
            client_options={
                "timeout": timedelta(minutes=10),
                "connect_timeout": timedelta(seconds=10),
                # Otherwise forgotten. Google's address is https unless its credentials name another.
                "allow_http": scheme == "gs"
                or os.environ.get(_ALLOW_HTTP[scheme], "").lower() in ("1", "true"),
            },
        )


@contextlib.contextmanager
def _faults(address: str) -> Iterator[None]:
    """Raises what a store answers as InputError, in one line; as FileNotFoundError, that there is no such object."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise
    except (FileNotFoundError, exceptions.NotFoundError):
        raise FileNotFoundError(address) from None
    except exceptions.BaseError as error:
        # What follows is for programmers, and a request's query may hold a signature.
        said = re.sub(r"\?[^\s)\"]*|(?<=//)[^/@\s]*@", "", str(error).partition("\n\nDebug source")[0])
        if "NoSuchBucket" in said or "ContainerNotFound" in said:
            raise InputError(f"{address}: no such bucket") from None
        kind: type[InputError] = _CutOffError if "body" in said else UnavailableError
        refused = exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
        if isinstance(error, refused) or re.search(r"status code: 4(?!08|29)", said):
            kind = InputError
        # What a server says in XML may name the key.
        said = re.sub(r":?\s*<.*", "", said, flags=re.DOTALL)
        raise kind(f"{address}: {one_line(Exception(said))[:300]}") from None


class UnavailableError(PassingError):
    """A store did not answer, or could not: the same command may succeed later."""


class _CutOffError(UnavailableError):
    """An answer ended too early."""


def _read(address: str, call: Callable[[], FoundT]) -> FoundT:
    """Calls what reads from a store, again where an answer is cut off: requests that fail obstore repeats by itself."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(_CutOffError), _faults(address):
            return call()
    with _faults(address):
        return call()


def _tag(found: Any) -> str:
    # Some stores list it without the quotes that it has elsewhere.
    return str(found["e_tag"]).strip('"')


def _version(found: Any) -> "UpdateVersion":
    """Returns what tells one version of an object from another, of what a store says about it."""
    return {key: found[key] for key in ("e_tag", "version") if found.get(key) is not None}  # type: ignore[return-value]


def stamp_of(file: Path | int) -> list[int]:
    """Returns the size of a file and when it was changed, in nanoseconds."""
    found = os.stat(file)
    return [found.st_size, found.st_mtime_ns]


def _replace(path: Path, write: Callable[[Any], object]) -> list[int]:
    """Writes a file of the cache by another name first; returns its stamp. It need not survive a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            stamp = stamp_of(file.fileno())
        temporary.replace(path)
        return stamp
    finally:
        temporary.unlink(missing_ok=True)


def listed(folder: Path, tree: str = OBJECTS) -> dict[str, str]:
    """Lists the tags of all objects below a folder, by their names in it: two versions of one have different tags."""
    return {name: _tag(item) for name, item in objects_below(folder, tree).items()}


def objects_below(folder: Path, tree: str = OBJECTS) -> dict[str, "ObjectMeta"]:
    """Lists what a store says of all objects below a folder (``size`` in bytes, ``last_modified``), by their names."""
    import obstore

    one = Copy(folder, tree)
    prefix = f"{one.name}/" if one.name else ""

    def read() -> dict[str, Any]:
        items = (item for chunk in obstore.list(one.store, prefix or None) for item in chunk)
        # Some tools make an object for a folder.
        return {
            item["path"].removeprefix(prefix): item
            for item in items
            if item["path"].startswith(prefix) and not item["path"].endswith("/")
        }

    try:
        return _read(one.address, read)
    except FileNotFoundError:
        raise InputError(f"{one.address}: no such bucket") from None


def each(call: Callable[[Path], object], paths: Iterable[Path]) -> None:
    """Calls a function with paths, several at a time; raises what the first that fails raises."""
    with ThreadPoolExecutor(_THREADS, "objects") as threads:
        for _ in threads.map(call, paths):
            pass


def files_below(folder: Path) -> dict[str, Path]:
    """Lists the files below a folder by their names in it."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {path.relative_to(folder).as_posix(): path for path in found}


# Copies that are written through.


def is_late(name: str) -> bool:
    """Tells whether an object is left out by ``pull``, since it is large and copied when it is read: a shard."""
    return PurePosixPath(name).match("shards/*.parquet")


def pull(folder: Path) -> None:
    """Makes the copy of a folder, or of an object, equal to what the store holds; ``fetch`` copies what is late."""
    objects = listed(folder)
    if not objects and not folder.is_dir():
        Copy(folder).forget()
        fetch(folder)
    for name, path in files_below(folder).items():
        if not address_of(path):
            continue
        one = Copy(path)
        # Temporary files, and those of locks, never were objects.
        if one.tag != objects.get(name, "") or (one.is_changed and name in objects):
            one.forget()
    each(fetch, (folder / name for name in objects if not is_late(name)))


def pulled(path: Path) -> Path:
    """Pulls a folder, unless this process or the one that started it has; returns its path."""
    # Of several threads one pulls: what another writes meanwhile would be taken for out of date.
    with _PULLING:
        if not is_pulled(path):
            pull(path)
            note_pulled(path)
    return path


def is_pulled(path: Path) -> bool:
    """Tells whether this process or the one that started it has pulled a path."""
    return str(path) in os.environ.get(_PULLED, "").split("\n")


def note_pulled(path: Path) -> None:
    """Notes that a path was pulled, also for processes that this one starts."""
    os.environ[_PULLED] = f"{os.environ.get(_PULLED, '')}\n{path}"


@contextlib.contextmanager
def pulls_anew() -> Iterator[None]:
    """Forgets, after the block, what was pulled in it: a later command of the process pulls it again."""
    before = os.environ.get(_PULLED, "")
    try:
        yield
    finally:
        os.environ[_PULLED] = before


def fetch(path: Path) -> bool:
    """Copies an object that has no copy; returns whether ``path`` is a file, which it may be anyway."""
    if not address_of(path):
        return path.is_file()
    if path.is_file():
        if not is_late(path.as_posix()):
            return True
        # That it was read now; what the file system notes by itself may be a day late. It may have made room just now.
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            return True
    found = Copy(path).get()
    if found and is_late(path.as_posix()):
        global _fetched
        _fetched += path.stat().st_size
        limit = _shards_limit()
        # Seldom: all copies are looked at.
        if _fetched > limit / 100:
            _fetched = 0
            make_room(limit)
    return found


@contextlib.contextmanager
def borrowed(path: Path) -> Iterator[Path]:
    """Yields the path of a new copy of an object, which is gone after the block: a worker reads an input file once.

    Below a folder that was pulled the copy there is as new; a file of this machine is read where it is.
    """
    if not address_of(path) or any(map(is_pulled, path.parents)):
        fetch(path)
        yield path
        return
    # Of its own: another worker of this machine may read the same object.
    tree = f"borrowed{secrets.token_hex(8)}"
    copy = copy_of(address_of(path), tree)
    try:
        Copy(copy, tree).get()
        yield copy
    except InputError as error:
        # Where it is reported, nobody knows this cache.
        raise type(error)(*map(with_addresses, error.args)) from None
    finally:
        for name in (tree, f"{tree}-versions"):
            shutil.rmtree(_cache() / name, ignore_errors=True)


def _shards_limit() -> int:
    given = os.environ.get(_GIGABYTES) or "100"
    try:
        return int(1e9 * float(given))
    except (ValueError, OverflowError):
        raise InputError(f"{_GIGABYTES} {given}: not a number of gigabytes") from None


def make_room(limit: int) -> None:
    """Deletes the copies of shards that were not read for the longest time until all together have ``limit`` bytes.

    Those that were read in the last minute stay: another process may be about to open them.
    """
    kept = []
    for path in (_cache() / OBJECTS).rglob("shards/*.parquet"):
        with contextlib.suppress(FileNotFoundError):
            kept.append((path.stat().st_atime, path.stat().st_size, path))
    excess = sum(size for _, size, _ in kept) - limit
    for read, size, path in sorted(kept):
        if excess <= 0:
            return
        # Looked at again: it may have been read since.
        with contextlib.suppress(FileNotFoundError):
            if max(read, path.stat().st_atime) < time.time() - _MOMENT:
                Copy(path).forget()
                excess -= size


def remove_folder(folder: Path) -> None:
    """Deletes a folder with all that is below it, and the objects of which these files are copies."""
    for path in files_below(folder).values():
        remove(path)
    shutil.rmtree(folder, ignore_errors=True)


def publish(path: Path, content: Path) -> None:
    """Writes an object whose copy ``content`` is going to be. Where ``path`` is of this machine, nothing is done.

    Raises InputError: another process has written other content since ``path`` was copied, or the store fails.
    """
    if address_of(path):
        Copy(path).put_or_agree(content, stamp_of(content))


def publish_new(path: Path, content: Path) -> bool:
    """Writes the object in the same way unless there is one; returns whether this call did.

    After a lost answer the store may say that there is one: it has this content then.
    """
    one = Copy(path)
    for _ in range(_TRIES):
        if one.put(content.read_bytes(), None, stamp_of(content)):
            return True
        # Where others write at the same time, a store may say that there is one before there is.
        if one.get():
            return False
    raise one.refused()


def remove(path: Path) -> None:
    """Deletes a file, and the object of which it is the copy, if they are there."""
    if address_of(path):
        Copy(path).delete()
    path.unlink(missing_ok=True)
