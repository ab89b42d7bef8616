"""Jobs that are killed anywhere, as the machine does it, publish what one that was left alone does."""

import random
import signal
import subprocess
import sys

import pytest

import event_files
from ctr.data.log import list_partitions
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.follow import ingest_events, list_reports, watch_events

FILES = 20
POINTS = ("write.half", "fsync.before", "fsync.after", "rename.before", "rename.after", "link.after")
# Dies of its work, where something is being written: so a slow machine lets it come as far as a quick one.
JOB = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import event_files, fault_points
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.follow import ingest_events, watch_events
driver, events, log = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
settings = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0)
rounds = iter(range(20))
with fault_points.watching(fault_points.Counting(sys.argv[5], int(sys.argv[6]), path=str(log)), training=False):
    if driver == "batch":
        ingest_events(event_files.mapping(), [events], log, max_reject_share=0)
    else:
        watch_events(event_files.mapping(), [events], log, settings, lambda: next(rounds, None) is None)
"""


@pytest.mark.soak
@pytest.mark.parametrize(("driver", "kills"), [("watch", 10), ("batch", 6)])
def test_a_job_that_is_killed_many_times_publishes_the_same(driver, kills, root, tmp_path):
    drawn, source = event_files.draw_events(600, seconds=400), random.Random(kills)
    waiting = event_files.encode_files(drawn, FILES)
    event_files.write_files(tmp_path / "whole", waiting)
    ingest_events(event_files.mapping(), [tmp_path / "whole"], tmp_path / "undisturbed", max_reject_share=0)
    events, log = tmp_path / "events", tmp_path / "log"
    partitions = []
    for turn in range(2 * kills):
        # Of a watch, two more files appear before each start.
        some = waiting[2 * turn : 2 * turn + 2] if driver == "watch" else waiting
        event_files.write_files(events, some)
        point = [source.choice(POINTS), str(source.randrange(1, 25))]
        command = [sys.executable, "-c", JOB, str(root / "tests" / "helpers"), driver, str(events), str(log)]
        status = subprocess.run([*command, *point], cwd=root).returncode
        assert status in (0, -signal.SIGKILL)
        if status:
            partitions.append(len(list_partitions(log)))
    assert len(partitions) >= kills
    if driver == "batch":
        ingest_events(event_files.mapping(), [events], log, max_reject_share=0)
    else:
        settings = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0, drain=True)
        watch_events(event_files.mapping(), [events], log, settings, lambda: False)
        # They died all along the way, not at its beginning or its end.
        assert len(set(partitions)) > kills // 5
        counted = sum(report.events for report in list_reports(log / ".events"))
        assert counted == sum(map(len, drawn.values()))
    assert event_files.published(log) == event_files.published(tmp_path / "undisturbed")
    assert not list(log.glob(".spill-*"))
