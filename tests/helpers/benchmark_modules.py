"""Modules of benchmarks/, which is no package."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def imported(name: str) -> Iterator[ModuleType]:
    """Yields a module, for a fixture; while it is used, it can import its neighbors."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))
