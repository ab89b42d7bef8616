"""Single-pass training of click-through-rate models on time-ordered logs.

The functions correspond to the commands, for paths and for frames; each is imported when it is first used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = ("Scorer", "compare", "evaluate", "export", "ingest", "optim", "report", "train")


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "optim":
        return importlib.import_module("ctr.optim")
    return getattr(importlib.import_module("ctr.api"), name)


def __dir__() -> list[str]:
    return [*_PUBLIC]
