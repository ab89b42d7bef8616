"""Named points of a program that writes or trains, at each of which it can be killed or made to fail.

Nothing of the program is changed for it: what it calls is replaced, in this process, by what counts its calls and
acts at one of them. The points, each also with ``.before`` and ``.after``::

    write           of bytes to a file; ``write.half``: the first half of them is written
    fsync           of a file or folder
    rename, link, unlink, mkdir
    cursor          of a run goes on to the next batch
    learn           a batch is learned from
    roots.send      statistics go to the workers
    roots.collect   roots come back from them
"""

import contextlib
import errno
import io
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CALLS = ("write", "fsync", "rename", "link", "unlink", "mkdir")
POINTS = [
    f"{name}.{side}"
    for name in (*CALLS, "cursor", "learn", "roots.send", "roots.collect")
    for side in ("before", "after")
] + ["write.half"]

Reach = Callable[[str, str], None]


def kill() -> None:
    """Ends the process as a power cut does, as far as a process can see it."""
    os.kill(os.getpid(), signal.SIGKILL)


class Counting:
    """Counts how often each point was reached, and acts when one was reached a number of times.

    Attributes:
        reached: the counts.
    """

    def __init__(
        self, point: str = "", count: int = 0, act: Callable[[], None] = kill, path: str = ""
    ) -> None:
        """Acts at ``point`` when it was reached for the ``count``-th time with ``path`` in the path."""
        assert not point or point in POINTS, point
        self.reached: Counter[str] = Counter()
        self._point, self._count, self._act, self._path = point, count, act, path

    def __call__(self, point: str, path: str) -> None:
        if self._path not in path:
            return
        self.reached[point] += 1
        if point == self._point and self.reached[point] == self._count:
            self._act()


class Broken:
    """Like a disk that is full or broken from one point on: every call there fails, and so do all later ones."""

    def __init__(
        self, points: tuple[str, ...], number: int = errno.ENOSPC, after: int = 0, path: str = ""
    ) -> None:
        self._points, self._number, self._left, self._path = points, number, after, path

    def __call__(self, point: str, path: str) -> None:
        if point in self._points and self._path in path:
            if self._left <= 0:
                # As the system does it: what is called by a number of an open file does not know its name.
                named = () if point.startswith(("write", "fsync")) else (path,)
                raise OSError(self._number, os.strerror(self._number), *named)
            self._left -= 1


def _file_class(reach: Reach) -> type[io.FileIO]:
    class File(io.FileIO):
        def write(self, content: Any) -> int:
            name = str(self.name)
            reach("write.before", name)
            content = memoryview(content).cast("B")
            half = len(content) // 2
            written = super().write(content[:half]) if half else 0
            if half and written == half:
                reach("write.half", name)
                written += super().write(content[half:])
            elif not half:
                written = super().write(content)
            reach("write.after", name)
            return written

    return File


def _between(
    call: Callable[..., Any], name: str, reach: Reach, path_of: Callable[..., str]
) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        path = path_of(*arguments)
        reach(f"{name}.before", path)
        result = call(*arguments, **named)
        reach(f"{name}.after", path)
        return result

    return wrapped


def _path(*arguments: Any) -> str:
    first = arguments[0]
    if isinstance(first, int):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{first}")
    return str(arguments[1] if len(arguments) > 1 and not isinstance(arguments[1], int) else first)


@contextlib.contextmanager
def watching(reach: Reach, training: bool = True) -> Iterator[None]:
    """Has ``reach`` called, inside the block, with every point that is come to, and the path that it is about."""
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for name in (*CALLS[1:], "replace"):
        point = "rename" if name == "replace" else name
        change(os, name, _between(getattr(os, name), point, reach, _path))
    plain, file_class = io.open, _file_class(reach)

    def opened(file: Any, mode: str = "r", buffering: int = -1, *others: Any, **named: Any) -> Any:
        if "b" not in mode or not set(mode) & set("wax") or "opener" in named:
            return plain(file, mode, buffering, *others, **named)
        raw = file_class(file, mode.replace("b", ""))
        return raw if buffering == 0 else io.BufferedWriter(raw)

    change(io, "open", opened)
    if training:
        from ctr.optim.shampoo.host import HostPipeline
        from ctr.training.run.run import Run

        for owner, method, name in (
            (Run, "record", "cursor"),
            (Run, "record_learned", "learn"),
            (HostPipeline, "send", "roots.send"),
            (HostPipeline, "collect", "roots.collect"),
        ):
            change(owner, method, _between(getattr(owner, method), name, reach, lambda *_: ""))
    try:
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


def flip(path: Path) -> None:
    """Changes a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
