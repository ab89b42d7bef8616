"""Mapping file of labels that come as events of their own, described in docs/howto/labels.md."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from ctr.config import StrictModel, parse_model, read_yaml
from ctr.data.derived import Column
from ctr.data.features import LabelName
from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput, Time
from ctr.data.times import Duration, duration_us


class LabelEvents(StrictModel):
    """Events of one label: their files and columns.

    Attributes:
        input: how the files are read. In a folder they lie in a folder with the label's name, or match the pattern.
        time: when the event happened.
        example_id: the column with the id of the row that it belongs to: the mapping's ``example_id``, or the
            ``impression_id`` of events.
        window: how long after the row's query an event counts; a row is watched as long as that.
    """

    input: Annotated[DelimitedInput | JsonlInput | ParquetInput, Field(discriminator="type")]
    time: Time = Field(examples=[{"column": "time", "unit": "s"}])
    example_id: Column
    window: Duration = Field(examples=["3d"])

    @model_validator(mode="after")
    def _time_is_a_column(self) -> Self:
        if self.time.column is None:
            raise ValueError("time: events require a column: their order in a file carries no information")
        return self

    @property
    def window_us(self) -> int:
        return duration_us(self.window)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.time.column or "", self.example_id)))


class LabelMapping(StrictModel):
    """The mapping file of labels: how events such as sales become further labels of a log's rows.

    Attributes:
        labels: how the events are read, by the label's name.
    """

    labels: dict[LabelName, LabelEvents] = Field(min_length=1)

    @property
    def window_us(self) -> int:
        """Time after a query until which all of its labels are known, in microseconds."""
        return max(label.window_us for label in self.labels.values())


def load_label_mapping(path: Path) -> LabelMapping:
    """Reads and validates a mapping file. Raises InputError with one line that names every fault."""
    return parse_model(LabelMapping, read_yaml(path, "mapping"), f"mapping {path}")
