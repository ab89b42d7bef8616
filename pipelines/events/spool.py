"""Events stored by partition until it is closed, in files whose names depend only on their source.

::

    SPOOL/segments/START/KIND-UNIT-N.arrow    the events of chunk N of a unit for the partition
    SPOOL/units/UNIT.json                     a unit that was read to its end: its counts and rejects

A unit that is read again writes the same files again, so that the process may be killed anywhere.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from ctr.data.state_files import read_state_file, write_state_file
from ctr.io.files import remove_temporaries
from ctr.pipelines.events.accounts import UnitReport
from ctr.pipelines.events.read import Unit
from ctr.pipelines.events.rules import PartitionRules, known_from
from ctr.pipelines.events.tables import EARLIER, EARLIER_SCHEMA, IMPRESSIONS, Kind
from ctr.pipelines.spill import read_state_tables, write_state_tables
from ctr.pipelines.tables.rejects import Reject

_REMEDY = "restore it from a copy, or join all events anew into another output directory"
CLOCK = "clock.json"
SPOOL = ".events"  # inside a log that is made by following events


def unit_digest(unit: Unit) -> str:
    """Makes the part of the names of a unit's files that identifies it."""
    text = f"{unit.kind}\0{unit.name}\0{unit.row_groups}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_clock(spool: Path, clock_us: int) -> None:
    """Stores the arrival that the clock of a job has reached."""
    write_state_file(spool / CLOCK, json.dumps({"clock_us": clock_us}).encode())


def read_clock(spool: Path) -> int:
    """Reads what ``write_clock`` has stored."""
    clock: int = json.loads(read_state_file(spool / CLOCK, _REMEDY).to_pybytes())["clock_us"]
    return clock


def write_segment(spool: Path, unit: Unit, number: int, start: int, table: pa.Table) -> None:
    """Stores the events of a unit's chunk for a partition."""
    path = spool / "segments" / f"{start:019d}" / f"{unit.kind}-{unit_digest(unit)}-{number:06d}.arrow"
    write_state_tables(path, table.schema, [table])


def write_report(spool: Path, unit: Unit, report: UnitReport) -> None:
    """Records that a unit was read to its end."""
    write_state_file(_report_path(spool, unit), json.dumps(asdict(report)).encode())


def _report_path(spool: Path, unit: Unit) -> Path:
    return spool / "units" / f"{unit_digest(unit)}.json"


def read_report(spool: Path, unit: Unit) -> UnitReport | None:
    """Reads the report of a unit; None if it was not read to its end."""
    path = _report_path(spool, unit)
    return _read_report(path) if path.exists() else None


def list_reports(spool: Path) -> list[UnitReport]:
    """Reads the reports of all units that were ever read."""
    return [_read_report(path) for path in sorted((spool / "units").glob("*.json"))]


def _read_report(path: Path) -> UnitReport:
    content = json.loads(read_state_file(path, _REMEDY).to_pybytes())
    rejects = [Reject(**reject) for reject in content.pop("rejects")]
    return UnitReport(**content, rejects=rejects)


def list_starts(spool: Path) -> list[int]:
    """Lists the partitions that have segments, in order."""
    folder = spool / "segments"
    return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []


def read_partition(spool: Path, rules: PartitionRules, start: int) -> dict[str, list[pa.Table]]:
    """Reads the events of a partition, and earlier impressions, as ``stage_events`` takes them."""
    kinds = (IMPRESSIONS, *rules.windows)
    found: dict[str, list[pa.Table]] = {kind: _read(_segments(spool, start, kind)) for kind in kinds}
    first = known_from(rules, start)
    found[EARLIER] = [
        table.select(EARLIER_SCHEMA.names)
        for other in list_starts(spool)
        if other < start and other + rules.length > first
        for table in _read(_segments(spool, other, IMPRESSIONS))
    ]
    return found


def count_impressions(spool: Path, starts: Sequence[int]) -> int:
    """Counts the impressions that wait in some partitions."""
    paths = (path for start in starts for path in _segments(spool, start, IMPRESSIONS))
    return sum(table.num_rows for path in paths for table in _read([path]))


def _segments(spool: Path, start: int, kind: Kind) -> list[Path]:
    return sorted((spool / "segments" / f"{start:019d}").glob(f"{kind}-*.arrow"))


def _read(paths: Sequence[Path]) -> list[pa.Table]:
    return [table for path in paths for table in read_state_tables(path, _REMEDY)]


def drop_unfinished(spool: Path) -> None:
    """Deletes the segments of units that were not read to their end: they are read again, maybe changed."""
    finished = {path.stem for path in (spool / "units").glob("*.json")}
    for path in (spool / "segments").glob("*/*.arrow"):
        if path.name.split("-")[1] not in finished:
            path.unlink(missing_ok=True)
    for folder in (spool / "units", *(spool / "segments").glob("*")):
        remove_temporaries(folder)


def drop_partitions(spool: Path, before: int) -> None:
    """Deletes the segments of the partitions that begin before a time."""
    for start in list_starts(spool):
        if start < before:
            shutil.rmtree(spool / "segments" / f"{start:019d}", ignore_errors=True)
