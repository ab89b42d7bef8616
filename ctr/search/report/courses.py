"""What a supernet's controller recorded as it learned: OUT/supernet/controller.jsonl."""

from pathlib import Path

from pydantic import ValidationError

from ctr.experiments.plan import Record
from ctr.io.errors import InputError

CONTROLLER_FILE = "controller.jsonl"


class ControllerRecord(Record):
    """The controller at one point of its pass.

    Attributes:
        examples: that the supernet has learned from.
        steps: of the controller.
        entropy: of its distribution, in nats, summed over the decisions.
        probabilities: for each decision those of its choices.
        baseline: the moving average of rewards.
        mean_reward: of the candidates since the last record; None: none was drawn.
        mean_cost: theirs, in units of the baseline's.
    """

    examples: int
    steps: int
    entropy: float
    probabilities: dict[str, list[float]]
    baseline: float | None
    mean_reward: float | None
    mean_cost: float | None


def read_course(folder: Path) -> list[ControllerRecord]:
    """All records of a supernet, in their order; empty where there is none.

    Raises:
        InputError: a line is damaged.
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
