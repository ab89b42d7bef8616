"""Folders that are being filled with events: which files are new, and which of them are complete.

What was read before is kept by the two drivers, each in its own way: ``FilesRead`` knows every file, ``ReadSoFar`` only
the last one, because it is part of a runner's checkpoint.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctr.data.event_mapping import EventMapping
from ctr.io.errors import InputError
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.read import Unit, Version, find_events
from ctr.pipelines.events.tables import Kind
from ctr.pipelines.rows.sources import natural_order


@dataclass(frozen=True)
class NewFile:
    """File to read, and its version when it was found."""

    unit: Unit
    version: Version


class FilesRead:
    """Files that were read, with their versions; reports once each file that has changed since."""

    def __init__(self, report_change: Callable[[Unit], None]) -> None:
        self._report_change = report_change
        self._read: dict[tuple[Kind, str], Version] = {}
        self._changed: set[tuple[Kind, str]] = set()

    def add(self, kind: Kind, name: str, version: Version) -> None:
        self._read[kind, name] = version

    def unread(self, units: Sequence[Unit]) -> list[Unit]:
        """Returns the units of which nothing was read."""
        return [unit for unit in units if not self._is_read(unit)]

    def _is_read(self, unit: Unit) -> bool:
        key = unit.kind, unit.name
        if key not in self._read:
            return False
        if key not in self._changed and _version(unit.path) not in (None, self._read[key]):
            self._changed.add(key)
            self._report_change(unit)
        return True


@dataclass(frozen=True)
class ReadSoFar:
    """Files read of a kind whose new files always sort after the older ones."""

    last: str = ""  # the name of the last file; empty before the first
    files: int = 0  # how many there were up to that name when it was read
    arrival: int = 0  # the latest, in microseconds; 0 before the first
    # When the last file was written, before the first when the job began; seconds since 1970.
    written: float = 0.0
    over: bool = False  # this part of the work is done

    def unread(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Returns the units after the last one read; InputError where a file was added before that."""
        place = natural_order(self.last)
        before = sum(1 for unit in units if self.last and natural_order(unit.name) <= place)
        if before > self.files:
            raise InputError(
                f"events: there are {before} files up to {self.last}, of which {self.files} were read: the "
                "names of new files must sort after those of older ones"
            )
        return units[before:]


class EventFolders:
    """Scan of folders for files of events that are new and complete.

    The files of a kind count as arriving in the order of their names, and must not change once they are there under
    their name. If the folders are drained, all files are complete.
    """

    def __init__(self, mapping: EventMapping, folders: Sequence[Path], settings: FollowSettings) -> None:
        self._mapping, self._folders, self._settings = mapping, tuple(folders), settings
        self._waiting: dict[Kind, dict[str, tuple[Version, float]]] = {}

    def scan(self) -> list[Unit]:
        """Finds all files, in the order in which they count as arriving."""
        return find_events(self._mapping, self._folders)

    def complete_files(self, kind: Kind, unread: Sequence[Unit]) -> tuple[list[NewFile], bool]:
        """Chooses the files to read now of all unread ones of a kind, in order.

        Also returns whether files that are still being written hold back others of the kind.
        """
        versions = [(unit, _version(unit.path)) for unit in unread]
        found = [NewFile(unit, version) for unit, version in versions if version is not None]
        if self._settings.drain:
            return found, False
        before, self._waiting[kind] = self._waiting.get(kind, {}), {}
        settled = [self._is_settled(file, before) for file in found]
        end = settled.index(False) if False in settled else len(found)
        return found[:end], end < len(found)

    def _is_settled(self, file: NewFile, before: dict[str, tuple[Version, float]]) -> bool:
        """Whether a file has not changed for long enough, by its own time or by what earlier scans have seen."""
        limit, now = self._settings.settle_seconds, time.monotonic()
        if time.time_ns() - file.version.modified_ns >= limit * 1e9:
            return True
        # The clock of its machine may be ahead of ours.
        version, since = before.get(file.unit.name, (file.version, now))
        if version != file.version:
            since = now
        self._waiting[file.unit.kind][file.unit.name] = file.version, since
        return now - since >= limit


def _version(path: Path) -> Version | None:
    """None: the file was deleted since the scan."""
    try:
        return Version.read(path)
    except FileNotFoundError:
        return None
