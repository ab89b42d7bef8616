"""Subject of a run: the table that its log was made of, and the label that it predicts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Subject:
    """Table and label of a run, as far as its log, where it still is, tells; both may be empty."""

    table: str  # the file that the log was made of, with the number of others; else the name of the log
    label: str  # the column of the label, or the rule on it

    def __str__(self) -> str:
        label = self.label or "clicks"
        return f"{label} in {self.table}" if self.table else self.label


def subject_of(run: Path) -> Subject:
    """Reads the subject of a run; empty where its checkpoint does not say which log it has read."""
    states = sorted((run / "checkpoints").glob("*/state.json"))
    found = _json(states[-1]).get("log") if states else None
    if not isinstance(found, str) or not found:
        return Subject("", "")
    log = Path(found)
    ingested = _json(log / ".ingest" / "state.json")
    inputs = ingested.get("inputs")
    names = [one.get("name") for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []
    files = list(dict.fromkeys(Path(name).name for name in names if isinstance(name, str) and name))
    # The name of a folder called log says nothing.
    table = f"{log.parent.name}/{log.name}" if log.name == "log" and log.parent.name else log.name
    if files:
        table = f"{files[0]} and {len(files) - 1} more files" if len(files) > 2 else " and ".join(files)
    label = ingested.get("label")
    return Subject(table, label if isinstance(label, str) else "")


def _json(path: Path) -> dict[str, Any]:
    """Object of a JSON file; empty where there is none, or it is damaged: nothing but words hang on it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
