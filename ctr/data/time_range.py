"""Range of event time: the part of a log that is sampled or trained on (FF 3.3)."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, Self

import numpy as np
from pydantic import field_validator, model_validator

from ctr.config import StrictModel, parse_model
from ctr.data.log import MAX_TIME_US, Manifest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimeRange(StrictModel):
    """The query times from ``start`` up to, but not including, ``end``; UTC unless they name an offset.

    A query has one query time, so that a range never splits a query.

    Attributes:
        start: the first query time, as a date (its first moment) or a date with a time. Null: unlimited.
        end: the first query time that is not included. Null: unlimited.
    """

    start: datetime | None = None
    end: datetime | None = None

    @field_validator("start", "end", mode="before")
    @classmethod
    def _utc(cls, value: Any) -> Any:
        if value is None:
            return None
        try:
            if isinstance(value, str):
                value = datetime.fromisoformat(value)
            if isinstance(value, date) and not isinstance(value, datetime):
                value = datetime(value.year, value.month, value.day)
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        except (AttributeError, ValueError, OverflowError):
            raise ValueError(
                "an ISO date or datetime is required, e.g. 2026-01-31 or 2026-01-31T06:00"
            ) from None

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"start {self.start.isoformat()} must be before end {self.end.isoformat()}")
        return self

    @property
    def start_us(self) -> int:
        return 0 if self.start is None else (self.start - _EPOCH) // timedelta(microseconds=1)

    @property
    def end_us(self) -> int:
        return MAX_TIME_US if self.end is None else (self.end - _EPOCH) // timedelta(microseconds=1)

    def contains(self, query_time: np.ndarray) -> np.ndarray:
        return (query_time >= self.start_us) & (query_time < self.end_us)

    def selects(self, partition: Manifest) -> bool:
        return partition.start < self.end_us and self.start_us < partition.end


def read_time_range(start: str | None, end: str | None) -> TimeRange:
    """Parses the options ``--start`` and ``--end``. Raises InputError, which names the option."""
    return parse_model(TimeRange, {"start": start, "end": end}, "time range of --start and --end")
