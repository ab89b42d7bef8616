"""Streaming Beam pipelines on a real Flink: watermarks, panes, checkpoints, and what outlives a killed job server."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import trigger, window
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Duration, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming

# A stopped job server leaves the threads of its workers without a peer: they say so and end.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

TESTS = Path(__file__).resolve().parent.parent
ENDLESS = 1 << 40
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def services() -> ModuleType:
    sys.path.insert(0, str(TESTS))
    try:
        import java_services
    finally:
        sys.path.remove(str(TESTS))
    if reason := java_services.missing(java_services.FLINK_JARS):
        pytest.skip(reason)
    return java_services


class Parts(beam.transforms.core.RestrictionProvider):
    """The numbers of a folder's parts, from 0 on without end."""

    def initial_restriction(self, folder):
        return OffsetRange(0, ENDLESS)

    def create_tracker(self, restriction):
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, folder, restriction):
        return 1

    def truncate(self, folder, restriction):
        return None


class Follow(beam.DoFn):
    """Reads 0.json, 1.json, ... of a folder as they come; each says how far event time has come."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        folder,
        tracker=beam.DoFn.RestrictionParam(Parts()),  # noqa: B008
        estimator=beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),  # noqa: B008
    ):
        position = tracker.current_restriction().start
        while (path := Path(folder) / f"{position}.json").exists():
            if not tracker.try_claim(position):
                return
            part = json.loads(path.read_text())
            for key, value, moment in part["rows"]:
                yield window.TimestampedValue((key, value), moment)
            end = part["watermark"] is None
            estimator.set_watermark(MAX_TIMESTAMP if end else Timestamp(part["watermark"]))
            if end:
                tracker.try_claim(ENDLESS)
                return
            position += 1
        tracker.defer_remainder(Duration(seconds=0.1))


class Note(beam.DoFn):
    """Appends each pane that holds something to a file; fails once where a file `fail` lies beside it."""

    def __init__(self, path: str):
        self.path = path

    def process(self, pair, bounds=beam.DoFn.WindowParam, pane=beam.DoFn.PaneInfoParam):
        key, values = pair[0], sorted(pair[1])
        if not values:  # the last pane of a window, when its state goes; Beam fires it always
            return
        with open(self.path, "a") as file:
            timing = PaneInfoTiming.to_string(pane.timing)
            file.write(json.dumps([key, values, int(bounds.start), timing, pane.nonspeculative_index]) + "\n")
        fail = Path(self.path).parent / "fail"
        if fail.exists():
            fail.unlink()
            raise ValueError("asked to fail")


def start(endpoint: str, folder: Path, *options: str) -> beam.runners.runner.PipelineResult:
    """Follows folder/parts in windows of ten seconds; the panes go to folder/panes."""
    given = ["--runner=PortableRunner", f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"]
    pipeline = beam.Pipeline(options=PipelineOptions([*given, *options]))
    _ = (
        pipeline
        | beam.Create([str(folder / "parts")], reshuffle=False)
        | beam.ParDo(Follow())
        | beam.WindowInto(
            window.FixedWindows(10),
            trigger=trigger.AfterWatermark(late=trigger.AfterCount(1)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
            allowed_lateness=Duration(seconds=1000),
        )
        | beam.GroupByKey()
        | beam.ParDo(Note(str(folder / "panes")))
    )
    return pipeline.run()


def put(folder: Path, number: int, rows: list[tuple[str, int, int]], watermark: int | None) -> None:
    (folder / "parts").mkdir(exist_ok=True)
    path = folder / "parts" / f"{number}.json"
    path.with_suffix(".new").write_text(json.dumps({"rows": rows, "watermark": watermark}))
    path.with_suffix(".new").rename(path)


def panes(folder: Path) -> list[list]:
    path = folder / "panes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(0.05)


def stored(folder: Path) -> list[str]:
    path = f"--state_backend_storage_path=file://{folder / 'checkpoints'}"
    kept = ("--externalized_checkpoints_enabled", "--retain_externalized_checkpoints_on_cancellation")
    return ["--state_backend=filesystem", path, *kept]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_panes_come_when_the_watermark_passes_and_again_for_what_is_late(services, tmp_path, parallelism):
    with services.flink_job_server(tmp_path / "flink") as endpoint:
        result = start(
            endpoint,
            tmp_path,
            *services.CHECKPOINTED,
            "--max_bundle_time_mills=100",
            f"--parallelism={parallelism}",
        )
        put(tmp_path, 0, [("a", 1, 1), ("b", 2, 2), ("a", 3, 12)], 9)
        time.sleep(8)
        assert panes(tmp_path) == []
        put(tmp_path, 1, [("a", 4, 8)], 15)
        wait(lambda: len(panes(tmp_path)) >= 2)
        first = [["a", [1, 4], 0, "ON_TIME", 0], ["b", [2], 0, "ON_TIME", 0]]
        assert sorted(panes(tmp_path)) == first
        put(tmp_path, 2, [("a", 5, 3)], 15)
        wait(lambda: len(panes(tmp_path)) >= 3)
        assert panes(tmp_path)[2:] == [["a", [5], 0, "LATE", 1]]
        put(tmp_path, 3, [], None)
        wait(lambda: len(panes(tmp_path)) >= 4)
        assert panes(tmp_path)[3:] == [["a", [3], 10, "ON_TIME", 0]]
        result.cancel()
        assert result.state == "CANCELLED"


def test_a_job_goes_on_from_its_checkpoint_after_the_job_server_was_killed(services, tmp_path):
    options = [*services.CHECKPOINTED, "--max_bundle_time_mills=100", "--parallelism=2", *stored(tmp_path)]
    with services.flink_job_server(tmp_path / "flink") as endpoint:
        start(endpoint, tmp_path, *options)
        put(tmp_path, 0, [("a", 1, 1), ("a", 3, 12)], 11)
        wait(lambda: len(panes(tmp_path)) == 1)
        after = time.time_ns()
        wait(lambda: _written(services, tmp_path) > after + 10**9)
    # What was read is in the checkpoint alone: from the start of the folder it cannot come again.
    os.unlink(tmp_path / "parts" / "0.json")
    checkpoint = services.newest_checkpoint(tmp_path / "checkpoints")
    settings = {"execution.savepoint.path": f"file://{checkpoint}"}
    with services.flink_job_server(tmp_path / "again", settings=settings) as endpoint:
        result = start(endpoint, tmp_path, *options)
        put(tmp_path, 1, [("a", 4, 13), ("a", 5, 2)], 25)
        wait(lambda: len(panes(tmp_path)) == 3)
        result.cancel()
    assert sorted(panes(tmp_path)) == [
        ["a", [1], 0, "ON_TIME", 0],
        ["a", [3, 4], 10, "ON_TIME", 0],
        ["a", [5], 0, "LATE", 1],
    ]


def _written(services: ModuleType, folder: Path) -> int:
    """When the newest checkpoint was finished, ns since 1970; 0 without one."""
    found = services.newest_checkpoint(folder / "checkpoints")
    try:
        return (found / "_metadata").stat().st_mtime_ns if found else 0
    except FileNotFoundError:  # a newer one has taken its place
        return 0


def test_a_failure_of_the_worker_restarts_the_job_from_its_checkpoint(services, tmp_path):
    retries = ("--number_of_execution_retries=2", "--execution_retry_delay=100")
    with services.flink_job_server(tmp_path / "flink") as endpoint:
        (tmp_path / "fail").touch()
        result = start(
            endpoint,
            tmp_path,
            *services.CHECKPOINTED,
            "--max_bundle_time_mills=100",
            "--parallelism=1",
            *retries,
        )
        put(tmp_path, 0, [("a", 1, 1)], 11)
        wait(lambda: len(panes(tmp_path)) == 2)
        put(tmp_path, 1, [("a", 2, 12)], 25)
        wait(lambda: len(panes(tmp_path)) == 3)
        result.cancel()
    # What a pane did outside Flink before the failure it does once more.
    assert panes(tmp_path) == [["a", [1], 0, "ON_TIME", 0]] * 2 + [["a", [2], 10, "ON_TIME", 0]]


def test_a_service_that_does_not_start_says_what_its_log_says(services, tmp_path):
    with (
        pytest.raises(services.ServiceError, match="did not start") as raised,
        services.flink_job_server(tmp_path, memory="nonsense"),
    ):
        pass
    assert "Invalid maximum heap size" in str(raised.value)
