"""Events and log in a folder that the workers share with the command: the log is that of one machine."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import event_files
from beam_workers import job_server, worker_pool
from ctr.data.log import list_partitions
from ctr.pipelines.events.follow import ingest_events


@pytest.fixture
def alone(tmp_path):
    """The log that one process makes of the events in the folder ``events``."""
    folder = event_files.write_events(tmp_path / "events", event_files.draw_events(150), 2, "parquet")
    ingest_events(event_files.mapping("parquet"), [folder], tmp_path / "alone", max_reject_share=0)
    return tmp_path / "alone"


@pytest.mark.slow
def test_a_batch_of_workers_elsewhere_writes_the_log_of_one_process(alone, tmp_path):
    with job_server(tmp_path / "server") as endpoint, worker_pool(tmp_path / "pool") as workers:
        result = ingest_events(
            event_files.mapping("parquet"),
            [tmp_path / "events"],
            tmp_path / "log",
            max_reject_share=0,
            options=" ".join(["--runner=PortableRunner", f"--job_endpoint={endpoint}", *workers]),
        )
    assert result.partitions == len(list_partitions(alone)) > 3
    assert event_files.published(tmp_path / "log") == event_files.published(alone)


@pytest.mark.soak
def test_a_batch_that_is_killed_with_its_workers_is_done_again_by_others(alone, tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import event_files\n"
        "from pathlib import Path\n"
        "from ctr.pipelines.events.follow import ingest_events\n"
        "mapping, folder = event_files.mapping('parquet'), Path(sys.argv[2])\n"
        "ingest_events(mapping, [folder / 'events'], folder / 'log', max_reject_share=0, options=sys.argv[3])\n"
    )

    def start(endpoint: str, workers: tuple[str, ...]) -> subprocess.Popen[bytes]:
        helpers = str(Path(event_files.__file__).parent)
        options = " ".join(["--runner=PortableRunner", f"--job_endpoint={endpoint}", *workers])
        return subprocess.Popen([sys.executable, "-c", script, helpers, str(tmp_path), options])

    def written(pattern: str) -> int:
        return len(list((tmp_path / "log").glob(pattern)))

    for turn, pattern in enumerate(("shards/*.parquet", "manifests/*.json")):
        before = written(pattern)
        pool, server = tmp_path / f"pool {turn}", tmp_path / f"server {turn}"
        with job_server(server) as endpoint, worker_pool(pool) as workers:
            process = start(endpoint, workers)
            while written(pattern) < before + 2 and process.poll() is None:
                time.sleep(0.01)
            process.kill()
            assert process.wait() == -signal.SIGKILL
    with job_server(tmp_path / "server") as endpoint, worker_pool(tmp_path / "pool") as workers:
        assert start(endpoint, workers).wait() == 0
    assert event_files.published(tmp_path / "log") == event_files.published(alone)
