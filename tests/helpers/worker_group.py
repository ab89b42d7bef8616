"""Processes that train together on this machine, over loopback."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctr.workers.cluster import VARIABLE, Cluster
from ctr.workers.launch import free_addresses

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parent.parent


class Group:
    """Processes of one script, all of which do the same, with one thread each.

    Args:
        size: how many; one is a process alone.
        arguments: of the script.
        folder: for what they write on standard output and standard error.
        script: its name among the helpers.
        environment: variables that are set besides.
    """

    def __init__(
        self,
        size: int,
        arguments: Sequence[str],
        folder: Path,
        script: str = "trained_worker.py",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        addresses = free_addresses(size)
        self._logs = [folder / f"worker-{rank}.log" for rank in range(size)]
        self.processes = []
        for rank, log in enumerate(self._logs):
            own = {
                VARIABLE: Cluster(rank, addresses).config() if size > 1 else "{}",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "2",
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "PYTHONPATH": f"{HELPERS}:{ROOT}",
                **(environment or {}),
            }
            command = [sys.executable, str(HELPERS / script), *arguments]
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            self.processes.append(process)

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 600) -> list[int]:
        """Returns the exit codes; kills what is left when the time is over."""
        try:
            return [process.wait(timeout) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def output(self, rank: int) -> str:
        return self._logs[rank].read_text(errors="replace")


def train_group(size: int, jobs: Sequence[Mapping[str, Any]], folder: Path) -> Group:
    """Starts a group that trains; for ``jobs`` see ``trained_worker.main``."""
    return Group(size, [json.dumps(list(jobs))], folder)


def run_group(group: Group) -> None:
    """Waits for the end of a group, which must be a success."""
    codes = group.wait()
    texts = [f"worker {rank}:\n{group.output(rank)[-3000:]}" for rank, code in enumerate(codes) if code]
    assert not texts, "\n".join(texts)
