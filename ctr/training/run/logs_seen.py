"""Which partitions of its logs a run has seen some of, and that they stay what they are."""

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
    """The partitions of the logs of one run.

    Attributes:
        manifests: by the names of the logs, of which "" is the log that the run makes a pass over.
    """

    def __init__(self, run_dir: Path, manifests: Mapping[str, Sequence[Manifest]]) -> None:
        """Begins with these partitions. ``run_dir``: named in errors."""
        self.manifests = manifests
        self._run_dir = run_dir
        self._hashed = {name: (0, hashlib.sha256()) for name in manifests}

    def consumed(self, rows: Mapping[str, int]) -> list[dict[str, Any]]:
        """Returns of each log the number and the hash of the partitions that begin within its first ``rows``."""
        consumed = []
        for name, behind in rows.items():
            count = self._partitions(name, behind)
            consumed.append({"log": name, "intervals": count, "sha256": self._sha256(name, count)})
        return consumed

    def _partitions(self, name: str, rows: int) -> int:
        begins = np.cumsum([0, *(manifest.rows for manifest in self.manifests[name])])
        return int(np.searchsorted(begins, rows))

    def _sha256(self, name: str, count: int) -> str:
        """``log_sha256`` of the first ``count`` partitions; what was hashed for the last call is not hashed again."""
        done, digest = self._hashed[name]
        if count < done:
            done, digest = 0, hashlib.sha256()
        for manifest in self.manifests[name][done:count]:
            digest.update(json_bytes(manifest.model_dump(mode="json")))
        self._hashed[name] = count, digest
        return digest.hexdigest()

    def check(self, consumed: Sequence[Mapping[str, Any]]) -> None:
        """Raises InputError when what ``consumed`` returned for a run, now or in the past, is not in these logs."""
        for seen in consumed:
            if seen["sha256"] != log_sha256(self.manifests[seen["log"]][: seen["intervals"]]):
                raise self._changed(seen["log"], seen["intervals"])

    def update(self, manifests: Mapping[str, Sequence[Manifest]], rows: Mapping[str, int]) -> None:
        """Goes on with these partitions.

        Args:
            manifests: by name, as before.
            rows: see ``consumed``.

        Raises:
            InputError: of those partitions some are not what they were.
        """
        for name, known in self.manifests.items():
            if manifests[name] is known:
                continue
            count = self._partitions(name, rows[name])
            if manifests[name][:count] != known[:count]:
                raise self._changed(name, count, _difference(known, manifests[name]))
        self.manifests = manifests

    def _changed(self, name: str, count: int, difference: str = "") -> InputError:
        log = f"constraint log {name}" if name else "log"
        return InputError(
            f"{self._run_dir}: the {log} is not the one that this run was trained on: "
            f"its first {count} partitions differ{difference}; use another output directory to start again"
        )


def _difference(before: Sequence[Manifest], now: Sequence[Manifest]) -> str:
    """What became of the first partition that is not what it was, in parentheses; empty where all are."""
    for old, new in zip_longest(before, now):
        if old == new:
            continue
        if new is None or (old is not None and old.start < new.start):
            return f" ([{old.start}, {old.end}) is gone)"
        if old is None or (old.start, old.end) != (new.start, new.end):
            return f" ([{new.start}, {new.end}) came late)"
        return f" ([{new.start}, {new.end}) has other content)"
    return ""
