"""Records of a supernet's controller as it learned: OUT/supernet/controller.jsonl."""

from pathlib import Path

from pydantic import ValidationError

from ctr.experiments.plan import Record
from ctr.io.errors import InputError

CONTROLLER_FILE = "controller.jsonl"


class ControllerRecord(Record):
    """State of the controller at one point of its pass."""

    examples: int  # that the supernet has learned from
    steps: int  # of the controller
    entropy: float  # nats, summed over the decisions
    probabilities: dict[str, list[float]]
    baseline: float | None  # the moving average of rewards
    mean_reward: float | None  # of the candidates since the last record; None: none was drawn
    mean_cost: float | None  # in units of the baseline's


def read_course(folder: Path) -> list[ControllerRecord]:
    """Reads all records of a supernet, in their order; empty where there is none.

    Raises InputError where a line is damaged.
    """
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
