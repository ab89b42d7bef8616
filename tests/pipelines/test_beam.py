"""Beam's options on their way from the command line to Beam, and pipelines as a runner elsewhere gets them."""

import re
import shlex
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    PortableOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.transforms.environments import DockerEnvironment

import event_files
from ctr.cli import main
from ctr.pipelines.beam import read_beam_options
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.stream import PublishStream, streaming_options
from ctr.pipelines.events.stream_sources import EventsInFolders

IMAGE = "registry.example/ctr-beam:1"


@pytest.mark.parametrize("runner", ["FlinkRunner", "PortableRunner", "DataflowRunner", "SparkRunner"])
def test_options_reach_beam_unchanged_for_a_batch_and_a_stream(runner):
    given = f"--runner={runner} --environment_type=DOCKER --sdk_container_image={IMAGE} --temp_location='gs://b/a b'"
    given += " --job_endpoint=localhost:8099"
    both = read_beam_options(shlex.split(given)), streaming_options(given, drain=False)
    for is_stream, options in enumerate(both):
        assert options.view_as(StandardOptions).runner.rpartition(".")[2] == runner
        assert options.view_as(PortableOptions).environment_type == "DOCKER"
        assert options.view_as(WorkerOptions).sdk_container_image == IMAGE
        assert options.get_all_options()["temp_location"] == "gs://b/a b"
        assert options.view_as(StandardOptions).streaming == bool(is_stream)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("--runner=FlinkRunner --environment_type=DOKCER", "type=DOKCER: .*allowed: DOCKER, EXTERNAL"),
        ("--runner=Flinkk", "Unexpected pipeline runner: Flinkk"),
        ("--runner=DataflowRunner", "Missing required option: project"),
        ("--runner=FlinkRunner --num_workers=many", "num_workers.*many"),
        ("--runner=FlinkRunner", "=FlinkRunner requires a job server that runs: --job_endpoint=HOST:PORT"),
        ("--runner=PortableRunner --job_endpoint=embed", "requires a job server that runs"),
        ("--runner=spark --job_endpoint=h:1 --environment_type=LOOPBACK", "allowed: DOCKER, EXTERNAL"),
        ("--direct_num_workers=2", "in_memory --direct_num_workers=2: .*allowed: in_memory with 1"),
        ("--direct_running_mode=multi_threading", "=multi_threading --direct_num_workers=1: .*to no port"),
        ("--runner=PortableRunner --job_endpoint=nobody.invalid:1", "no job server at nobody.invalid:1: "),
        ("--runner=DirectRunner --temp_loction=x", "--temp_loction=x: Beam knows no such option"),
        ("--runner DirectRunner drain", "drain: Beam knows no such option"),
    ],
)
def test_options_that_fit_no_runner_end_in_one_line(given, complaint, tmp_path, capfd):
    # A server that does not answer may do so later.
    assert evaluate(tmp_path, given) == (75 if "nobody.invalid" in given else 1)
    said, complained = capfd.readouterr()
    assert (said, complained.count("\n")) == ("", 1)
    assert re.match(f"error: --beam-options.*{complaint}", complained)


def evaluate(folder: Path, given: str) -> int:
    """Runs ``ctr evaluate`` on a prediction with some options of Beam; returns its status."""
    columns = {"example_id": [1], "query_id": [1], "query_time": [1], "label": pa.array([1], pa.int8())}
    weights = {name: pa.array([1], pa.float32()) for name in ("train_weight", "metric_weight", "logit")}
    pq.write_table(pa.table({**columns, **weights}), folder / "predictions.parquet")
    return main(["evaluate", str(folder / "predictions.parquet"), f"--beam-options={given}"])


def events_job() -> Any:
    """The streaming job, of folders that all workers share."""
    mapping, log, folder = event_files.mapping(), Path("/shared/log"), Path("/shared/events")
    return EventsInFolders(mapping, [folder], FollowSettings()) | PublishStream(mapping, log, 0.01)


def graph(transform: Any, *options: str) -> beam_runner_api_pb2.Pipeline:
    """The pipeline as a runner elsewhere gets it."""
    pipeline = beam.Pipeline(options=PipelineOptions(options))
    _ = pipeline | transform
    image = DockerEnvironment.from_container_image(IMAGE)
    return pipeline.to_runner_api(default_environment=image)


def test_a_graph_names_the_image_and_keeps_state_by_key_alone():
    found = graph(events_job(), "--streaming")
    images = [
        beam_runner_api_pb2.DockerPayload.FromString(one.payload).container_image
        for one in found.components.environments.values()
    ]
    assert images == [IMAGE]
    shuffles = [
        one
        for one in found.components.transforms.values()
        if one.spec.urn == "beam:transform:group_by_key:v1"
    ]
    assert len(shuffles) >= 2
    for one in found.components.transforms.values():
        if one.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(one.spec.payload)
            assert not payload.state_specs and not payload.timer_family_specs
