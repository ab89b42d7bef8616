"""Cluster of processes that train together, read from the environment variable TF_CONFIG without TensorFlow."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctr.io.errors import InputError, PassingError

VARIABLE = "TF_CONFIG"
_ALLOWED = (
    'allowed: {"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": N}}, '
    'a task "chief" being the first worker'
)

_ADDRESS = re.compile(r"([^:\s\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")


class WorkerLostError(PassingError):
    """Another worker died, hangs or cannot be reached; the message is one line that names it if it is identified."""


@dataclass(frozen=True)
class Cluster:
    """Workers of a run. ``rank``: of this process; ``addresses``: HOST:PORT of each, in the order of ranks."""

    rank: int
    addresses: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.addresses)

    def config(self) -> str:
        task = {"type": "worker", "index": self.rank}
        return json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Reads TF_CONFIG; None if it has no cluster. Raises InputError if it is malformed or lacks this worker."""
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"{VARIABLE}: not JSON ({error}); {_ALLOWED}") from None
    if not isinstance(content, dict):
        raise InputError(f"{VARIABLE}: not an object; {_ALLOWED}")
    cluster = content.get("cluster")
    if not cluster:
        return None
    addresses = _addresses(cluster)
    task = content.get("task")
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    # Launchers write the index as a number or as text.
    number = int(index) if isinstance(index, int | str) and str(index).isdecimal() else None
    if kind not in ("chief", "worker") or number is None or number >= len(addresses[kind]):
        raise InputError(
            f"{VARIABLE}: the task {task!r} is none of the {len(addresses['chief'])} chief and "
            f"{len(addresses['worker'])} worker tasks of its cluster; {_ALLOWED}"
        )
    rank = number + (len(addresses["chief"]) if kind == "worker" else 0)
    return Cluster(rank, tuple(addresses["chief"] + addresses["worker"]))


def _addresses(cluster: Any) -> dict[str, list[str]]:
    if not isinstance(cluster, dict):
        raise InputError(f"{VARIABLE}: cluster: not an object; {_ALLOWED}")
    addresses: dict[str, list[str]] = {"chief": [], "worker": []}
    for kind, listed in cluster.items():
        if kind not in addresses:
            raise InputError(f"{VARIABLE}: cluster: a task {kind!r} takes no part in training; {_ALLOWED}")
        texts = listed if isinstance(listed, list) else [None]
        if not all(isinstance(text, str) and _ADDRESS.fullmatch(text) for text in texts):
            raise InputError(f"{VARIABLE}: cluster.{kind}: not a list of HOST:PORT; {_ALLOWED}")
        addresses[kind] = listed
    everyone = addresses["chief"] + addresses["worker"]
    if len(addresses["chief"]) > 1 or len(set(everyone)) < len(everyone):
        raise InputError(
            f"{VARIABLE}: cluster: more than one chief, or an address that is listed twice; {_ALLOWED}"
        )
    return addresses
