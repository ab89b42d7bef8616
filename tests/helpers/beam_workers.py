"""Beam's own job server, and pools of Beam workers, each with a cache of its own.

What they share with the command is the store alone.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from services import listening, on_free_ports, service


def job_server(folder: Path) -> contextlib.AbstractContextManager[str]:
    """Runs Beam's own runner behind a job server until the block ends; yields its address, HOST:PORT."""
    folder.mkdir(parents=True, exist_ok=True)
    main = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main"]

    def start(port: int, _: int) -> contextlib.AbstractContextManager[str]:
        command = [*main, f"--port={port}", f"--staging_dir={folder / 'staging'}"]
        return service("job server", command, folder / "jobs.log", functools.partial(listening, port))

    return on_free_ports(start)


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
