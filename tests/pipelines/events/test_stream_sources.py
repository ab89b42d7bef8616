"""Folders as a source of the streaming job: which file is read when, and how far the arrivals are said to be."""

import os
import time
from pathlib import Path

import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from ctr.io.errors import InputError
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.read import ReadSoFar
from ctr.pipelines.events.stream_sources import FilesTracker, FollowFiles
from event_files import encode, impression, mapping, microseconds

HOUR = 3600.0


class Reader:
    """The source of impressions as a runner calls it, again and again."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._follow = FollowFiles(mapping(), [folder], FollowSettings(**settings))
        self._estimator = ManualWatermarkEstimator(None)
        self.position = ReadSoFar(written=time.time())

    def read(self) -> list[str]:
        """Names of the files that a call gives chunks of."""
        tracker = ThreadsafeRestrictionTracker(FilesTracker(self.position))
        found = list(self._follow.process("impressions", RestrictionTrackerView(tracker), self._estimator))
        self.chunks = [element.value for element in found]
        self.times = [element.timestamp.micros for element in found]
        tracker.check_done()
        rest = tracker.deferred_status()
        self.deferred = rest is not None
        if rest is not None:
            self.position = rest[0][0] if isinstance(rest[0], tuple) else rest[0]
        return [chunk.name for chunk in self.chunks]

    @property
    def watermark(self) -> Timestamp | None:
        return self._estimator.current_watermark()


def put(folder: Path, name: str, arrivals: list[float], age: float = HOUR) -> Path:
    path = folder / "impressions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode([impression(int(at * 1000), 0, at) for at in arrivals], "jsonl"))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_files_come_in_the_order_of_their_names_and_move_the_watermark_to_their_arrivals(tmp_path):
    put(tmp_path, "10.jsonl", [8.5, 9.0005])
    put(tmp_path, "9.jsonl", [3, 2])
    put(tmp_path, "8.jsonl", [])  # says nothing
    reader = Reader(tmp_path, idle_seconds=2 * HOUR)
    assert reader.read() == ["impressions/9.jsonl", "impressions/10.jsonl"]
    assert reader.times == [microseconds(2), microseconds(8.5)]
    assert reader.watermark == Timestamp(micros=microseconds(9))
    assert reader.deferred and reader.position.files == 3
    assert reader.read() == []
    put(tmp_path, "11.jsonl", [10])
    assert reader.read() == ["impressions/11.jsonl"]
    assert reader.watermark == Timestamp(micros=microseconds(10))


def test_a_drained_source_ends_with_the_watermark_at_the_end_of_time(tmp_path):
    for number in range(40):
        put(tmp_path, f"{number}.jsonl", [number], age=0)
    reader = Reader(tmp_path, drain=True)
    names = reader.read()
    assert reader.deferred and len(names) < 40
    while reader.deferred:
        assert reader.watermark == Timestamp(micros=microseconds(len(names) - 1))
        names += reader.read()
    assert names == [f"impressions/{number}.jsonl" for number in range(40)]
    assert reader.watermark == MAX_TIMESTAMP


def test_a_file_that_is_being_written_holds_back_those_behind_it(tmp_path):
    put(tmp_path, "1.jsonl", [1])
    put(tmp_path, "2.jsonl", [2], age=0)
    put(tmp_path, "3.jsonl", [3])
    put(tmp_path, "4.jsonl.tmp", [4])
    reader = Reader(tmp_path, settle_seconds=60, idle_seconds=1)
    assert reader.read() == ["impressions/1.jsonl"]
    assert reader.watermark == Timestamp(micros=microseconds(1))
    put(tmp_path, "2.jsonl", [2])
    assert reader.read() == ["impressions/2.jsonl", "impressions/3.jsonl"]


def test_a_file_of_a_clock_that_is_ahead_is_read_once_it_no_longer_changes(tmp_path):
    put(tmp_path, "1.jsonl", [1], age=-HOUR)
    reader = Reader(tmp_path, settle_seconds=0.2)
    assert reader.read() == []
    time.sleep(0.3)
    assert reader.read() == ["impressions/1.jsonl"]


def test_files_that_were_read_may_be_deleted_but_none_may_come_before_them(tmp_path):
    old = [put(tmp_path, f"{name}.jsonl", [1]) for name in "bc"]
    reader = Reader(tmp_path, idle_seconds=2 * HOUR)
    assert len(reader.read()) == 2
    added = put(tmp_path, "a.jsonl", [0])
    with pytest.raises(InputError, match=r"3 files up to impressions/c\.jsonl, of which 2 were read"):
        reader.read()
    added.unlink()
    for path in old:
        path.unlink()
    assert reader.read() == []
    # What is gone says nothing of how long nothing has come.
    assert reader.watermark == Timestamp(micros=microseconds(1))
    put(tmp_path, "d.jsonl", [2])
    assert reader.read() == ["impressions/d.jsonl"]
    put(tmp_path, "b.jsonl", [0])
    with pytest.raises(InputError, match=r"2 files up to impressions/d\.jsonl, of which 1 were read"):
        reader.read()


def test_arrivals_go_on_with_the_time_of_day_when_no_file_has_come_for_long(tmp_path):
    put(tmp_path, "1.jsonl", [1], age=HOUR)
    reader = Reader(tmp_path, idle_seconds=60)
    reader.read()
    passed = (reader.watermark.micros - microseconds(1)) / 1e6
    assert HOUR <= passed < HOUR + 60
    # A file that comes after all does not move the watermark back.
    before = reader.watermark
    put(tmp_path, "2.jsonl", [2], age=0)
    os.utime(tmp_path / "impressions" / "2.jsonl", (time.time() - 1,) * 2)
    assert reader.read() == ["impressions/2.jsonl"]
    assert reader.watermark >= before
    # Nor does anybody wait for ever for a kind without any file.
    (tmp_path / "empty").mkdir()
    empty = Reader(tmp_path / "empty", idle_seconds=60)
    assert empty.read() == [] and empty.watermark is None
    empty.position = ReadSoFar(written=time.time() - 61)
    assert empty.read() == []
    assert abs(empty.watermark.micros / 1e6 - time.time()) < 60
