"""Events and log in a bucket, and workers that share nothing else with the command: the log is that of one machine."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import event_files
import java_services
import stream_jobs
from beam_workers import job_server, worker_pool
from ctr.data.log import list_partitions
from ctr.io.files import write_atomic_bytes
from ctr.io.paths import read_path, with_content
from ctr.io.stores import listed, pull
from ctr.pipelines.events.follow import ingest_events

MISSING = java_services.missing(java_services.FLINK_JARS)


def put(folder: Path, address: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            write_atomic_bytes(read_path(address) / path.relative_to(folder), path.read_bytes())


def taken(address: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a machine that has copied nothing yet finds in a log: the hashes of all its files."""
    monkeypatch.setenv("CTR_CACHE", str(cache))
    log = read_path(address)
    pull(log)
    names = set(listed(log))
    for name in names:
        with_content(log / name)
    found = event_files.published(log)
    assert set(found) == {name for name in names if not name.startswith("rejects/")}
    return found


@pytest.fixture
def put_events(tmp_path, monkeypatch):
    """Writes events to an address from a machine of its own; the log that one machine makes of them is at hand."""

    def write(address: str, files: int) -> Path:
        folder = event_files.write_events(tmp_path / "events", event_files.draw_events(150), files, "parquet")
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / "collector"))
        put(folder, address)
        ingest_events(event_files.mapping("parquet"), [folder], tmp_path / "alone", max_reject_share=0)
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / "command"))
        return tmp_path / "alone"

    return write


@pytest.mark.slow
def test_a_batch_whose_workers_share_the_store_alone_writes_the_log_of_one_machine(
    object_store, put_events, tmp_path, monkeypatch
):
    bucket = object_store("s3")
    alone = put_events(f"{bucket}/events", 2)
    events, log = read_path(f"{bucket}/events"), read_path(f"{bucket}/log")
    with job_server(tmp_path / "server") as endpoint, worker_pool(tmp_path / "pool") as workers:
        result = ingest_events(
            event_files.mapping("parquet"),
            [with_content(events)],
            log,
            max_reject_share=0,
            options=" ".join(["--runner=PortableRunner", f"--job_endpoint={endpoint}", *workers]),
        )
    # Written there, and nowhere but there.
    assert list((tmp_path / "pool" / "cache").rglob("shards/*.parquet"))
    assert not list((tmp_path / "command").rglob("shards/*.parquet"))
    assert result.partitions == len(list_partitions(alone)) > 3
    assert taken(f"{bucket}/log", tmp_path / "reader", monkeypatch) == event_files.published(alone)


@pytest.mark.soak
def test_a_batch_that_is_killed_with_its_workers_is_done_again_on_other_machines(
    faulty_store, put_events, tmp_path, monkeypatch
):
    bucket, proxy = faulty_store("s3")
    alone = put_events(f"{bucket}/events", 2)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import event_files\n"
        "from ctr.io.paths import read_path, with_content\n"
        "from ctr.pipelines.events.follow import ingest_events\n"
        "events, log = (with_content(read_path(f'{sys.argv[2]}/{name}')) for name in ('events', 'log'))\n"
        "mapping = event_files.mapping('parquet')\n"
        "ingest_events(mapping, [events], log, max_reject_share=0, options=sys.argv[3])\n"
    )

    def start(endpoint: str, workers: tuple[str, ...]) -> subprocess.Popen[bytes]:
        helpers = str(Path(event_files.__file__).parent)
        options = " ".join(["--runner=PortableRunner", f"--job_endpoint={endpoint}", *workers])
        return subprocess.Popen([sys.executable, "-c", script, helpers, bucket, options])

    for turn, path in enumerate(("log/shards/.*", "log/manifests/.*")):
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / f"command {turn}"))
        before = proxy.count("PUT", path)
        pool, server = tmp_path / f"pool {turn}", tmp_path / f"server {turn}"
        with job_server(server) as endpoint, worker_pool(pool) as workers:
            process = start(endpoint, workers)
            while proxy.count("PUT", path) < before + 2 and process.poll() is None:
                time.sleep(0.01)
            process.kill()
            assert process.wait() == -signal.SIGKILL
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "command at last"))
    with job_server(tmp_path / "server") as endpoint, worker_pool(tmp_path / "pool") as workers:
        assert start(endpoint, workers).wait() == 0
    assert taken(f"{bucket}/log", tmp_path / "reader", monkeypatch) == event_files.published(alone)


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_stream_on_flink_that_is_killed_with_its_workers_goes_on_with_others(
    faulty_store, tmp_path, monkeypatch
):
    bucket, proxy = faulty_store("s3")
    traffic = stream_jobs.make_traffic(tmp_path / "traffic")
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "command"))
    put(traffic.events, f"{bucket}/events")
    given = (f"{bucket}/log", f"{bucket}/events", "--drain")

    def published() -> int:
        return proxy.count("PUT", "log/manifests/.*")

    with (
        java_services.flink_job_server(tmp_path / "flink") as endpoint,
        worker_pool(tmp_path / "pool") as workers,
        stream_jobs.job(given[0], endpoint, *given[1:], beam=workers) as process,
    ):
        stream_jobs.wait(lambda: published() >= 5, process)
    assert published() < traffic.partitions
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "command again"))
    with (
        java_services.flink_job_server(tmp_path / "flink-again") as endpoint,
        worker_pool(tmp_path / "pool-again") as workers,
        stream_jobs.job(given[0], endpoint, *given[1:], beam=workers) as process,
    ):
        status, said, complaints = stream_jobs.ended(process)
    assert (status, complaints) == (0, "")
    assert said.startswith(f"{bucket}/log: {traffic.partitions} partitions, ")
    found = taken(f"{bucket}/log", tmp_path / "reader", monkeypatch)
    late = {name for name in found if name.startswith("late/")}
    assert {name: found[name] for name in found.keys() - late} == traffic.whole
