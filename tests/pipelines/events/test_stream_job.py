"""Options and refusals of the streaming job, before anything runs."""

import argparse
import socket
from pathlib import Path

import apache_beam as beam
import pytest

from ctr.cli import make_parser
from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.io.errors import InputError
from ctr.pipelines.events.command import check_events, run_events
from ctr.pipelines.events.drivers import KafkaSettings
from ctr.pipelines.events.kafka import EventsInKafka, kafka_options
from ctr.pipelines.events.stream import run_until_stopped, streaming_options


def flags(given: str, drain: bool = False) -> set[str]:
    return set(streaming_options(given, drain)._flags)


def test_a_job_on_flink_gets_the_options_that_it_needs():
    plain = {"--max_bundle_time_mills=100", f"--shutdown_sources_after_idle_ms={2**63 - 1}"}
    assert flags("--runner=PortableRunner") == {"--runner=PortableRunner", *plain}
    assert "--shutdown_sources_after_idle_ms=1" in flags("--runner=FlinkRunner", drain=True)
    added = flags("--runner=FlinkRunner --checkpointing_interval=5") - plain
    assert added >= {"--finish_bundle_before_checkpointing", "--number_of_execution_retries=3"}


def test_what_is_given_stays_as_it_is():
    given = {"--runner=PortableRunner", "--checkpointing_interval=5", "--number_of_execution_retries=9"}
    given |= {"--max_bundle_time_mills=7", "--shutdown_sources_after_idle_ms=8"}
    assert flags(" ".join(given), drain=True) == {*given, "--finish_bundle_before_checkpointing"}


def test_other_runners_get_none_of_flinks_options():
    assert flags("--runner=BundleBasedDirectRunner", drain=True) == {"--runner=BundleBasedDirectRunner"}


def test_a_job_server_that_is_not_there_is_one_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    options = streaming_options(f"--runner=PortableRunner --job_endpoint={endpoint}", False)
    with pytest.raises(InputError, match=f"no job server at {endpoint}: Connection refused"):
        run_until_stopped(options, lambda pipeline: pipeline | beam.Create([1]), lambda: None)


def arguments(*given: str, folder: Path) -> argparse.Namespace:
    mapping = Path(__file__).resolve().parents[3] / "examples" / "events" / "simulated.yaml"
    fixed = ["--mapping", str(mapping), "--out", str(folder / "log")]
    return make_parser().parse_args(["ingest", "events", *given, *fixed])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--stream", "--kafka", "h:1", "--drain"], "apply to folders, not to --kafka"),
        (["--stream", "--kafka", "h:1", "--poll", "1"], "apply to folders, not to --kafka"),
        (["--stream", "--kafka", "h:1", "--idle-timeout", "1"], "apply to folders, not to --kafka"),
        (["--kafka", "h:1"], "--kafka requires --stream"),
        (["--stream"], "either folders or --kafka are required"),
        (["a", "--stream", "--kafka", "h:1"], "either folders or --kafka are required"),
        (["a", "--stream", "--follow"], "cannot be combined"),
        (["a", "--stream", "--kafka-option", "a=b"], "--kafka-option requires --kafka"),
        (["a", "--stream"], "requires a runner that waits for watermarks"),
        (["--stream", "--kafka", "h:1", "--beam-options=--runner=FlinkRunner"], "topic and clicks.topic"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, monkeypatch, given, complaint):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    parsed = arguments(*given, folder=tmp_path)
    with pytest.raises(InputError, match=complaint):
        run_events(parsed, check_events(parsed))
    assert not (tmp_path / "log").exists()


def test_settings_of_the_consumer_are_pairs():
    assert kafka_options(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(InputError, match="KEY=VALUE is required"):
            kafka_options([wrong])


def test_hashed_impressions_are_no_records():
    source = {
        "input": {"type": "parquet"},
        "topic": "t",
        "time": {"column": "t", "unit": "us"},
        "impression_id": "i",
    }
    content = {
        "impressions": {**source, "query_id": "q", "hashed": True},
        "clicks": source,
        "partition": "1h",
        "click_window": "1h",
        "delay": "1s",
        "features": [{"name": "a", "kind": "category", "source": "a", "buckets": 2}],
    }
    with pytest.raises(InputError, match="hashed impressions are Parquet"):
        EventsInKafka(parse_model(EventMapping, content, "test"), KafkaSettings("h:1"))
