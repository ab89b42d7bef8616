"""Runs workers of this machine to their end."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ctr.workers.seats import make_seats


class Ended(NamedTuple):
    """What a worker printed, and the most memory that it had at once, bytes."""

    output: str
    peak_bytes: int


def run_workers(arguments: Sequence[str], size: int, threads: int = 1) -> list[Ended]:
    """Runs ``python ARGUMENTS`` as each of ``size`` workers, or as a process alone.

    Raises:
        SystemExit: one of them failed.
    """
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        for seat in make_seats(size):
            rank = seat.rank
            environment = {
                **os.environ,
                **seat.variable(),
                "TF_NUM_INTRAOP_THREADS": str(threads),
                "OMP_NUM_THREADS": str(threads),
            }
            with (
                (Path(folder) / f"{rank}.out").open("w") as out,
                (Path(folder) / f"{rank}.err").open("w") as err,
            ):
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *arguments],
                        env=environment,
                        stdout=out,
                        stderr=err,
                        pass_fds=seat.descriptors,
                    )
                )
        ended = [os.wait4(process.pid, 0) for process in processes]
        for rank, (_, status, _) in enumerate(ended):
            if status:
                error = (Path(folder) / f"{rank}.err").read_text()[-2000:]
                raise SystemExit(f"{' '.join(arguments)}: worker {rank}: {json.dumps(error)}")
        return [
            Ended((Path(folder) / f"{rank}.out").read_text(), 1024 * usage.ru_maxrss)
            for rank, (_, _, usage) in enumerate(ended)
        ]
