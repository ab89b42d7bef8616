"""Files of a checkpoint that a group writes together, each member its parts of divided arrays.

The first member writes ``arrays.npz``, with its parts and all undivided arrays, and a record of the parts; the others
write ``arrays-1.npz`` and so on. Any number of workers can read them.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctr.io.arrays import each_array
from ctr.io.documents import parse_json
from ctr.workers.cluster import WorkerLostError
from ctr.workers.parts import Part, reshard, reshard_to, shard

ARRAYS = "arrays.npz"
_MOMENT = 5.0
_LOOK_EVERY = 0.02  # seconds

Wanted = Callable[[str, int], Part | None]
"""Maps an array's name and the length of its first or divided axis to the part to read; None: the whole array."""


class Writer(NamedTuple):
    """One of the processes that write a checkpoint; by default the only one."""

    rank: int = 0
    size: int = 1
    parts: Mapping[str, Part] = {}  # by the names of arrays, without undivided arrays
    patience: float = 0.0  # seconds that the first writer waits for the others' files; 0: no limit
    attempt: str = ""  # the tag from ``begin`` in the names of notes; notes of earlier attempts are ignored
    is_leaving: Callable[[], bool] = lambda: False  # whether this process is ending, and waits only briefly

    @property
    def file(self) -> str:
        return f"arrays-{self.rank}.npz" if self.rank else ARRAYS

    def entry(self, sha256: str) -> dict[str, Any]:
        """Returns the entry of this writer's file for ``read_parts``."""
        parts = {name: part.as_json() for name, part in self.parts.items()}
        return {"file": self.file, "sha256": sha256, "parts": parts}

    def announce(self, folder: Path, sha256: str) -> None:
        """Announces this writer's file to the first writer, by a note that exists until it is read."""
        note = self._note(folder, self.rank)
        new = note.with_suffix(".new")
        new.write_text(json.dumps(self.entry(sha256)))
        # Once the note has its name, the first writer may rename the folder: nothing more can be done in it.
        new.replace(note)

    def collect(self, folder: Path) -> list[dict[str, Any]]:
        """Waits for the files of all other writers; returns their entries. Raises WorkerLostError if one is late."""
        entries, begun = [], time.monotonic()
        for rank in range(1, self.size):
            note = self._note(folder, rank)
            while not note.exists():
                patience = _MOMENT if self.is_leaving() else self.patience
                if patience and time.monotonic() - begun > patience:
                    raise WorkerLostError(
                        f"{folder}: worker {rank} has not written its part in {patience:g} s"
                    )
                time.sleep(_LOOK_EVERY)
            entries.append(dict(parse_json(note.read_bytes())))
            note.unlink()
        return entries

    def _note(self, folder: Path, rank: int) -> Path:
        return folder / f"part-{rank}{self.attempt}.json"


ONLY_WRITER = Writer()


def read_parts(
    folder: Path, entries: Iterable[Mapping[str, Any]], wanted: Wanted = lambda name, rows: None
) -> tuple[dict[str, np.ndarray], dict[str, Part]]:
    """Reads the arrays of a checkpoint, file by file; also returns the part of each array that is not ``wanted`` whole.

    ``entries``: for each file, the result of ``Writer.entry``; ``parts`` may be missing. Raises ValueError if rows are
    missing.
    """
    whole: dict[str, list[tuple[Part, np.ndarray]]] = {}
    arrays: dict[str, np.ndarray] = {}
    parts: dict[str, Part] = {}
    seen: dict[str, int] = {}
    for entry in entries:
        of_file = {name: Part.from_json(content) for name, content in entry.get("parts", {}).items()}
        for name, values in each_array(folder / entry["file"]):
            part = of_file.get(name)
            selected = wanted(name, part.total if part is not None else len(values) if values.ndim else 0)
            if selected is None and part is None:
                arrays[name] = values
            elif selected is None and part is not None:
                whole.setdefault(name, []).append((part, values))
            elif selected is not None and part is None:
                parts[name], arrays[name] = selected, shard(values, selected)
            elif selected is not None and part is not None:
                parts[name], arrays[name] = selected, reshard_to(selected, [(part, values)], arrays.get(name))
                seen[name] = seen.get(name, 0) + len(part.rows)
    for name, count in seen.items():
        if count != parts[name].total:
            raise ValueError(f"{name}: {count} of {parts[name].total} rows are there")
    return arrays | {name: reshard(pieces) for name, pieces in whole.items()}, parts
