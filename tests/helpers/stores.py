"""Buckets in memory in the place of obstore's stores, with the tags of S3 and faults that a test asks for."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from obstore.exceptions import AlreadyExistsError, GenericError


@dataclass
class Fault:
    """What happens to the next requests of a method (put, get or list) whose path has a pattern.

    Attributes:
        action: "fail" raises the error, and nothing happens; of "lose" the answer is lost; "cut" sends half of a
            content; "stale" lists what was there when the store was listed before.
        times: how many requests are left that it fits.
    """

    action: Literal["fail", "lose", "cut", "stale"]
    method: str
    pattern: str = ""
    times: int = 1
    error: Exception = field(default_factory=lambda: GenericError("Generic S3 error: status code: 503"))


class Bucket:
    """What ``ctr.io.sync`` calls of a store.

    Attributes:
        objects: contents by path.
        requests: methods and paths in their order.
        watch: called with the number of requests after each of them.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.watch: Callable[[int], object] = lambda count: None
        self._listed: list[dict[str, Any]] = []

    def _begin(self, method: str, path: str) -> Fault | None:
        self.requests.append((method, path))
        fits = (one for one in self.faults if one.method == method and re.search(one.pattern, path))
        if fault := next(fits, None):
            fault.times -= 1
            if not fault.times:
                self.faults.remove(fault)
            if fault.action == "fail":
                raise fault.error
        self.watch(len(self.requests))
        return fault

    def put(self, path: str, content: bytes | Iterable[bytes], *, mode: str, **how: Any) -> dict[str, str]:
        fault = self._begin("put", path)
        pieces = [content] if isinstance(content, bytes) else list(content)
        if mode == "create" and path in self.objects:
            raise AlreadyExistsError(f"Object at location {path} already exists")
        hashes = [hashlib.md5(piece) for piece in pieces]
        tag = hashes[0].hexdigest()
        if how["use_multipart"]:
            tag = f"{hashlib.md5(b''.join(one.digest() for one in hashes)).hexdigest()}-{len(hashes)}"
        self.objects[path], self.tags[path] = b"".join(pieces), f'"{tag}"'
        # As obstore asks again.
        return self.put(path, b"".join(pieces), mode=mode, **how) if fault else {"e_tag": self.tags[path]}

    def get(self, path: str) -> Any:
        fault = self._begin("get", path)
        if path not in self.objects:
            raise FileNotFoundError(f"Object at location {path} not found: NoSuchKey")
        return SimpleNamespace(stream=lambda min_chunk_size: self._stream(path, min_chunk_size, fault))

    def _stream(self, path: str, size: int, fault: Fault | None) -> Iterator[bytes]:
        content = self.objects[path]
        if fault:
            yield content[: len(content) // 2]
            raise fault.error
        yield from (content[begin : begin + size] for begin in range(0, len(content), size))

    def list(self, prefix: str | None) -> Any:
        fault = self._begin("list", prefix or "")
        items = [
            {"path": path, "size": len(content), "e_tag": self.tags[path]}
            for path, content in sorted(self.objects.items())
            if not prefix or path.startswith(f"{prefix}/")
        ]
        if fault:
            return SimpleNamespace(collect=lambda: self._listed)
        self._listed = items
        return SimpleNamespace(collect=lambda: items)
