"""The streaming job on a real Flink: the batch job's bytes, whatever is killed and however often it is begun again."""

import contextlib
import signal

import pytest

import event_files
import java_services
import stream_jobs

MISSING = java_services.missing(java_services.FLINK_JARS)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    return stream_jobs.make_traffic(tmp_path_factory.mktemp("traffic"))


def test_a_drained_job_is_the_batch_job_and_ends_by_itself(traffic, tmp_path):
    log = tmp_path / "log"
    with (
        java_services.flink_job_server(tmp_path / "flink") as endpoint,
        stream_jobs.job(log, endpoint, traffic.events, "--drain") as process,
    ):
        status, said, complaints = stream_jobs.ended(process)
    assert (status, complaints) == (0, "")
    assert said.startswith(f"{log}: {traffic.partitions} partitions, ")
    assert event_files.published(log, ("rejects", "late")) == traffic.whole
    assert len(traffic.whole) > 50


@pytest.mark.soak
def test_a_job_whose_server_goes_away_ends_with_one_line_and_goes_on_from_its_checkpoint(traffic, tmp_path):
    log, events = tmp_path / "log", tmp_path / "events"
    checkpoints = tmp_path / "checkpoints"
    options = stream_jobs.checkpointed(checkpoints)
    half = len(traffic.files) // 2
    stream_jobs.copy_files(traffic.files[:half], events, age=1)
    server = java_services.flink_job_server(tmp_path / "flink")
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(server)
        process = stack.enter_context(stream_jobs.job(log, endpoint, events, beam=options))
        stream_jobs.wait(lambda: stream_jobs.manifests(log) >= 10, process)
        # It stands still when it has published what the first half closes.
        stream_jobs.stands_still(log)
        stream_jobs.next_checkpoint(checkpoints, process)
        server.__exit__(None, None, None)
        status, said, complaints = stream_jobs.ended(process)
        assert (status, said, complaints.count("\n")) == (1, "", 1), complaints
        assert complaints.startswith("error: --beam-options: the runner cannot start, or be reached")
    assert 10 <= stream_jobs.manifests(log) < traffic.partitions
    # The open partitions' events are in the checkpoint alone.
    for path in traffic.files[:half]:
        (events / path.parent.name / path.name).unlink()
    # Nothing has been written for an hour, so that the arrivals go on with the time of day and close the rest.
    stream_jobs.copy_files(traffic.files[half:], events, age=86_400 * 30)
    with (
        java_services.flink_job_server(
            tmp_path / "again", settings=stream_jobs.resumed(checkpoints)
        ) as endpoint,
        stream_jobs.job(log, endpoint, events, "--idle-timeout=300", beam=options) as process,
    ):
        stream_jobs.wait(lambda: stream_jobs.manifests(log) >= traffic.partitions, process)
        status, said, complaints = stream_jobs.told_to_stop(process, signal.SIGTERM)
    assert (status, complaints) == (0, "")
    assert said.startswith(f"{log}: {traffic.partitions} partitions, ")
    assert event_files.published(log, ("rejects", "late")) == traffic.whole
