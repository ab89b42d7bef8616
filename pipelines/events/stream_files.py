"""Folders of events as an unbounded Beam source: a splittable function for each kind, whose watermark is its arrivals.

What has been read is in the checkpoint of the runner: the name of the last file, behind which all later ones come.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Duration, Timestamp

from ctr.data.event_mapping import EventMapping
from ctr.io.errors import InputError
from ctr.pipelines.events.read import Unit, find_events, read_unit
from ctr.pipelines.events.rules import interval_rules
from ctr.pipelines.events.stream import RawEvents
from ctr.pipelines.events.tables import KINDS, Kind, arrivals, wanted_columns
from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.rows.rejects import make_reject
from ctr.pipelines.rows.sources import UnreadableNowError, natural_order

_FILES_A_BUNDLE = 16


@dataclass(frozen=True)
class ReadSoFar:
    """What has been read of a kind.

    Attributes:
        last: the name of the last file; empty before the first.
        files: how many there were up to that name when it was read.
        arrival: the latest arrival, in microseconds; 0 before the first.
        written: when the last file was written, before the first when the job began; seconds since 1970.
        over: whether this part of the work is done.
    """

    last: str = ""
    files: int = 0
    arrival: int = 0
    written: float = 0.0
    over: bool = False


class FilesTracker(RestrictionTracker):
    """Claims files one after the other; what is left can be put off, never divided."""

    def __init__(self, restriction: ReadSoFar) -> None:
        self._restriction = restriction

    def current_restriction(self) -> ReadSoFar:
        return self._restriction

    def try_claim(self, position: ReadSoFar) -> bool:
        if self._restriction.over:
            return False
        self._restriction = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[ReadSoFar, ReadSoFar] | None:
        if fraction_of_remainder > 0 or self._restriction.over:
            return None
        rest = self._restriction
        self._restriction = replace(rest, over=True)
        return self._restriction, rest

    def check_done(self) -> None:
        if not self._restriction.over:
            raise ValueError(f"the events after {self._restriction.last} are left")

    def current_progress(self) -> RestrictionProgress:
        return RestrictionProgress(completed=self._restriction.files, remaining=1)

    def is_bounded(self) -> bool:
        return False


class _Files(RestrictionProvider):
    """All files of a kind, also those to come."""

    def initial_restriction(self, element: Kind) -> ReadSoFar:
        return ReadSoFar(written=time.time())

    def create_tracker(self, restriction: ReadSoFar) -> FilesTracker:
        return FilesTracker(restriction)

    def restriction_size(self, element: Kind, restriction: ReadSoFar) -> int:
        return 1

    def truncate(self, element: Kind, restriction: ReadSoFar) -> None:
        return None


_RESTRICTION = beam.DoFn.RestrictionParam(_Files())
_ESTIMATOR = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())


@beam.typehints.with_output_types(RawEvents)
class FollowFiles(beam.DoFn):
    """The files of a kind as ``RawEvents``, some at a time; then it asks to be called again."""

    def __init__(self, source: "EventsInFolders") -> None:
        self._source = source

    @beam.DoFn.unbounded_per_element()
    def process(self, kind: Kind, tracker: Any = _RESTRICTION, estimator: Any = _ESTIMATOR) -> Iterator[Any]:
        source, position = self._source, tracker.current_restriction()
        found = source.new_files(kind, position)
        for number, file in enumerate(found.files[:_FILES_A_BUNDLE], found.before + 1):
            position = replace(position, last=file.unit.name, files=number, written=file.written)
            if not tracker.try_claim(position):
                return
            for chunk in _read(source.mapping, file.unit):
                known = arrivals(source.mapping, kind, chunk, time.time_ns() // 1000)
                first, last = known or (position.arrival, position.arrival)
                position = replace(position, arrival=max(position.arrival, last))
                yield TimestampedValue(RawEvents(kind, file.unit.name, chunk), Timestamp(micros=first))
            tracker.try_claim(position)
            # What was read is on its way: from here on all arrives later.
            _advance(estimator, position.arrival - source.overlap)
        if len(found.files) > _FILES_A_BUNDLE:
            tracker.defer_remainder()
        elif source.drain:
            estimator.set_watermark(MAX_TIMESTAMP)
            tracker.try_claim(replace(position, over=True))
        else:
            now = time.time()
            limit = source.idle_seconds
            if limit is not None and now - position.written > limit and not found.unsettled:
                since = position.arrival - source.overlap + round((now - position.written) * 1e6)
                _advance(estimator, since if position.last else round(now * 1e6))
            tracker.defer_remainder(Duration(seconds=source.poll_seconds))


def _advance(estimator: Any, arrival: int) -> None:
    """Moves the watermark to an arrival, in the milliseconds that it is counted in; never back."""
    moment = Timestamp(micros=max(arrival, 0) // 1000 * 1000)
    current = estimator.current_watermark()
    if current is None or moment > current:
        estimator.set_watermark(moment)


def _read(mapping: EventMapping, unit: Unit) -> Iterator[Chunk]:
    """The chunks of a file; of one that is damaged those before, and one that says so."""
    try:
        yield from read_unit(mapping, unit)
    except UnreadableNowError as error:
        # The runner tries it again; by its plain name, which is found in what a runner tells of an error.
        raise InputError(str(error)) from None
    except InputError as error:
        names = list(wanted_columns(mapping, unit.kind))
        nothing = pa.table([pa.nulls(0) for _ in names], names=names)
        fault = str(error).removeprefix(f"{unit.path}: ")
        told = make_reject(0, 0, "file", "damaged", fault, "a whole file")
        yield Chunk(0, nothing, np.zeros(0, np.int64), [told])


@dataclass(frozen=True)
class NewFile:
    """A file, and when it was written, in seconds since 1970."""

    unit: Unit
    written: float


@dataclass(frozen=True)
class NewFiles:
    """What is there of a kind beside what has been read.

    Attributes:
        files: to read, in order.
        before: how many files stand before them.
        unsettled: whether there are more, which are being written.
    """

    files: list[NewFile]
    before: int
    unsettled: bool


class EventsInFolders(beam.PTransform[Any, Any]):
    """The events of some folders as ``RawEvents``, file by file in the order of their names.

    Args:
        mapping: how they are read.
        folders: which all workers see under these paths.
        drain: whether to end when there is no new file, with the watermark at the end of time.
        poll_seconds: between two looks.
        idle_seconds: since the last file of a kind was written, after which its arrivals go on with the time of day;
            None: its next file is waited for as long as it takes.
        settle_seconds: for which a file must not have changed before it is read.
    """

    def __init__(
        self,
        mapping: EventMapping,
        folders: Sequence[Path],
        drain: bool = False,
        poll_seconds: float = 0.5,
        idle_seconds: float | None = None,
        settle_seconds: float = 0.5,
    ) -> None:
        super().__init__()
        self.mapping, self.folders, self.drain = mapping, tuple(folders), drain
        self.overlap = interval_rules(mapping).overlap
        self.poll_seconds, self.idle_seconds, self.settle_seconds = poll_seconds, idle_seconds, settle_seconds

    def expand(self, begin: Any) -> Any:
        return (
            begin.pipeline
            | "Kinds" >> beam.Create(list(KINDS), reshuffle=False)
            | "Follow" >> beam.ParDo(FollowFiles(self))
        )

    def new_files(self, kind: Kind, position: ReadSoFar) -> NewFiles:
        """The files after a position.

        Raises:
            InputError: a file has come whose name stands before one that was read.
        """
        units = [unit for unit in find_events(self.mapping, self.folders) if unit.kind == kind]
        place = natural_order(position.last)
        before = sum(1 for unit in units if position.last and natural_order(unit.name) <= place)
        if before > position.files:
            raise InputError(
                f"events: there are {before} files up to {position.last}, of which {position.files} were read: the "
                "names of new files must sort after those of older ones"
            )
        files = [NewFile(unit, unit.path.stat().st_mtime) for unit in units[before:]]
        if self.drain:
            return NewFiles(files, before, False)
        latest = time.time() - self.settle_seconds
        settled = next((at for at, file in enumerate(files) if file.written > latest), len(files))
        return NewFiles(files[:settled], before, settled < len(files))
