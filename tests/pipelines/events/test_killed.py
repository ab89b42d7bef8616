"""Jobs that are killed anywhere, as the machine does it, publish what one that was left alone does.

The file is also the program that starts a job again and again and kills it each time. It forks from a process that has
loaded everything and computed nothing, which starting Python anew would take much longer.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import event_files
from ctr.data.log import list_partitions
from ctr.pipelines.events.follow import WatchSettings, ingest_events, watch_events
from ctr.pipelines.events.spool import list_reports

FILES = 40
LONGEST_SECONDS = 60.0


def draw() -> dict[str, list[dict[str, object]]]:
    return event_files.draw_events(600, seconds=400)


@pytest.mark.soak
@pytest.mark.parametrize(("driver", "kills", "seed"), [("watch", 25, 1), ("batch", 8, 3)])
def test_a_job_that_is_killed_many_times_publishes_the_same(
    driver, kills, seed, root, fresh_python, tmp_path
):
    files = event_files.write_events(tmp_path / "files", draw(), FILES)
    ingest_events(event_files.mapping(), [files], tmp_path / "undisturbed", max_reject_share=0)
    path = f"{root}{os.pathsep}{root / 'tests' / 'helpers'}"
    done = fresh_python(__file__, driver, kills, seed, tmp_path, cwd=tmp_path, path=path)
    partitions = json.loads(done.stdout.splitlines()[-1])  # type: ignore[attr-defined]
    log = tmp_path / "log"
    assert event_files.published(log) == event_files.published(tmp_path / "undisturbed")
    assert not list(log.glob(".spill-*"))
    if driver == "watch":
        # They died all along the way, not at its beginning or its end.
        assert len(set(partitions)) > kills // 5
        counted = sum(report.events for report in list_reports(log / ".events"))
        assert counted == sum(map(len, draw().values()))


# ---------------------------------------------------------------- the program


def die_after(calls: int) -> Callable[..., bool]:
    """A function that ends this process as a lost machine does, once it has been called more often than this."""
    left = iter(range(calls))

    def call(*_: object) -> bool:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    return call


def start(driver: str, folder: Path, syncs: int, rounds: int, drain: bool = False) -> int:
    """Starts a job that dies of its work: of so many calls of fsync, or of so many rounds of a watch.

    So a slow machine lets it come as far as a quick one; after a call of fsync something was just written but has not
    yet its name.
    """
    if child := os.fork():
        return child
    fsync, at_sync = os.fsync, die_after(syncs)
    os.fsync = lambda descriptor: (at_sync(), fsync(descriptor))[1]
    status = 1
    try:
        mapping, events, log = event_files.mapping(), folder / "events", folder / "log"
        if driver == "batch":
            ingest_events(mapping, [events], log, max_reject_share=0)
        else:
            settings = WatchSettings(poll_seconds=0.01, settle_seconds=0, max_reject_share=0, drain=drain)
            watch_events(mapping, [events], log, settings, die_after(rounds))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(driver: str, kills: int, seed: int, folder: Path) -> None:
    # It would load in each job anew.
    import tensorflow  # noqa: F401

    source = random.Random(seed)
    waiting = {
        kind: sorted((folder / "files" / kind).iterdir(), key=lambda path: int(path.stem))
        for kind in ("impressions", "clicks")
    }

    def appear(count: int, *kinds: str) -> None:
        for kind in kinds:
            for path in waiting[kind][:count]:
                event_files.write_files(folder / "events", [(f"{kind}/{path.name}", path.read_bytes())])
            del waiting[kind][:count]

    if driver == "batch":
        appear(FILES, *waiting)
    partitions, killed = [], 0
    while killed < kills:
        appear(1, *waiting)
        # Most of them where something is being written, the others anywhere.
        by_sync = source.random() < 0.75
        child = start(driver, folder, source.randrange(1, 160) if by_sync else 10**9, source.randrange(5, 50))
        # More files appear meanwhile.
        end = time.monotonic() + (LONGEST_SECONDS if by_sync else source.uniform(0.5, 3.0))
        while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.01)
            if source.random() < 0.005:
                appear(1, source.choice(list(waiting)))
        if not done[0]:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
        status = os.waitstatus_to_exitcode(done[1])
        if status not in (0, -signal.SIGKILL):
            sys.exit(f"a job ended with {status}")
        killed += status != 0
        partitions.append(len(list_partitions(folder / "log")))
    appear(FILES, *waiting)
    last = os.waitpid(start(driver, folder, 10**9, 10**9, drain=True), 0)[1]
    if last != 0:
        sys.exit(f"the last job ended with {last}")
    print(json.dumps(partitions))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
