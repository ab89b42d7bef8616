"""A real Kafka broker, and Beam's own connector to it on a real Flink."""

import json
import sys
import time
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.io.kafka import ReadFromKafka, ReadFromKafkaSchema
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.external import ExternalTransform, NamedTupleBasedPayloadBuilder

# A stopped job server leaves the threads of its workers without a peer: they say so and end.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

TESTS = Path(__file__).resolve().parent.parent
WAIT_SECONDS = 60

Message = tuple[int, int, bytes]  # partition, milliseconds since 1970, value


@pytest.fixture(scope="module")
def services() -> ModuleType:
    sys.path.insert(0, str(TESTS))
    try:
        import java_services
    finally:
        sys.path.remove(str(TESTS))
    if reason := java_services.missing(java_services.FLINK_JARS, java_services.KAFKA_JARS):
        pytest.skip(reason)
    pytest.importorskip("kafka", reason="no kafka-python")
    return java_services


class Note(beam.DoFn):
    """Appends each record to a file: its value, where it lay, and its event time in milliseconds."""

    def __init__(self, path: str):
        self.path = path

    def process(self, record, moment=beam.DoFn.TimestampParam):
        with open(self.path, "a") as file:
            line = [record.value.decode(), record.partition, record.offset, moment.micros // 1000]
            file.write(json.dumps(line) + "\n")


def records(expansion: str, **fields) -> ExternalTransform:
    """ReadFromKafka with metadata; sends only `fields` and what every connector asks for.

    The Java side refuses a field that it does not know, and a newer Python side sends all of its own.
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
    schema = typing.NamedTuple("ReadFromKafkaFields", [(name, types[name]) for name in values])
    payload = NamedTupleBasedPayloadBuilder(schema(**values))
    return ExternalTransform(ReadFromKafka.URN_WITH_METADATA, payload, expansion)


def start(job_server: str, transform: ExternalTransform, path: Path, *options: str):
    given = ["--runner=PortableRunner", f"--job_endpoint={job_server}", "--environment_type=LOOPBACK"]
    pipeline = beam.Pipeline(options=PipelineOptions([*given, "--parallelism=1", *options]))
    _ = pipeline | transform | beam.ParDo(Note(str(path)))
    return pipeline.run()


def consumer(broker: str) -> dict[str, str]:
    return {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}


def produce(broker: str, topic: str, messages: list[Message]) -> None:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=broker)
    for partition, milliseconds, value in messages:
        producer.send(topic, value=value, partition=partition, timestamp_ms=milliseconds)
    producer.flush()
    producer.close()


def consume(broker: str, topic: str, count: int) -> list[Message]:
    import kafka

    reader = kafka.KafkaConsumer(
        topic, bootstrap_servers=broker, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    found = [
        (message.partition, message.timestamp, message.value)
        for _, message in zip(range(count), reader, strict=False)
    ]
    reader.close()
    return sorted(found)


def lines(path: Path) -> list[list]:
    return sorted(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else []


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(0.05)


MESSAGES: list[Message] = [(0, 5_000, b"a"), (0, 3_000, b"b"), (1, 4_000, b"c")]
LINES = [["a", 0, 0, 5_000], ["b", 0, 1, 3_000], ["c", 1, 0, 4_000]]


def test_a_broker_serves_what_it_was_given_and_does_so_again_after_a_kill(services, tmp_path):
    with services.kafka_broker(tmp_path) as broker:
        produce(broker, "topic", MESSAGES)
        assert consume(broker, "topic", 3) == sorted(MESSAGES)
    with services.kafka_broker(tmp_path) as broker:
        assert consume(broker, "topic", 3) == sorted(MESSAGES)


def test_the_connector_reads_every_partition_and_ends_after_so_many_records(services, tmp_path):
    with (
        services.kafka_broker(tmp_path / "kafka") as broker,
        services.flink_job_server(tmp_path / "flink") as job_server,
    ):
        produce(broker, "topic", MESSAGES)
        with services.expansion_service(tmp_path / "expansion") as expansion:
            transform = records(
                expansion, consumer_config=consumer(broker), topics=["topic"], max_num_records=3
            )
            result = start(job_server, transform, tmp_path / "lines", "--streaming")
        result.wait_until_finish()
        assert lines(tmp_path / "lines") == LINES


def test_the_connector_follows_a_topic_until_it_is_cancelled(services, tmp_path):
    with (
        services.kafka_broker(tmp_path / "kafka") as broker,
        services.flink_job_server(tmp_path / "flink") as job_server,
    ):
        produce(broker, "topic", MESSAGES)
        options = (*services.CHECKPOINTED, "--max_bundle_time_mills=100")
        with services.expansion_service(tmp_path / "expansion") as expansion:
            transform = records(expansion, consumer_config=consumer(broker), topics=["topic"])
            result = start(job_server, transform, tmp_path / "lines", *options)
        wait(lambda: len(lines(tmp_path / "lines")) == 3)
        produce(broker, "topic", [(1, 9_000, b"d")])
        wait(lambda: len(lines(tmp_path / "lines")) == 4)
        result.cancel()
        assert lines(tmp_path / "lines") == [*LINES, ["d", 1, 1, 9_000]]


def test_the_connector_goes_on_where_the_checkpoint_of_a_killed_job_server_left_it(services, tmp_path):
    options = [
        *services.CHECKPOINTED,
        "--max_bundle_time_mills=100",
        "--state_backend=filesystem",
        f"--state_backend_storage_path=file://{tmp_path / 'checkpoints'}",
        "--externalized_checkpoints_enabled",
        "--retain_externalized_checkpoints_on_cancellation",
    ]
    with services.kafka_broker(tmp_path / "kafka") as broker:
        produce(broker, "topic", MESSAGES)
        settings: dict[str, str] = {}
        for number, expected in enumerate([LINES, [["d", 1, 1, 9_000]]]):
            folder = tmp_path / str(number)
            with (
                services.flink_job_server(folder, settings=settings) as job_server,
                services.expansion_service(tmp_path / "expansion") as expansion,
            ):
                transform = records(expansion, consumer_config=consumer(broker), topics=["topic"])
                start(job_server, transform, folder / "lines", *options)
                wait(lambda path=folder / "lines", lines_=expected: len(lines(path)) >= len(lines_))
                time.sleep(3)
                assert lines(folder / "lines") == expected
            checkpoint = services.newest_checkpoint(tmp_path / "checkpoints")
            settings = {"execution.savepoint.path": f"file://{checkpoint}"}
            produce(broker, "topic", [(1, 9_000, b"d")])
