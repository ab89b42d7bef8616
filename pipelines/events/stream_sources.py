"""Unbounded Beam sources of ``RawEvents``: folders, whose watermark follows the arrivals, and Kafka topics.

Folders are read by a splittable DoFn for each kind. The runner's checkpoint has the name of the last file that was
read; the names of all later files sort after it.

Records of Kafka, read by Beam's connector, are JSON objects. Their timestamps are their arrivals: either the broker
sets them, or producers set them to the time when they received the event. A record without a value (null) is not an
event: it only moves the watermark of its Kafka partition, which the connector does not know before the first record.
"""

# Beam has types for its classes, but only for few of its functions.
# mypy: allow-untyped-calls

import time
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.kafka import ReadFromKafka, ReadFromKafkaSchema
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.external import ExternalTransform, NamedTupleBasedPayloadBuilder
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Duration, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ctr.data.event_mapping import EventMapping
from ctr.io.errors import InputError
from ctr.pipelines.events.drivers import EventOptions, FollowSettings, Location
from ctr.pipelines.events.read import (
    BLOCK_BYTES,
    EventFolders,
    ReadSoFar,
    Unit,
    line_reader,
    read_unit,
    select_kind,
)
from ctr.pipelines.events.rules import partition_rules
from ctr.pipelines.events.stream import RawEvents
from ctr.pipelines.events.tables import Kind, arrivals, wanted_columns
from ctr.pipelines.tables.input_files import Chunk, UnreadableNowError
from ctr.pipelines.tables.rejects import make_reject

_FILES_A_BUNDLE = 16


class FilesTracker(RestrictionTracker):
    """Restriction tracker that claims files one after the other; the rest can be deferred but not split."""

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
    """Yields the events of a kind's files as ``RawEvents``, a few files per call, and defers the rest."""

    def __init__(self, mapping: EventMapping, folders: Sequence[Location], settings: FollowSettings) -> None:
        self._mapping, self._settings = mapping, settings
        self._folders = EventFolders(mapping, folders, settings)
        self._overlap = partition_rules(mapping).overlap

    @beam.DoFn.unbounded_per_element()
    def process(self, kind: Kind, tracker: Any = _RESTRICTION, estimator: Any = _ESTIMATOR) -> Iterator[Any]:
        settings, position = self._settings, tracker.current_restriction()
        units = [unit for unit in self._folders.scan() if unit.kind == kind]
        unread = position.unread(units)
        files, unsettled = self._folders.complete_files(kind, unread)
        for number, unit in enumerate(files[:_FILES_A_BUNDLE], len(units) - len(unread) + 1):
            written = unit.version.modified_ns / 1e9
            position = replace(position, last=unit.name, files=number, written=written)
            if not tracker.try_claim(position):
                return
            for chunk in _read(self._mapping, unit):
                before = position.arrival or -1
                first, last = arrivals(self._mapping, kind, chunk, before) or (position.arrival,) * 2
                position = replace(position, arrival=max(position.arrival, last))
                yield TimestampedValue(RawEvents(kind, unit.name, chunk, before), Timestamp(micros=first))
            tracker.try_claim(position)
            # All events read so far have been output, and the following ones arrive later.
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
    """Moves the watermark to an arrival (microseconds), rounded down to milliseconds; never moves it back."""
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
        nothing = pa.table({name: pa.nulls(0) for name in wanted_columns(mapping, unit.kind)})
        fault = str(error).removeprefix(f"{unit.path}: ")
        reject = make_reject(0, 0, "file", "damaged", fault, "a whole file")
        yield Chunk(0, nothing, np.zeros(0, np.int64), [reject])


class EventsInFolders(beam.PTransform[Any, Any]):
    """Reads the events in folders as ``RawEvents``, file by file in the order of their names.

    All workers see the folders under their paths or addresses. When drained folders end, the watermark
    moves to the end of time. Each kind becomes idle independently, counted from when its last file was written.
    """

    def __init__(self, mapping: EventMapping, folders: Sequence[Location], settings: FollowSettings) -> None:
        super().__init__()
        self._follow, self._kinds = FollowFiles(mapping, folders, settings), mapping.kinds

    def expand(self, begin: Any) -> Any:
        kinds = begin.pipeline | "Kinds" >> beam.Create(list(self._kinds), reshuffle=False)
        return kinds | "Follow" >> beam.ParDo(self._follow)


# ---------------------------------------------------------------- Kafka


