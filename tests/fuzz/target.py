"""What a target of fuzzing is, and what several of them need."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.features import Number
from ctr.data.schema import Schema

ROOT = Path(__file__).resolve().parents[2]
FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "category", "source": "user", "buckets": 40, "width": 4},
    {"name": "price", "kind": "number", "source": "price", "boundaries": [0.5, 2, 8], "width": 2},
    {"name": "tags", "kind": "category", "source": "tags", "multivalent": True, "separator": "|"},
    {"name": "title", "kind": "text", "source": "title", "words": [1, 2], "subwords": [3], "buckets": 60},
    {"name": "cross", "kind": "cross", "of": ["tags", "price"], "buckets": 80, "width": 2},
    {"name": "position", "kind": "category", "source": "position", "vocabulary": ["1", "2"], "tower": "ui"},
    {"name": "size", "kind": "number", "source": "size", "log": {}, "width": 3, "tower": "ui"},
    {"name": "age", "kind": "number", "source": "age", "step": {"low": 10, "high": 75, "size": 5}},
]

Prepare = Callable[[Path], list[bytes]]
Parse = Callable[[Path, bytes], object]


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        form: of its files, a key of ``mutate.MUTATORS``.
        prepare: writes what must lie beside the file into a folder, and returns valid contents.
        parse: reads a content. It returns when that was accepted, and then has checked that it means something; it
            raises InputError when it was refused. Anything else is a fault.
    """

    form: str
    prepare: Prepare
    parse: Parse


def in_place(
    make: Callable[[Path], Path],
    pattern: str,
    read: Callable[[Path], object],
    seal: Callable[[Path, Path], object] = lambda place, path: None,
) -> tuple[Prepare, Parse]:
    """A file in place of the first of a pattern in what ``make`` makes once; afterwards all is as it was.

    ``seal`` makes a changed file valid, by the hashes that others have of it, where it can still have them.
    """

    def prepare(folder: Path) -> list[bytes]:
        return [path.read_bytes() for path in sorted(make(folder).glob(pattern))]

    def parse(folder: Path, content: bytes) -> None:
        place = make(folder)
        path = min(place.glob(pattern))
        before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
        try:
            path.write_bytes(content)
            seal(place, path)
            read(place)
        finally:
            for file in [file for file in place.rglob("*") if file.is_file() and file not in before]:
                file.unlink()
            for file, text in before.items():
                if not file.exists() or file.read_bytes() != text:
                    file.write_bytes(text)

    return prepare, parse


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def require_finite(tree: Any, path: str = "") -> None:
    """Numbers that no one can compute with do not get in."""
    assert not isinstance(tree, float) or math.isfinite(tree), f"{path} is {tree}"
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        require_finite(value, f"{path}.{key}")


def require_usable(schema: Schema) -> None:
    for feature in schema.features:
        if isinstance(feature, Number):
            edges = np.array(feature.edges(), np.float32)
            assert np.isfinite(edges).all() and (np.diff(edges) >= 0).all(), f"{feature.name}: {edges}"
