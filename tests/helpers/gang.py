"""Runs a function in several processes that train together, each with one thread.

    found = gang(2, tmp_path, "sharded_shampoo:run", case="momentum")

calls ``run(workers, case="momentum")`` of tests/helpers/sharded_shampoo.py in each of two processes, and returns for
each rank the arrays that it returned by name.
"""

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctr.workers.seats import read_place
from worker_group import Group, run_group


def gang(
    size: int,
    folder: Path,
    function: str,
    *,
    join: bool = True,
    environment: Mapping[str, str] | None = None,
    **arguments: Any,
) -> list[dict[str, np.ndarray]]:
    """Runs a function in ``size`` processes.

    Args:
        size: how many.
        folder: for the files of the processes, an empty one.
        function: MODULE:NAME, a module of tests/helpers.
        join: whether its first argument is the joined workers of this machine; else it finds TF_CONFIG set, and joins
            itself.
        environment: variables that are set in them besides.
        arguments: passed to the function, as JSON.
    """
    call = json.dumps({"function": function, "join": join, "arguments": arguments})
    run_group(Group(size, [call, str(folder)], folder, "gang.py", environment, is_cluster=not join))
    found = []
    for rank in range(size):
        with np.load(folder / f"{rank}.npz") as arrays:
            found.append({name: arrays[name] for name in arrays.files})
    return found


def _run(call: str, folder: str) -> None:
    """What each process does."""
    wanted, place = json.loads(call), read_place()
    module, _, name = wanted["function"].partition(":")
    first: list[Any] = []
    if wanted["join"]:
        from ctr.workers.join import join

        first = [join(place, 120.0)]
    arrays = getattr(importlib.import_module(module), name)(*first, **wanted["arguments"])
    np.savez(Path(folder) / f"{0 if place is None else place.rank}.npz", **arrays)


if __name__ == "__main__":
    _run(*sys.argv[1:])
