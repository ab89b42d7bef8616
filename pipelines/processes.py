"""Provides a safe environment for child processes, and silences Beam.

This module does not import Beam, so that its first import can be silenced.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import ctr


def safe_environment() -> dict[str, str]:
    """Returns the environment for a child process ``python -m MODULE``.

    Python would otherwise search every module in the current directory first, so that a ``json.py`` there would be
    run. If that directory is the checkout that this package is imported from, it has to stay on the path.
    """
    in_checkout = Path(ctr.__file__).resolve().parents[1] == Path.cwd().resolve()
    return {**os.environ, **({} if in_checkout else {"PYTHONSAFEPATH": "1"})}


@contextlib.contextmanager
def quiet_beam(level: int = logging.CRITICAL) -> Iterator[None]:
    """Suppresses log messages up to ``level`` in the block, which may be the first to import Beam."""
    # Beam's import also logs through the root logger, which then would get a handler for good.
    handlers, disabled = list(logging.root.handlers), logging.root.manager.disable
    logging.disable(level)
    try:
        from apache_beam.runners.worker import sdk_worker

        # A worker in this process prints the traces of errors that it also reports.
        names = vars(sdk_worker)
        names["print"] = lambda *_, **__: None
        try:
            yield
        finally:
            names.pop("print", None)
    finally:
        logging.disable(disabled)
        logging.root.handlers[:] = handlers
