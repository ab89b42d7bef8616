"""Run by its path in a process of its own: starts a job of events again and again and kills it each time.

Given as JSON on the command line: ``driver`` (``batch`` or ``watch``), ``mapping``, ``files`` (a folder of all of them,
from which they appear in ``events`` one by one), ``events``, ``log``, ``kills`` and ``seed``. Prints how many processes
were killed, and how many partitions were there after each of them.

Jobs are forked from a process that has loaded everything and computed nothing: starting Python takes much longer.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Both would load in each job anew.
import tensorflow  # noqa: F401

from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.data.log import list_partitions
from ctr.pipelines.events.follow import WatchSettings, ingest_events, watch_events

LONGEST_SECONDS = 60.0

given: dict[str, Any] = json.loads(sys.argv[1])
mapping = parse_model(EventMapping, given["mapping"], "test")
events, log = Path(given["events"]), Path(given["log"])
source = random.Random(given["seed"])
KINDS = ("impressions", "clicks")
waiting = {
    kind: sorted((Path(given["files"]) / kind).iterdir(), key=lambda path: int(path.stem)) for kind in KINDS
}


def appear(kind: str) -> None:
    """The next file of a kind."""
    if waiting[kind]:
        path = waiting[kind].pop(0)
        hidden = events / kind / f".{path.name}"
        shutil.copyfile(path, hidden)
        hidden.replace(events / kind / path.name)


def run(until: Callable[[], bool], drain: bool) -> None:
    if given["driver"] == "batch":
        ingest_events(mapping, [events], log, max_reject_share=0)
    else:
        settings = WatchSettings(poll_seconds=0.01, settle_seconds=0, max_reject_share=0, drain=drain)
        watch_events(mapping, [events], log, settings, until)


def die_after(calls: int) -> Callable[[], bool]:
    """A function that ends this process as a lost machine does, once it has been called more often than this."""
    left = iter(range(calls))

    def call() -> bool:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    return call


def start(syncs: int, rounds: int, drain: bool = False) -> int:
    """Starts a job that dies of its work, so that a slow machine lets it come as far as a quick one.

    Args:
        syncs: calls of fsync it lives for: after them something was just written but has not yet its name.
        rounds: of a watch it lives for.
        drain: whether a watch ends when there is nothing left.
    """
    child = os.fork()
    if child:
        return child
    fsync, at_sync, at_round = os.fsync, die_after(syncs), die_after(rounds)

    def counting_fsync(descriptor: int) -> None:
        at_sync()
        fsync(descriptor)

    status = 1
    try:
        os.fsync = counting_fsync
        run(at_round, drain)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, seconds: float) -> int | None:
    """The status of a job that ended; None where it has not by then."""
    end, may_appear = time.monotonic() + seconds, True
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        # One at most, so that on a slow machine not all of them are there before the first job has come far.
        if may_appear and source.random() < 0.02:
            appear(source.choice(KINDS))
            may_appear = False
        time.sleep(0.01)
    return None


def main() -> None:
    for kind in KINDS:
        (events / kind).mkdir(parents=True)
    if given["driver"] == "batch":
        for kind in KINDS:
            while waiting[kind]:
                appear(kind)
    killed, partitions = 0, []
    while killed < given["kills"]:
        for kind in KINDS:
            appear(kind)
        # Most of them where something is being written, the others anywhere.
        by_sync = source.random() < 0.75
        child = start(source.randrange(1, 160) if by_sync else sys.maxsize, source.randrange(5, 50))
        ended = wait(child, LONGEST_SECONDS if by_sync else source.uniform(0.5, 3.0))
        if ended is None:
            os.kill(child, signal.SIGKILL)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended not in (0, -signal.SIGKILL):
            sys.exit(f"a job ended with {ended}")
        killed += ended != 0
        partitions.append(len(list_partitions(log)))
    for kind in KINDS:
        while waiting[kind]:
            appear(kind)
    last = wait(start(sys.maxsize, sys.maxsize, drain=True), LONGEST_SECONDS)
    if last != 0:
        sys.exit(f"the last job ended with {last}")
    print(json.dumps({"killed": killed, "partitions": partitions}))


main()
