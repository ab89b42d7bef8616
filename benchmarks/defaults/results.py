"""What is kept of each pass: a JSON file to read, and the metrics' states beside it, for paired comparisons."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.eval.progressive import ProgressiveMetrics
from ctr.io.arrays import read_arrays
from ctr.io.files import write_atomic, write_atomic_bytes
from defaults.systems import Work

_MOST_STATE_BYTES = 2**30


@dataclass(frozen=True)
class Result:
    """A pass that was made.

    Attributes:
        system, setting: whose.
        record: the content of its JSON file.
        states: the file of its metrics' states.
    """

    system: str
    setting: str
    record: dict[str, Any]
    states: Path

    @property
    def metrics(self) -> ProgressiveMetrics:
        """The metrics' states."""
        return ProgressiveMetrics.from_arrays(read_arrays(self.states, _MOST_STATE_BYTES))

    @property
    def seconds(self) -> float:
        """What the pass took."""
        return float(self.record["seconds"])


class Results:
    """The results in a folder, by a hash of what each depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, work: Work) -> Result | None:
        """The result of a pass; None where it was not made."""
        path = self._path(work)
        if not path.exists():
            return None
        return Result(work.system, work.setting, json.loads(path.read_text()), path.with_suffix(".npz"))

    def add(self, work: Work, metrics: ProgressiveMetrics, seconds: float) -> Result:
        """Keeps a result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(work)
        record = {
            "log": work.log.folder.name,
            "system": work.system,
            "setting": work.setting,
            "seconds": round(seconds, 2),
            **metrics.line(),
            "inputs": work.inputs,
        }
        arrays = metrics.to_arrays()
        write_atomic(path.with_suffix(".npz"), lambda file: np.savez_compressed(file, **arrays))
        write_atomic_bytes(path, (json.dumps(record, indent=1) + "\n").encode())
        found = self.find(work)
        assert found is not None
        return found

    def _path(self, work: Work) -> Path:
        # The names are for the eye.
        key = hashlib.sha256(json.dumps(work.inputs, sort_keys=True).encode()).hexdigest()[:20]
        return self.folder / f"{work.log.folder.name}-{work.system}-{key}.json"


def best(results: list[Result], metric: str) -> Result:
    """The best of at least one result by ``auc`` or ``logloss``; without AUC the first."""
    sign = 1 if metric == "logloss" else -1
    defined = [result for result in results if result.record[metric] is not None]
    return min(defined, key=lambda result: sign * result.record[metric]) if defined else results[0]
