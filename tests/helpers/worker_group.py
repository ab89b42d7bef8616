"""Processes that train together on this machine, over loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parent.parent


def free_addresses(count: int) -> list[str]:
    """HOST:PORT of loopback, where nobody listens now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


class Group:
    """Processes of one script, all of which do the same.

    Args:
        size: how many.
        jobs: the script's argument; see ``trained_worker.main``.
        folder: for what they write on standard output and standard error.
        script: its name among the helpers.
    """

    def __init__(
        self,
        size: int,
        jobs: Sequence[Mapping[str, Any]],
        folder: Path,
        script: str = "trained_worker.py",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        addresses = free_addresses(size)
        self._logs = [folder / f"worker-{rank}.log" for rank in range(size)]
        self.processes = []
        for rank, log in enumerate(self._logs):
            task = {"type": "worker", "index": rank}
            cluster = {"cluster": {"worker": addresses}, "task": task} if size > 1 else {}
            environment = {
                **os.environ,
                "TF_CONFIG": json.dumps(cluster),
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "2",
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "PYTHONPATH": f"{HELPERS}:{ROOT}",
            }
            command = [sys.executable, str(HELPERS / script), json.dumps(list(jobs))]
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            self.processes.append(process)

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 300) -> list[int]:
        """Returns the exit codes; kills what is left when the time is over."""
        try:
            return [process.wait(timeout) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def output(self, rank: int) -> str:
        return self._logs[rank].read_text(errors="replace")


def run_group(size: int, jobs: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Runs a group to its end, which must be a success."""
    group = Group(size, jobs, folder)
    codes = group.wait()
    assert codes == [0] * size, "\n".join(group.output(rank)[-3000:] for rank in range(size))
