"""Runs commands as separate processes, also as several workers; returns their times, memory and output."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ctr.workers.seats import make_seats

RESULT = "RESULT "
FOLDER = Path(__file__).resolve().parent


class Ended(NamedTuple):
    """A process that has ended.

    Attributes:
        output: its standard output.
        seconds, processor_seconds: its wall time and processor time.
        peak_bytes: its peak resident memory.
    """

    output: str
    seconds: float
    processor_seconds: float
    peak_bytes: int

    @property
    def result(self) -> Any:
        """Returns the result that it passed to ``give``."""
        return json.loads(self.output.partition(RESULT)[2].splitlines()[0])


def give(result: object) -> None:
    """Passes a JSON-serializable result to the process that started this one, and exits without waiting for threads."""
    print(RESULT + json.dumps(result), flush=True)
    os._exit(0)


def run_python(
    arguments: Sequence[object], size: int = 1, threads: int | None = None, cwd: Path | None = None
) -> list[Ended]:
    """Runs ``python ARGUMENTS`` as each of ``size`` workers, or as a single process.

    ``threads`` is the number of threads of each worker, by default the number of processors. Raises SystemExit if a
    process fails.
    """
    command = [sys.executable, *map(str, arguments)]
    limits = (
        {} if threads is None else dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), str(threads))
    )
    path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    common: Mapping[str, str] = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path, **limits}
    processes = []
    with tempfile.TemporaryDirectory() as name:
        for seat in make_seats(size) if size > 1 else [None]:
            files = [Path(name) / f"{len(processes)}.{kind}" for kind in ("out", "err")]
            env = common if seat is None else {**common, **seat.variable()}
            descriptors = [] if seat is None else seat.descriptors
            with files[0].open("w") as out, files[1].open("w") as err:
                begun = time.perf_counter()
                process = subprocess.Popen(
                    command, env=env, stdout=out, stderr=err, pass_fds=descriptors, cwd=cwd
                )
            processes.append((process, files, begun))
        ended, failed = [], ""
        for process, (out_file, err_file), begun in processes:
            _, status, usage = os.wait4(process.pid, 0)
            seconds, worked = time.perf_counter() - begun, usage.ru_utime + usage.ru_stime
            ended.append(Ended(out_file.read_text(), seconds, worked, 1024 * usage.ru_maxrss))
            if status and not failed:
                failed = f"{' '.join(command)}: {err_file.read_text().strip()[-2000:]}"
        if failed:
            raise SystemExit(failed)
        return ended


def run_command(*arguments: object, cwd: Path | None = None, threads: int | None = None) -> Ended:
    """Runs ``ctr ARGUMENTS`` until it ends. Raises SystemExit if it fails."""
    return run_python(["-m", "ctr", *arguments], threads=threads, cwd=cwd)[0]
