"""`ctr ingest events --stream` as a process, and simulated traffic with the log that the batch job makes of it."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

import java_services
from beam_workers import worker_pool
from ctr.config import parse_model
from ctr.data.event_mapping import load_event_mapping
from ctr.pipelines.events.follow import ingest_events
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from event_files import published
from java_services import ROOT

MAPPING = ROOT / "examples" / "events" / "simulated.yaml"
WAIT_SECONDS = 90
WORLD = {
    "examples": 15_000,
    "queries_per_day": 4_000,
    "users": 200,
    "ads": 100,
    "advertisers": 20,
    "words": 200,
    "topics": 5,
    "base_ctr": 0.2,
    "events": {"duplicate_share": 0.05, "straggler_share": 0.02},
}


@dataclass(frozen=True)
class Traffic:
    """Events as files, and the batch job's log of them."""

    events: Path
    log: Path

    @property
    def files(self) -> list[Path]:
        """In the order of arrival."""
        found = [*self.events.glob("impressions/*"), *self.events.glob("clicks/*")]
        return sorted(found, key=lambda path: path.name)

    @property
    def whole(self) -> dict[str, str]:
        return published(self.log, ("rejects", "late"))

    @property
    def partitions(self) -> int:
        return len(list((self.log / "manifests").iterdir()))


def make_traffic(folder: Path, later: Callable[[int], int] | None = None, mapping: Path = MAPPING) -> Traffic:
    """Simulates; `later` gives, for the last arrival, by how many microseconds all times are moved."""
    simulate(parse_model(SimulatorConfig, WORLD, "test"), folder / "simulated", events=folder / "events")
    if later is not None:
        paths = sorted((folder / "events").glob("*/*.parquet"))
        tables = {path: pq.read_table(path) for path in paths}
        shift = later(max(pc.max(table.column("arrival_time")).as_py() for table in tables.values()))
        for path, table in tables.items():
            for name in ("event_time", "arrival_time"):
                at = table.column_names.index(name)
                table = table.set_column(at, name, pc.add(table.column(name), shift))
            pq.write_table(table, path)
    ingest_events(load_event_mapping(mapping), [folder / "events"], folder / "log")
    return Traffic(folder / "events", folder / "log")


def copy_files(files: list[Path], folder: Path, age: float = 3600.0) -> None:
    """Copies files of events; they look as if they were written `age` seconds ago."""
    for path in files:
        target = folder / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f".{target.name}")
        shutil.copyfile(path, hidden)
        os.utime(hidden, (time.time() - age,) * 2)
        hidden.replace(target)


@contextlib.contextmanager
def job(
    log: Path | str,
    endpoint: str,
    *arguments: str | Path,
    beam: tuple[str, ...] = (),
    mapping: Path = MAPPING,
) -> Iterator[subprocess.Popen[str]]:
    """Runs the command on a job server; killed with the block."""
    runner = ("--runner=PortableRunner", f"--job_endpoint={endpoint}", "--parallelism=2")
    given = [*arguments, "--mapping", mapping, "--out", log, "--stream"]
    with contextlib.ExitStack() as stack:
        if not any(option.startswith("--environment_type") for option in beam):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            beam = (*stack.enter_context(worker_pool(folder)), *beam)
        given.append(f"--beam-options={' '.join([*runner, *beam])}")
        process = stack.enter_context(_killed(given))
        yield process


@contextlib.contextmanager
def _killed(given: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ctr", "ingest", "events", *map(str, given)],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Waits for the end: the status, and what was said on both."""
    out, err = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, out, err


def told_to_stop(process: subprocess.Popen[str], number: int) -> tuple[int, str, str]:
    process.send_signal(number)
    return ended(process)


def manifests(log: Path) -> int:
    return len(list((log / "manifests").glob("*.json")))


def wait(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Raises TimeoutError, or what the process says when it ends before."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if process is not None and process.poll() is not None:
            raise ChildProcessError(f"ended before: {ended(process)}")
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)


def stands_still(log: Path, seconds: float = 2.0) -> None:
    """Waits until no partition has been published for a while."""
    seen, since = 0, time.monotonic()
    while time.monotonic() < since + seconds:
        if manifests(log) > seen:
            seen, since = manifests(log), time.monotonic()
        time.sleep(0.05)


def checkpointed(folder: Path, retries: int = 3) -> tuple[str, ...]:
    """Options of a job whose checkpoints outlive it, in `folder`."""
    return (
        "--checkpointing_interval=500",
        f"--number_of_execution_retries={retries}",
        "--execution_retry_delay=500",
        "--state_backend=filesystem",
        f"--state_backend_storage_path=file://{folder}",
        "--externalized_checkpoints_enabled",
        "--retain_externalized_checkpoints_on_cancellation",
    )


def next_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    """Waits for one that was begun after now."""
    after = time.time_ns() + 10**9

    def written() -> bool:
        found = java_services.newest_checkpoint(folder)
        try:
            return found is not None and (found / "_metadata").stat().st_mtime_ns > after
        except FileNotFoundError:  # a newer one has taken its place
            return False

    wait(written, process)


def resumed(folder: Path) -> dict[str, str]:
    """Flink's settings for a job that goes on from the newest checkpoint."""
    return {"execution.savepoint.path": f"file://{java_services.newest_checkpoint(folder)}"}
