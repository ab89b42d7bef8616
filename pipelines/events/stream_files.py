"""Folders of events as an unbounded Beam source: a splittable function for each kind, whose watermark is its arrivals.

The runner's checkpoint has the name of the last file that was read; the names of all later files sort after it.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.read import EventFolders, ReadSoFar, Unit, read_unit
from ctr.pipelines.events.rules import partition_rules
from ctr.pipelines.events.stream import RawEvents
from ctr.pipelines.events.tables import Kind, arrivals, wanted_columns
from ctr.pipelines.tables.input_files import Chunk, UnreadableNowError
from ctr.pipelines.tables.rejects import make_reject

_FILES_A_BUNDLE = 16


class FilesTracker(RestrictionTracker):
    """Tracker that claims files one after the other; the rest can be deferred, never divided."""

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
    """Files of a kind as ``RawEvents``, some at a time; then it defers the rest."""

    def __init__(self, mapping: EventMapping, folders: Sequence[Path], settings: FollowSettings) -> None:
        self._mapping, self._settings = mapping, settings
        self._folders = EventFolders(mapping, folders, settings)
        self._overlap = partition_rules(mapping).overlap

    @beam.DoFn.unbounded_per_element()
    def process(self, kind: Kind, tracker: Any = _RESTRICTION, estimator: Any = _ESTIMATOR) -> Iterator[Any]:
        settings, position = self._settings, tracker.current_restriction()
        units = [unit for unit in self._folders.scan() if unit.kind == kind]
        unread = position.unread(units)
        files, unsettled = self._folders.complete_files(kind, unread)
        for number, (unit, version) in enumerate(files[:_FILES_A_BUNDLE], len(units) - len(unread) + 1):
            written = version.modified_ns / 1e9
            position = replace(position, last=unit.name, files=number, written=written)
            if not tracker.try_claim(position):
                return
            for chunk in _read(self._mapping, unit):
                before = position.arrival or -1
                first, last = arrivals(self._mapping, kind, chunk, before) or (position.arrival,) * 2
                position = replace(position, arrival=max(position.arrival, last))
                yield TimestampedValue(RawEvents(kind, unit.name, chunk, before), Timestamp(micros=first))
            tracker.try_claim(position)
            # What was read has been output: all that follows arrives later.
            _advance(estimator, position.arrival - self._overlap)
        if len(files) > _FILES_A_BUNDLE:
            tracker.defer_remainder()
        elif settings.drain:
            estimator.set_watermark(MAX_TIMESTAMP)
            tracker.try_claim(replace(position, over=True))
        else:
            now = time.time()
            limit = settings.idle_seconds
            if limit is not None and now - position.written > limit and not unsettled:
                since = position.arrival - self._overlap + round((now - position.written) * 1e6)
                _advance(estimator, since if position.last else round(now * 1e6))
            tracker.defer_remainder(Duration(seconds=settings.poll_seconds))


def _advance(estimator: Any, arrival: int) -> None:
    """Moves the watermark to an arrival, in the milliseconds that it is counted in; never back."""
    moment = Timestamp(micros=max(arrival, 0) // 1000 * 1000)
    current = estimator.current_watermark()
    if current is None or moment > current:
        estimator.set_watermark(moment)


def _read(mapping: EventMapping, unit: Unit) -> Iterator[Chunk]:
    """Yields a file's chunks; for a damaged file, the chunks before the damage and one with a reject."""
    try:
        yield from read_unit(mapping, unit)
    except UnreadableNowError:
        # The runner tries it again.
        raise
    except InputError as error:
        names = list(wanted_columns(mapping, unit.kind))
        nothing = pa.table([pa.nulls(0) for _ in names], names=names)
        fault = str(error).removeprefix(f"{unit.path}: ")
        reject = make_reject(0, 0, "file", "damaged", fault, "a whole file")
        yield Chunk(0, nothing, np.zeros(0, np.int64), [reject])


class EventsInFolders(beam.PTransform[Any, Any]):
    """Events of some folders as ``RawEvents``, file by file in the order of their names.

    All workers see the folders under their paths. Drained folders end with the watermark at the end of
    time. A kind is idle by itself, from when its last file was written.
    """

    def __init__(self, mapping: EventMapping, folders: Sequence[Path], settings: FollowSettings) -> None:
        super().__init__()
        self._follow, self._kinds = FollowFiles(mapping, folders, settings), mapping.kinds

    def expand(self, begin: Any) -> Any:
        kinds = begin.pipeline | "Kinds" >> beam.Create(list(self._kinds), reshuffle=False)
        return kinds | "Follow" >> beam.ParDo(self._follow)
