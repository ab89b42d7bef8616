"""Pools of Beam workers, which share the store alone with the command."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from services import listening, on_free_ports, service


@contextlib.contextmanager
def worker_pool(folder: Path) -> Iterator[tuple[str, ...]]:
    """Runs a pool of external workers until the block ends; yields the options of a job that has its work done there.

    Args:
        folder: where the log of the pool goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The pool starts `python`.
    bin_folder = Path(sys.executable).parent
    main = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"]

    def start(port: int, _: int) -> contextlib.AbstractContextManager[str]:
        command = ["env", f"PATH={bin_folder}:{os.environ['PATH']}", *main, f"--service_port={port}"]
        return service("worker pool", command, folder / "pool.log", functools.partial(listening, port))

    with on_free_ports(start) as address:
        yield "--environment_type=EXTERNAL", f"--environment_config={address}"
