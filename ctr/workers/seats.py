"""Seats of workers on one machine: inherited descriptors, by which workers reach each other and nobody else can.

The process that starts the workers makes a pair of connected sockets for every two of them, and areas of memory. None
of it has a name, a path or an address, so that no other machine, and no process of another user, can connect.
"""

import json
import os
import resource
import socket
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

from ctr.workers.cluster import Cluster, read_cluster

VARIABLE = "CTR_SEAT"
AREAS = 2  # areas of memory of each worker, used in turn


@dataclass(frozen=True)
class Seat:
    """Seat of one worker: descriptors of its sockets, by rank of the peer (-1 for itself), and of all areas."""

    rank: int
    sockets: tuple[int, ...]
    areas: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.sockets)

    @property
    def descriptors(self) -> list[int]:
        return [d for d in self.sockets if d >= 0] + [d for areas in self.areas for d in areas]

    def variable(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


def make_seats(size: int) -> Iterator[Seat]:
    """Yields each worker's seat; start the worker before requesting the next seat, which closes the descriptors."""
    _allow_descriptors(size * size // 4 + size * (AREAS + 1))
    areas = tuple(tuple(os.memfd_create("ctr-worker") for _ in range(AREAS)) for _ in range(size))
    ends: dict[tuple[int, int], int] = {}
    try:
        for rank in range(size):
            for other in range(rank + 1, size):
                pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ends[rank, other], ends[other, rank] = (end.detach() for end in pair)
            yield Seat(rank, tuple(ends.get((rank, other), -1) for other in range(size)), areas)
            # Only the workers may have them, so that the others notice when one ends.
            for other in range(size):
                if other != rank:
                    os.close(ends.pop((rank, other)))
    finally:
        for descriptor in (*ends.values(), *(d for row in areas for d in row)):
            os.close(descriptor)


def read_place(environment: MutableMapping[str, str] = os.environ) -> Seat | Cluster | None:
    """Takes this process's seat from the environment, so that no child inherits it; without one, reads TF_CONFIG."""
    text = environment.pop(VARIABLE, "")
    if not text:
        return read_cluster(environment)
    content: dict[str, Any] = json.loads(text)
    areas = tuple(tuple(row) for row in content["areas"])
    seat = Seat(content["rank"], tuple(content["sockets"]), areas)
    for descriptor in seat.descriptors:
        os.set_inheritable(descriptor, False)
    return seat


def _allow_descriptors(more: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + more + 64
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
