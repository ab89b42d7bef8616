"""Jobs that are killed anywhere, as the machine does it, publish what one that was left alone does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import event_files
from ctr.config import dump_yaml
from ctr.data.log import list_partitions
from ctr.pipelines.events.follow import ingest_events
from ctr.pipelines.events.spool import list_reports

FILES = 40

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = event_files.write_events(
        tmp_path_factory.mktemp("files"), event_files.draw_events(600, seconds=400), FILES
    )
    return found


@pytest.fixture(scope="module")
def undisturbed(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    log = tmp_path_factory.mktemp("undisturbed")
    ingest_events(event_files.mapping(), [files], log, max_reject_share=0)
    found: dict[str, bytes] = event_files.published(log)
    return found


@pytest.mark.soak
@pytest.mark.parametrize(
    ("driver", "kills", "seed"),
    [
        ("watch", 10, 1),
        ("batch", 4, 3),
        pytest.param("watch", 25, 1, marks=pytest.mark.soak),
        pytest.param("batch", 8, 3, marks=pytest.mark.soak),
    ],
)
def test_a_job_that_is_killed_many_times_publishes_the_same(
    driver: str,
    kills: int,
    seed: int,
    files: Path,
    undisturbed: dict[str, bytes],
    root: Path,
    fresh_python: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    given = {
        **{"driver": driver, "kills": kills, "seed": seed, "mapping": event_files.content()},
        **{"files": str(files), "events": str(tmp_path / "events"), "log": str(log)},
    }
    script = root / "tests" / "helpers" / "killed_jobs.py"
    done = fresh_python(script, json.dumps(given), cwd=tmp_path, path=root)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["killed"] == kills
    assert event_files.published(log) == undisturbed
    assert not list(log.glob(".spill-*"))
    if driver == "watch":
        # They died all along the way, not at its beginning or its end.
        assert len(set(result["partitions"])) > kills // 5
        counted = sum(report.events for report in list_reports(log / ".events"))
        assert counted == sum(map(len, event_files.draw_events(600, seconds=400).values()))


def test_the_command_goes_on_after_a_kill_and_ends_in_peace_when_it_is_asked_to(
    files: Path, undisturbed: dict[str, bytes], root: Path, tmp_path: Path
) -> None:
    mapping, events, log = tmp_path / "mapping.yaml", tmp_path / "events", tmp_path / "log"
    mapping.write_text(dump_yaml(event_files.mapping()))
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "ctr", "ingest", "events", str(events), "--mapping", str(mapping)]
    follow = [*command, "--out", str(log), "--follow", "--poll", "0.05"]
    paths = sorted(files.glob("*/*.jsonl"), key=lambda path: int(path.stem))
    pieces = [paths[: FILES // 2], paths[FILES // 2 : FILES], paths[FILES:]]

    def add(piece: list[Path]) -> None:
        event_files.write_files(
            events, [(f"{path.parent.name}/{path.name}", path.read_bytes()) for path in piece]
        )

    def until_published(process: subprocess.Popen[str], more_than: int) -> int:
        end = time.monotonic() + 120
        while len(list_partitions(log)) <= more_than and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        return len(list_partitions(log))

    def start() -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(follow, env=environment, cwd=tmp_path, **pipes)  # type: ignore[call-overload]

    add(pieces[0])
    first = start()
    there = until_published(first, 0)
    assert there > 0, first.communicate()[1]
    first.kill()
    first.communicate()
    add(pieces[1])
    second = start()
    assert until_published(second, there) > there
    second.send_signal(signal.SIGTERM)
    reported, complaint = second.communicate(timeout=60)
    assert second.returncode == 0, complaint
    assert "impressions pending" in reported
    add(pieces[2])
    last = subprocess.run([*follow, "--drain"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert "0 impressions pending" in last.stdout
    assert event_files.published(log) == undisturbed
