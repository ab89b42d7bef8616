"""Runs a function in several processes that train together, each with one thread, over this machine's loopback.

    found = gang(2, tmp_path, "sharded_shampoo:run", case="momentum")

calls ``run(workers, case="momentum")`` of tests/helpers/sharded_shampoo.py in each of two processes, and returns for
each rank the arrays that it returned by name.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parents[1]


def free_addresses(size: int) -> list[str]:
    """HOST:PORT of ports that nobody uses at the moment."""
    sockets = [socket.socket() for _ in range(size)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()


def gang(
    size: int,
    folder: Path,
    function: str,
    *,
    join: bool = True,
    environment: dict[str, str] | None = None,
    **arguments: Any,
) -> list[dict[str, np.ndarray]]:
    """Runs a function in ``size`` processes.

    Args:
        size: how many.
        folder: for the files of the processes, an empty one.
        function: MODULE:NAME, a module of tests/helpers.
        join: whether its first argument is the joined workers; else it finds TF_CONFIG set, and joins itself.
        environment: variables that are set in them besides.
        arguments: passed to the function, as JSON.

    Raises:
        RuntimeError: a process failed; with the end of what it wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    addresses = free_addresses(size)
    processes = []
    for rank in range(size):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        env = {
            **os.environ,
            "TF_CONFIG": json.dumps(task),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HELPERS)]),
            "TF_NUM_INTRAOP_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        call = json.dumps({"function": function, "join": join, "arguments": arguments})
        with (folder / f"{rank}.txt").open("w") as written:
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, call, str(folder / f"{rank}.npz")],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [rank for rank, code in enumerate(codes) if code]
    if failed:
        texts = [f"rank {rank}:\n" + (folder / f"{rank}.txt").read_text()[-3000:] for rank in failed]
        raise RuntimeError("\n".join(texts))
    found = []
    for rank in range(size):
        with np.load(folder / f"{rank}.npz") as arrays:
            found.append({name: arrays[name] for name in arrays.files})
    return found


def _run(call: str, result: str) -> None:
    """What each process does."""
    wanted = json.loads(call)
    module, _, name = wanted["function"].partition(":")
    first: list[Any] = []
    if wanted["join"]:
        from ctr.workers.cluster import read_cluster
        from ctr.workers.collectives import join

        cluster = read_cluster()
        assert cluster is not None
        first = [join(cluster, 120.0)]
    arrays = getattr(importlib.import_module(module), name)(*first, **wanted["arguments"])
    np.savez(result, **arrays)


if __name__ == "__main__":
    _run(*sys.argv[1:])