class EventsInKafka(beam.PTransform[Any, Any]):
    """Reads the records of a mapping's topics as ``RawEvents``; with ``since_us``, only from that timestamp on.

    Raises InputError if the mapping has no topics, or a consumer setting is not a pair.
    """

    def __init__(self, mapping: EventMapping, options: EventOptions, since_us: int = 0) -> None:
        super().__init__()
        if mapping.impressions.topic is None:
            raise InputError(
                f"mapping: topic: required for all of {', '.join(mapping.kinds)} to read from Kafka"
            )
        settings = [text.partition("=") for text in options.kafka_option]
        for key, equals, value in settings:
            if not equals or not key:
                raise InputError(
                    f"--kafka-option {key}{equals}{value}: KEY=VALUE is required, such as security.protocol=SSL"
                )
        self._mapping, self._since_us = mapping, since_us
        self._expansion_service = options.expansion_service
        self._consumer = {
            "bootstrap.servers": options.kafka,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            **{key: value for key, _, value in settings},
        }

    def expand(self, begin: Any) -> Any:
        # Only the fields that every version of the connector requires: the Java side refuses unknown fields, and the
        # transform of a newer Python side would send new ones.
        fields: dict[str, Any] = {
            "key_deserializer": ReadFromKafka.byte_array_deserializer,
            "value_deserializer": ReadFromKafka.byte_array_deserializer,
            "commit_offset_in_finalize": False,
            "timestamp_policy": ReadFromKafka.create_time_policy,
            "redistribute": False,
            "redistribute_num_keys": np.int32(0),
            "allow_duplicates": False,
            "consumer_config": self._consumer,
        }
        since = {"start_read_time": self._since_us // 1000} if self._since_us else {}
        types = typing.get_type_hints(ReadFromKafkaSchema)
        kinds = []
        for kind, source in self._mapping.sources.items():
            values = fields | {"topics": [source.topic], **since}
            schema = NamedTuple("ReadFromKafkaFields", [(name, types[name]) for name in values])  # type: ignore[misc]
            payload = NamedTupleBasedPayloadBuilder(schema(**values))
            read = ExternalTransform(ReadFromKafka.URN_WITH_METADATA, payload, self._expansion_service)
            gather = beam.ParDo(_Gather(self._mapping, kind))
            kinds.append(begin.pipeline | f"Read {kind}" >> read | f"Gather {kind}" >> gather)
        return kinds | "All kinds" >> beam.Flatten()


@beam.typehints.with_output_types(RawEvents)
class _Gather(beam.DoFn):
    # Chunks of a Kafka partition's records: the records of a bundle, or as many bytes as are read at a time.

    def __init__(self, mapping: EventMapping, kind: Kind) -> None:
        self._mapping, self._kind = mapping, kind
        self._waiting: dict[tuple[str, int], list[tuple[int, bytes, Timestamp]]] = {}
        self._bytes = 0

    def start_bundle(self) -> None:
        self._waiting, self._bytes = {}, 0

    def process(self, record: Any, moment: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        if record.value is None:
            return
        waiting = self._waiting.setdefault((record.topic, record.partition), [])
        waiting.append((record.offset, record.value, moment))
        self._bytes += len(record.value)
        if self._bytes >= BLOCK_BYTES:
            for chunk in self.finish_bundle():
                yield TimestampedValue(chunk.value, chunk.timestamp)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for (topic, partition), records in self._waiting.items():
            offsets = np.array([offset for offset, _, _ in records], np.int64)
            stamps = np.array([moment.micros for _, _, moment in records], np.int64)
            # A record becomes a line. An empty record is not an object, and is rejected as such.
            values = [value if not value.isspace() and value else b"null" for _, value, _ in records]
            lines = [value.replace(b"\n", b" ").replace(b"\r", b" ") for value in values]
            chunk = line_reader(self._mapping, self._kind).read_block(0, b"\n".join(lines) + b"\n", 0)
            rejects = [replace(reject, row=int(offsets[reject.row])) for reject in chunk.rejects]
            chunk = select_kind(self._mapping, self._kind, chunk)
            stamps, chunk = stamps[chunk.rows], replace(chunk, rows=offsets[chunk.rows], rejects=rejects)
            events = RawEvents(self._kind, f"{topic}/{partition}", chunk, stamps=stamps)
            yield WindowedValue(events, min(moment for _, _, moment in records), (GlobalWindow(),))
        self._waiting, self._bytes = {}, 0
