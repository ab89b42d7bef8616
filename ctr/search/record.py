"""Records from which the report of a search is written without TensorFlow: search.json and controller.jsonl."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ctr.experiments.plan import Record
from ctr.io.errors import InputError

RECORD_FILE = "search.json"
BASELINE = "baseline"  # name of the configuration that candidates change
SEARCHED = "searched"  # name of the result among the arms of the last replay
CONTROLLER_FILE = "controller.jsonl"


class SearchRecord(Record):
    """A search and its result."""

    title: str
    note: str
    command: str  # the command that repeats the search
    ctr_version: str
    log: str  # the folder of the log
    log_sha256: str
    seed: int
    target: float  # target cost of the result, in units of the baseline's
    purpose: str
    space: dict[str, list[Any]]  # choices by decision
    size: int  # number of candidates
    baseline: dict[str, Any] | None  # the baseline's choices; None if the space does not contain it
    rows: int  # rows of the log in the configuration's time range
    prefix_rows: int  # rows that the search reads
    prefix_end: str | None  # the first query time that the search does not read; None: it reads all
    examples: int  # examples that the supernet learned from
    passes: float  # cost of the search, in passes of the baseline over all rows
    chosen: str  # ``baseline``, or ``cN`` for candidate N of the space
    values: dict[str, Any]  # choices of the result; empty for the baseline
    cost: float  # cost of the result, in units of the baseline's


class ControllerRecord(Record):
    """State of the controller at one point of the pass."""

    examples: int  # examples that the supernet has learned from
    steps: int  # steps of the controller
    entropy: float  # nats, summed over the decisions
    probabilities: dict[str, list[float]]
    baseline: float | None  # the moving average of rewards
    mean_reward: float | None  # of the candidates scored since the last record; None without any
    mean_cost: float | None  # of the same candidates, in units of the baseline's


def read_course(folder: Path) -> list[ControllerRecord]:
    """Reads the controller's records from controller.jsonl in ``folder``; empty if there is no such file."""
    path = folder / CONTROLLER_FILE
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            records.append(ControllerRecord.model_validate_json(line))
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {error.errors()[0]['msg']}") from None
    return records
