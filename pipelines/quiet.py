"""Keeps back what Beam tells its developers: notices of its start, and a trace of every fault that a line tells."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_beam(level: int = logging.CRITICAL) -> Iterator[None]:
    """Logs nothing up to ``level`` in the block, which may be the first to import Beam."""
    # Beam's import also logs through the root logger, which then would get a handler for good.
    handlers, disabled = list(logging.root.handlers), logging.root.manager.disable
    logging.disable(level)
    try:
        from apache_beam.runners.worker import sdk_worker

        # A worker in this process prints the trace of what it also reports.
        names = vars(sdk_worker)
        names["print"] = lambda *_, **__: None
        try:
            yield
        finally:
            names.pop("print", None)
    finally:
        logging.disable(disabled)
        logging.root.handlers[:] = handlers
