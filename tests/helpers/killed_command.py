"""Commands that are killed, as the machine does it."""

import multiprocessing
import sys
from collections.abc import Sequence

from ctr.cli import main
from fault_points import Counting, kill, watching


def run_killed_command(arguments: Sequence[str], point: str, count: int, path: str) -> int:
    """Runs ``ctr`` in a process that is killed when ``point`` was reached ``count`` times with ``path`` in the path.

    Returns its exit status, -9 for a killed one. The processes are forked from one that has loaded the modules of
    ingests and computed nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed_command", "ctr.pipelines.tables.ingest"])
    process = context.Process(target=_run, args=(list(arguments), point, count, path))
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("the command did not end")
    return process.exitcode


def _run(arguments: Sequence[str], point: str, count: int, path: str) -> None:
    with watching(Counting(point, count, kill, path), training=False):
        sys.exit(main(arguments))
