"""Beam's options on their way from the command line to Beam."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PortableOptions, StandardOptions, WorkerOptions

from ctr.cli import main
from ctr.pipelines.beam import read_beam_options
from ctr.pipelines.events.stream import streaming_options

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
