"""The streaming job on a real Kafka and a real Flink: topics become the log of the batch job."""

import json
import signal
import time
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

import event_files
import java_services
import stream_jobs

MISSING = java_services.missing(java_services.FLINK_JARS, java_services.KAFKA_JARS)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
pytest.importorskip("kafka", reason="no kafka-python")

PARTITIONS = 3
QUIET = 2
"""A partition of each topic without events: records without a value alone say what time it is there."""

SLOWLY = ("--kafka-option", "max.poll.records=40")
"""So that the first partitions are published before the last record is read."""

OPTIONS = ("--max_bundle_time_mills=50",)


@pytest.fixture(scope="module")
def mapping(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapping") / "mapping.yaml"
    text = stream_jobs.MAPPING.read_text()
    for kind in ("impressions", "clicks"):
        text = text.replace(f"{kind}:\n", f"{kind}:\n  topic: {kind}\n")
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def traffic(mapping, tmp_path_factory):
    """Events whose last partition has closed before now: a partition that is read to its end says what time it is."""

    def later(last: int) -> int:
        return time.time_ns() // 1000 - 3 * 3600 * 10**6 - last

    return stream_jobs.make_traffic(tmp_path_factory.mktemp("traffic"), later, mapping)


def records(traffic, kind: str) -> Iterator[tuple[int, int, bytes]]:
    """Partition, milliseconds and content, in the order of arrival."""
    for path in traffic.files:
        if path.parent.name == kind:
            for event in pq.read_table(path).to_pylist():
                partition = event["impression_id"] % (PARTITIONS - 1)
                yield partition, event["arrival_time"] // 1000, json.dumps(event).encode()


@pytest.fixture(scope="module")
def broker(traffic, tmp_path_factory):
    """All events, in partitions by their id, with some records among them that are none."""
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient, NewTopic

    with java_services.kafka_broker(tmp_path_factory.mktemp("kafka")) as address:
        admin = KafkaAdminClient(bootstrap_servers=address)
        topics = [NewTopic(kind, PARTITIONS, 1) for kind in ("impressions", "clicks")]
        admin.create_topics(topics)
        admin.close()
        producer = KafkaProducer(bootstrap_servers=address, linger_ms=20)
        for kind in ("impressions", "clicks"):
            for number, (partition, moment, content) in enumerate(records(traffic, kind)):
                if kind == "impressions" and number == 1000:
                    for poison in POISON:
                        producer.send(kind, key=b"key", value=poison, partition=0, timestamp_ms=moment)
                producer.send(kind, value=content, partition=partition, timestamp_ms=moment)
                if number % 200 == 0:
                    producer.send(kind, key=b"time", partition=QUIET, timestamp_ms=moment)
        producer.flush()
        producer.close()
        yield address


POISON = [b"", b"\n", b"no JSON", b"[]", b"\xff\xfe", b"x" * 900_000, b'{"impression_id": "y"}']


def start(services, broker, log, mapping, *beam: str, slowly: bool = False):
    """The job on a job server; the expansion service is needed until it runs."""
    endpoint, expansion = services
    arguments = ("--kafka", broker, "--expansion-service", expansion, *(SLOWLY if slowly else ()))
    return stream_jobs.job(log, endpoint, *arguments, beam=(*OPTIONS, *beam), mapping=mapping)


def test_topics_become_the_log_of_the_batch_job_and_bad_records_are_set_aside(
    traffic, broker, mapping, tmp_path
):
    log = tmp_path / "log"
    with (
        java_services.flink_job_server(tmp_path / "flink") as endpoint,
        java_services.expansion_service(tmp_path / "expansion") as expansion,
        start((endpoint, expansion), broker, log, mapping) as process,
    ):
        stream_jobs.wait(lambda: stream_jobs.manifests(log) >= traffic.partitions, process)
        status, said, complaints = stream_jobs.told_to_stop(process, signal.SIGINT)
    assert (status, complaints) == (0, "")
    assert said.startswith(f"{log}: {traffic.partitions} partitions, ")
    assert event_files.published(log, ("rejects", "late")) == traffic.whole
    found = [json.loads(line) for path in (log / "rejects").iterdir() for line in path.open()]
    assert {reject["file"] for reject in found} == {"impressions/0"}
    offsets = sorted(reject["row"] for reject in found)
    assert offsets == list(range(offsets[0], offsets[0] + len(POISON)))
    assert 400 < offsets[0] < 600


@pytest.mark.soak
@pytest.mark.parametrize("checkpoints", [False, True], ids=["read again", "from a checkpoint"])
def test_a_killed_job_goes_on(traffic, broker, mapping, tmp_path, checkpoints):
    log, folder = tmp_path / "log", tmp_path / "checkpoints"
    options = stream_jobs.checkpointed(folder) if checkpoints else ()
    with (
        java_services.flink_job_server(tmp_path / "flink") as endpoint,
        java_services.expansion_service(tmp_path / "expansion") as expansion,
        start((endpoint, expansion), broker, log, mapping, *options, slowly=True) as process,
    ):
        newest = java_services.newest_checkpoint
        stream_jobs.wait(lambda: stream_jobs.manifests(log) >= 2, process)
        stream_jobs.wait(lambda: not checkpoints or newest(folder), process)
    assert stream_jobs.manifests(log) < traffic.partitions
    settings = stream_jobs.resumed(folder) if checkpoints else {}
    with (
        java_services.flink_job_server(tmp_path / "again", settings=settings) as endpoint,
        java_services.expansion_service(tmp_path / "expansion") as expansion,
        start((endpoint, expansion), broker, log, mapping, *options, slowly=checkpoints) as process,
    ):
        stream_jobs.wait(lambda: stream_jobs.manifests(log) >= traffic.partitions, process)
        assert stream_jobs.told_to_stop(process, signal.SIGTERM)[0] == 0
    assert event_files.published(log, ("rejects", "late")) == traffic.whole
