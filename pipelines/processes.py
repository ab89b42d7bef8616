"""Processes that this one starts: Python in them imports nothing from the current directory."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import ctr

_SAFE_PATH = "PYTHONSAFEPATH"


def safe_environment() -> dict[str, str]:
    """The environment for a Python process that is started as ``python -m MODULE``.

    Python would otherwise look for every module in the current directory first, so that a ``json.py`` there would be
    run. Where that directory is the checkout that this very package is imported from, it has to stay on the path.
    """
    own = Path(ctr.__file__).resolve().parents[1] == Path.cwd().resolve()
    return {**os.environ, **({} if own else {_SAFE_PATH: "1"})}


@contextlib.contextmanager
def safe_workers() -> Iterator[None]:
    """Gives that environment to the processes that a Beam runner starts within the block."""
    before = os.environ.get(_SAFE_PATH)
    os.environ.update(safe_environment())
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE_PATH, None)
        else:
            os.environ[_SAFE_PATH] = before
