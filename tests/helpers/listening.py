"""Sockets that a process and all that it starts listen on, as Linux counts them."""

import os
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"
# As /proc/net has them: 127.0.0.0/8, the same in IPv6, and ::1; a word of four bytes has its last byte first.
LOOPBACK = ("0000000000000000FFFF0000", "00000000000000000000000001000000")


def is_loopback(address: str) -> bool:
    """Returns whether an address of /proc/net/tcp or tcp6, without its port, is of the loopback device."""
    if len(address) == 8:
        return address.endswith("7F")
    return address == LOOPBACK[1] or (address.startswith(LOOPBACK[0]) and address.endswith("7F"))


def run_watched(command: list[str], **options: object) -> tuple[int, set[str]]:
    """Runs a command to its end; returns its status, and the addresses beyond the loopback that were listened on."""
    process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    addresses: set[str] = set()
    while process.poll() is None:
        addresses |= listening(process.pid)
        time.sleep(0.05)
    return process.returncode, {
        address for address in addresses if not is_loopback(address.partition(":")[0])
    }


def listening(process: int) -> set[str]:
    """Lists the addresses, ADDRESS:PORT in hexadecimal, on which a process or one that it started listens now."""
    sockets = {link for one in _tree(process) for link in _links(Path(f"/proc/{one}/fd"))}
    addresses = set()
    for table in ("tcp", "tcp6"):
        # The table of the process' own network.
        with suppress(OSError):
            for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and f"socket:[{words[9]}]" in sockets:
                    addresses.add(words[1])
    return addresses


def _tree(process: int) -> Iterable[int]:
    processes = [process]
    for one in processes:
        for thread in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                processes += map(int, thread.read_text().split())
    return processes


def _links(folder: Path) -> Iterable[str]:
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(folder / name)
