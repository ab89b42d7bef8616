# ruff: noqa: E501
"""What a target of fuzzing is, and what several of them need."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.schema import Number, Schema

ROOT = Path(__file__).resolve().parents[2]

Prepare = Callable[[Path], list[bytes]]
Parse = Callable[[Path, bytes], object]


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        form: of its files, one of ``mutate.FORMS``.
        prepare, parse: as described above.
        slow: whether a call takes more than about a tenth of a second.
    """

    form: str
    prepare: Prepare
    parse: Parse
    slow: bool = False


def require_finite(tree: Any, path: str = "") -> None:
    """Numbers that no one can compute with do not get in."""
    if isinstance(tree, float):
        assert math.isfinite(tree), f"{path} is {tree}"
    for key, value in (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ):
        require_finite(value, f"{path}.{key}")


FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "category", "source": "user", "buckets": 40, "width": 4},
    {"name": "price", "kind": "number", "source": "price", "boundaries": [0.5, 2, 8], "width": 2},
    {"name": "tags", "kind": "category", "source": "tags", "buckets": 30, "width": 4, "multivalent": True, "separator": "|"},
    {"name": "title", "kind": "text", "source": "title", "words": [1, 2], "subwords": [3], "buckets": 60, "width": 2},
    {"name": "cross", "kind": "cross", "of": ["tags", "price"], "buckets": 80, "width": 2},
    {"name": "position", "kind": "category", "source": "position", "vocabulary": ["1", "2"], "tower": "ui"},
    {"name": "size", "kind": "number", "source": "size", "log": {}, "width": 3, "tower": "ui"},
    {"name": "age", "kind": "number", "source": "age", "step": {"low": 10, "high": 75, "size": 5}, "width": 8},
]  # fmt: skip


def require_usable(schema: Schema) -> None:
    for feature in schema.features:
        if isinstance(feature, Number):
            edges = np.array(feature.edges(), np.float32)
            assert np.isfinite(edges).all() and (np.diff(edges) >= 0).all(), f"{feature.name}: {edges}"


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
