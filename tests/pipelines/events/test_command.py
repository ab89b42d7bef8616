"""``ctr ingest events`` on the command line: what it tells, its options by driver, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp

import event_files
from command_tree import all_commands
from ctr.cli import main
from ctr.config import dump_yaml
from ctr.data.event_mapping import EventMapping
from ctr.data.log import list_partitions, read_manifests
from ctr.io.errors import InputError
from ctr.pipelines.events.command import check_events, run_events
from ctr.pipelines.events.drivers import EventOptions
from ctr.pipelines.events.publish import stage_events
from ctr.pipelines.events.read import read_unit
from ctr.pipelines.events.stream import check_rules, streaming_options
from ctr.pipelines.events.stream_sources import EventsInKafka, _Gather

EVENTS = event_files.draw_events(40)


@pytest.fixture
def call(tmp_path):
    """Runs the command over ``events`` to ``log``; returns its exit status."""
    (tmp_path / "mapping.yaml").write_text(dump_yaml(event_files.mapping()))
    event_files.write_events(tmp_path / "events", EVENTS, files=1)

    def run(*options: str) -> int:
        files = ["--mapping", str(tmp_path / "mapping.yaml"), "--out", str(tmp_path / "log")]
        return main(["ingest", "events", str(tmp_path / "events"), *files, *options])

    return run


def test_what_became_of_the_events_is_told_as_text_and_as_json(call, tmp_path, capsys, monkeypatch):
    assert call() == 0
    reported = capsys.readouterr().out
    manifests = read_manifests(tmp_path / "log")
    rows = sum(manifest.rows for manifest in manifests)
    assert f"{rows} examples, " in reported
    assert f"{len(EVENTS['impressions'])} impressions read" in reported
    (tmp_path / "log").rename(tmp_path / "batch")

    with monkeypatch.context() as patched:

        def read_and_stop(*arguments: Any) -> Any:
            # A second signal would end the process.
            patched.undo()
            os.kill(os.getpid(), signal.SIGTERM)
            return read_unit(*arguments)

        patched.setattr("ctr.pipelines.events.follow.read_unit", read_and_stop)
        assert call("--follow", "--json") == 0
    stopped = json.loads(capsys.readouterr().out)
    assert call("--follow", "--drain", "--poll", "0.1", "--idle-timeout", "5", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert stopped["pending"] > 0 == result["pending"]
    assert stopped["rows"] + result["rows"] == rows > 0
    assert stopped["published"] + result["published"] == len(manifests)
    assert result["counts"]["clicks"]["read"] == len(EVENTS["clicks"])


def test_on_this_machine_no_beam_is_loaded(call, tmp_path):
    call("--json", "--max-reject-share", "2")  # refused; writes the inputs alone
    script = "import sys; from ctr.cli import main; status = main(); sys.exit(status or 'apache_beam' in sys.modules)"
    files = ["events", "--mapping", "mapping.yaml", "--out", "log", "--follow", "--drain", "--poll", "0"]
    run = subprocess.run([sys.executable, "-c", script, "ingest", "events", *files], cwd=tmp_path)
    assert run.returncode == 0
    assert read_manifests(tmp_path / "log")


def test_a_runner_that_loses_a_partition_ends_a_drained_stream_with_an_error(
    call, tmp_path, monkeypatch, capsys
):
    lost: list[int] = []

    def stage(log: Path, mapping: EventMapping, start: int, events: Any) -> Any:
        manifest = stage_events(log, mapping, start, events)
        if not lost:
            lost.append(start)
        return b"" if start in lost else manifest

    with monkeypatch.context() as patched:
        patched.setattr("ctr.pipelines.events.stream.stage_events", stage)
        assert call("--stream", "--drain") == 1
    published = list_partitions(tmp_path / "log")
    assert lost[0] not in [start for start, _ in published] != []
    complaint = capsys.readouterr().err
    assert "the runner lost events: " in complaint and "1 partitions are incomplete or missing" in complaint
    assert not list((tmp_path / "log").glob(".*"))


# ---------------------------------------------------------------- options

FLINK = "--runner=FlinkRunner --job_endpoint=h:1"


def read_options(*given: str, folder: Path) -> EventOptions:
    mapping = Path(__file__).resolve().parents[3] / "examples" / "events" / "simulated.yaml"
    fixed = ["--mapping", str(mapping), "--out", str(folder / "log")]
    command = dict(all_commands())["ingest", "events"]
    return EventOptions(**command.make_context("events", [*given, *fixed]).params)


def test_options_that_do_not_go_together_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    kafka = ("--stream", "--kafka", "h:1")
    served = (*kafka, "--expansion-service", "h:2")
    for given, complaint in (
        (("a", "--drain"), "--drain requires --follow"),
        (("--kafka", "h:1"), "--kafka requires --stream"),
        (("a", *kafka), "either folders or --kafka are required"),
        (("a", "--stream", "--follow"), "cannot be combined"),
        (("a", "--stream"), "requires a runner that waits for watermarks"),
        (kafka, "--kafka requires a running expansion service: --expansion-service HOST:PORT"),
        ((*served, f"--beam-options={FLINK}"), "required for all of impressions, clicks to read"),
    ):
        options = read_options(*given, folder=tmp_path)
        with pytest.raises(InputError, match=complaint):
            run_events(options, check_events(options))
    assert not (tmp_path / "log").exists()


def flags(given: str, drain: bool = False) -> set[str]:
    return set(streaming_options(given, drain)._flags)


def test_a_job_on_flink_gets_the_options_that_it_needs_and_keeps_its_own():
    endpoint, portable = "--job_endpoint=h:1", "--runner=PortableRunner"
    plain = {"--max_bundle_time_mills=100", f"--shutdown_sources_after_idle_ms={2**63 - 1}"}
    assert flags(f"{portable} {endpoint}") == {portable, endpoint, *plain}
    assert "--shutdown_sources_after_idle_ms=1" in flags(f"--runner=FlinkRunner {endpoint}", drain=True)
    added = flags(f"--runner=FlinkRunner {endpoint} --checkpointing_interval=5") - plain
    assert added >= {"--finish_bundle_before_checkpointing", "--number_of_execution_retries=3"}
    given = {portable, endpoint, "--checkpointing_interval=5", "--number_of_execution_retries=9"}
    given |= {"--max_bundle_time_mills=7", "--shutdown_sources_after_idle_ms=8"}
    assert flags(" ".join(given), drain=True) == {*given, "--finish_bundle_before_checkpointing"}
    assert flags("--runner=DirectRunner", drain=True) == {"--runner=DirectRunner"}


def test_what_a_stream_or_a_topic_cannot_be_is_refused():
    with pytest.raises(InputError, match="whole milliseconds; delay is 1500 us"):
        check_rules(event_files.mapping(delay="1500us"))
    sale = {**event_files.content()["clicks"], "window": "70001us"}
    with pytest.raises(InputError, match="whole milliseconds; the window of sale is 70001 us"):
        check_rules(event_files.mapping(labels={"sale": sale}))
    read = {"out": Path("log"), "mapping": Path("mapping.yaml"), "kafka": "h:1"}
    topical = event_files.mapping(impressions={"topic": "shown"}, clicks={"topic": "clicked"})
    source = EventsInKafka(topical, EventOptions(**read, kafka_option=("a=b", "c=d=e", "f=")))
    assert source._consumer.items() >= {"bootstrap.servers": "h:1", "a": "b", "c": "d=e", "f": ""}.items()
    for wrong in ("a", "=b"):
        with pytest.raises(InputError, match=f"--kafka-option {wrong}: KEY=VALUE is required"):
            EventsInKafka(topical, EventOptions(**read, kafka_option=("a=b", wrong)))
    topics = "topic: required for all of impressions, clicks, sale to read from Kafka"
    without = event_files.mapping(labels={"sale": {**sale, "window": "1h"}})
    with pytest.raises(InputError, match=topics):
        EventsInKafka(without, EventOptions(**read))


def test_records_of_one_topic_are_read_by_a_column_that_tells_the_kinds_apart():
    kinds = {"impressions": "view", "clicks": "click"}
    sources = {kind: {"topic": "all", "where": {"type": value}} for kind, value in kinds.items()}
    made = event_files.mapping(**sources)
    events = [event_files.impression(1, 5), event_files.click(1, 6), event_files.impression(2, 7)]
    values = [{**event, "type": "view" if "color" in event else "click"} for event in events]
    for kind, offsets in (("impressions", [70, 72]), ("clicks", [71])):
        gather = _Gather(made, kind)
        gather.start_bundle()
        for offset, value in enumerate(values, 70):
            content = json.dumps(value).encode()
            record = SimpleNamespace(topic="all", partition=0, offset=offset, value=content)
            assert list(gather.process(record, Timestamp(offset))) == []
        [gathered] = gather.finish_bundle()
        assert gathered.value.chunk.rows.tolist() == offsets
        assert gathered.value.stamps.tolist() == [1_000_000 * offset for offset in offsets]
