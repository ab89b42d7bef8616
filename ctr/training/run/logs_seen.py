"""Which intervals of its logs a run has seen some of, and that they stay what they are."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.log import Manifest, log_sha256
from ctr.io.documents import json_bytes
from ctr.io.errors import InputError


class LogsSeen:
    """The intervals of the logs of one run.

    Attributes:
        manifests: by the names of the logs, of which "" is the log that the run makes a pass over.
    """

    def __init__(self, folder: Path, manifests: Mapping[str, Sequence[Manifest]]) -> None:
        """Begins with these intervals. ``folder``: the run directory, named in errors."""
        self.manifests = manifests
        self._folder = folder
        self._hashed = {name: (0, hashlib.sha256()) for name in manifests}

    def consumed(self, rows: Mapping[str, int]) -> list[dict[str, Any]]:
        """Of each log the number and the hash of the intervals that begin within its first ``rows``."""
        consumed = []
        for name, behind in rows.items():
            intervals = self._intervals(name, behind)
            consumed.append({"log": name, "intervals": intervals, "sha256": self._sha256(name, intervals)})
        return consumed

    def _intervals(self, name: str, rows: int) -> int:
        begins = np.cumsum([0, *(manifest.rows for manifest in self.manifests[name])])
        return int(np.searchsorted(begins, rows))

    def _sha256(self, name: str, intervals: int) -> str:
        """``log_sha256`` of the first intervals; what was hashed for the last call is not hashed again."""
        done, digest = self._hashed[name]
        if intervals < done:
            done, digest = 0, hashlib.sha256()
        for manifest in self.manifests[name][done:intervals]:
            digest.update(json_bytes(manifest.model_dump(mode="json")))
        self._hashed[name] = intervals, digest
        return digest.hexdigest()

    def check(self, consumed: Sequence[Mapping[str, Any]]) -> None:
        """Raises InputError when what ``consumed`` told of a run, now or in the past, is not in these logs."""
        for seen in consumed:
            if seen["sha256"] != log_sha256(self.manifests[seen["log"]][: seen["intervals"]]):
                raise self._changed(seen["log"], seen["intervals"])

    def take_in(self, manifests: Mapping[str, Sequence[Manifest]], rows: Mapping[str, int]) -> None:
        """Goes on with these intervals.

        Args:
            manifests: by name, as before.
            rows: see ``consumed``.

        Raises:
            InputError: of those intervals some are not what they were.
        """
        for name, known in self.manifests.items():
            if manifests[name] is known:
                continue
            intervals = self._intervals(name, rows[name])
            if manifests[name][:intervals] != known[:intervals]:
                raise self._changed(name, intervals, _difference(known, manifests[name]))
        self.manifests = manifests

    def _changed(self, name: str, intervals: int, difference: str = "") -> InputError:
        log = f"constraint log {name}" if name else "log"
        return InputError(
            f"{self._folder}: the {log} is not the one that this run was trained on: "
            f"its first {intervals} partitions differ{difference}; use another output directory to start again"
        )


def _difference(before: Sequence[Manifest], now: Sequence[Manifest]) -> str:
    """What became of the first interval that is not what it was, in parentheses; empty where all are."""
    for old, new in zip_longest(before, now):
        if old == new:
            continue
        if new is None or (old is not None and old.start < new.start):
            return f" ([{old.start}, {old.end}) is gone)"
        if old is None or (old.start, old.end) != (new.start, new.end):
            return f" ([{new.start}, {new.end}) came late)"
        return f" ([{new.start}, {new.end}) has other content)"
    return ""
