"""Kafka topics as a source of events, through Beam's own connector.

Records are JSON objects. Their timestamps are their arrivals: either the broker sets them, or producers set them to the
time when they received the event. A record without a value (null) is no event: it only moves the watermark of its Kafka
partition, which the connector does not know before it has read a record there.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.io.kafka import ReadFromKafka, ReadFromKafkaSchema
from apache_beam.transforms.external import ExternalTransform, NamedTupleBasedPayloadBuilder
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ctr.data.event_mapping import EventMapping
from ctr.io.errors import InputError
from ctr.pipelines.events.drivers import KafkaSettings
from ctr.pipelines.events.read import BLOCK_BYTES, line_reader, select_kind
from ctr.pipelines.events.stream import RawEvents
from ctr.pipelines.events.tables import Kind


def kafka_options(settings: Sequence[str]) -> dict[str, str]:
    """Parses settings of the consumer, written KEY=VALUE. Raises InputError for any other text."""
    options = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--kafka-option {text}: KEY=VALUE is required, such as security.protocol=SSL")
        options[key] = value
    return options


class EventsInKafka(beam.PTransform[Any, Any]):
    """Records of a mapping's topics as ``RawEvents``; with ``since_us``, none of an earlier timestamp.

    Raises InputError: a mapping without topics, or a setting of the consumer that is no pair.
    """

    def __init__(self, mapping: EventMapping, settings: KafkaSettings, since_us: int = 0) -> None:
        super().__init__()
        if mapping.impressions.topic is None:
            raise InputError(
                f"mapping: topic: required for all of {', '.join(mapping.kinds)} to read from Kafka"
            )
        self._mapping, self._since_us = mapping, since_us
        self._expansion_service = settings.expansion_service
        self._consumer = {
            "bootstrap.servers": settings.servers,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            **kafka_options(settings.consumer),
        }

    def expand(self, begin: Any) -> Any:
        kinds = []
        for kind, source in self._mapping.sources.items():
            fields: dict[str, Any] = {"consumer_config": self._consumer, "topics": [source.topic]}
            if self._since_us:
                fields["start_read_time"] = self._since_us // 1000
            kinds.append(
                begin.pipeline
                | f"Read {kind}" >> _connector(self._expansion_service, fields)
                | f"Gather {kind}" >> beam.ParDo(_Gather(self._mapping, kind))
            )
        return kinds | "All kinds" >> beam.Flatten()


def _connector(service: Any, fields: dict[str, Any]) -> ExternalTransform:
    """Returns Beam's ReadFromKafka with metadata; sends ``fields`` and the fields that every version requires.

    The Java side refuses fields that it does not know, and a newer Python side would send all of its own.
    """
    needed = {
        "key_deserializer": ReadFromKafka.byte_array_deserializer,
        "value_deserializer": ReadFromKafka.byte_array_deserializer,
        "commit_offset_in_finalize": False,
        "timestamp_policy": ReadFromKafka.create_time_policy,
        "redistribute": False,
        "redistribute_num_keys": np.int32(0),
        "allow_duplicates": False,
    }
    values = needed | fields
    types = typing.get_type_hints(ReadFromKafkaSchema)
    schema = NamedTuple("ReadFromKafkaFields", [(name, types[name]) for name in values])  # type: ignore[misc]
    payload = NamedTupleBasedPayloadBuilder(schema(**values))
    return ExternalTransform(ReadFromKafka.URN_WITH_METADATA, payload, service)


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
            self._bytes = 0
            for chunk in self.finish_bundle():
                yield TimestampedValue(chunk.value, chunk.timestamp)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for topic, partition in list(self._waiting):
            yield self._chunk(topic, partition)

    def _chunk(self, topic: str, partition: int) -> WindowedValue:
        records = self._waiting.pop((topic, partition))
        offsets = np.array([offset for offset, _, _ in records], np.int64)
        stamps = np.array([moment.micros for _, _, moment in records], np.int64)
        # A record becomes a line. An empty one is no object, and is rejected as such.
        values = [value if not value.isspace() and value else b"null" for _, value, _ in records]
        lines = [value.replace(b"\n", b" ").replace(b"\r", b" ") for value in values]
        chunk = line_reader(self._mapping, self._kind).read_block(0, b"\n".join(lines) + b"\n", 0)
        rejects = [replace(reject, row=int(offsets[reject.row])) for reject in chunk.rejects]
        chunk = select_kind(self._mapping, self._kind, chunk)
        stamps, chunk = stamps[chunk.rows], replace(chunk, rows=offsets[chunk.rows], rejects=rejects)
        events = RawEvents(self._kind, f"{topic}/{partition}", chunk, stamps=stamps)
        return WindowedValue(events, min(moment for _, _, moment in records), (GlobalWindow(),))
