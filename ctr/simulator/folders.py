"""Directories that the simulator writes, and the files that identify them; loads no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path

from ctr.data.log import check_log_folder, read_schema
from ctr.io.errors import InputError
from ctr.io.files import check_output_folder

WORLD_FILE = "world.yaml"  # in a simulated log: the settings of its world

EVENTS_FILE = "events.yaml"  # in a directory of raw events: the settings of the simulation

ORIGIN_FILE = "origin.json"  # in a directory of a closed loop: the run and the log that it began with


def check_simulation(logs: Sequence[Path], events: Path | None) -> None:
    """Raises InputError where a directory for a log or for events holds other content than a simulation writes."""
    for log in logs:
        check_log_folder(log)
    if events is not None:
        check_events_folder(events)


def check_events_folder(folder: Path) -> None:
    """Raises InputError where a directory is neither empty nor one of raw events of the simulator."""
    check_output_folder(folder, "events of ctr simulate", lambda found: (found / EVENTS_FILE).is_file())


def check_days(count: int) -> None:
    """Raises InputError for a number of days that a closed loop cannot last."""
    if count < 1:
        raise InputError(f"days: {count} is not allowed; allowed: at least 1")


def check_loop_folders(policy: Path, log: Path, out: Path) -> None:
    """Raises InputError where one of the paths cannot be a finished run, a simulated log, and a folder for a loop."""
    check_output_folder(out, "a loop", lambda found: (found / ORIGIN_FILE).is_file())
    for path in (policy / "summary.json", policy / "config.yaml"):
        if not path.is_file():
            raise InputError(f"{policy}: no {path.name}: a finished run of ctr train is required")
    check_world(log)
    read_schema(log)


def check_world(log: Path) -> Path:
    """Returns the file with a log's world. Raises InputError for a log that was not simulated."""
    path = log / WORLD_FILE
    if not path.is_file():
        raise InputError(f"{log}: no {WORLD_FILE}: not a simulated log; ctr simulate makes one")
    return path
