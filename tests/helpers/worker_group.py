"""Processes that train together on this machine, as its workers or as a cluster over loopback."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctr.workers.cluster import VARIABLE, Cluster
from ctr.workers.seats import make_seats

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parent.parent


def free_addresses(size: int) -> tuple[str, ...]:
    """As many HOST:PORT of this machine that nobody listens to."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(size)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)


def places(size: int, is_cluster: bool) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Of each worker the variables and the descriptors that give it its place; ends before the next are made."""
    if size == 1:
        yield {VARIABLE: "{}"}, []
    elif is_cluster:
        addresses = free_addresses(size)
        for rank in range(size):
            yield {VARIABLE: Cluster(rank, addresses).config()}, []
    else:
        for seat in make_seats(size):
            yield {VARIABLE: "", **seat.variable()}, seat.descriptors


class Group:
    """Processes of one script, all of which do the same, with one thread each.

    Args:
        size: how many; one is a process alone.
        arguments: of the script.
        folder: for what they write on standard output and standard error.
        script: its name among the helpers.
        environment: variables that are set besides.
        is_cluster: whether TF_CONFIG describes them, and they exchange by TensorFlow's servers.
    """

    def __init__(
        self,
        size: int,
        arguments: Sequence[str],
        folder: Path,
        script: str = "trained_worker.py",
        environment: Mapping[str, str] | None = None,
        is_cluster: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._logs = [folder / f"worker-{rank}.log" for rank in range(size)]
        self.processes = []
        for log, (place, descriptors) in zip(self._logs, places(size, is_cluster), strict=True):
            own = {
                **place,
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
                    command,
                    env={**os.environ, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=descriptors,
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
