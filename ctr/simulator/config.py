"""The settings of the simulated world."""

from datetime import UTC, date, datetime
from typing import Self

from pydantic import Field, model_validator

from ctr.config import StrictModel

DAY_US = 24 * 3600 * 1_000_000
MAX_POSITIONS = 32


class SimulatorConfig(StrictModel):
    """What to simulate.

    A day's rows depend on every setting but ``examples``: a longer log begins with the same days.

    Attributes:
        examples: impressions in the log; the last query is cut where they end.
        start: the first day (UTC).
        queries_per_day: on a working day; there are fewer at the weekend. A day is one interval of the log
            and is held in memory.
        min_ads: the fewest ads that a query asks for.
        max_ads: the most; every number between the two is as likely.
        base_ctr: the mean click probability before any drift.
        drift: standard deviation, per day, of the steps of the coefficients that walk; 0 keeps all constant.
        topics: hidden subjects of queries, words and ads.
    """

    examples: int = Field(default=300_000, ge=1, le=10**12)
    seed: int = Field(default=0, ge=0, lt=2**63)
    start: date = date(2026, 1, 5)
    queries_per_day: int = Field(default=10_000, ge=10, le=500_000)
    min_ads: int = Field(default=3, ge=1, le=MAX_POSITIONS)
    max_ads: int = Field(default=8, ge=1, le=MAX_POSITIONS)
    base_ctr: float = Field(default=0.08, ge=0.001, le=0.4)
    drift: float = Field(default=0.0, ge=0, le=1)
    users: int = Field(default=20_000, ge=1, le=5_000_000)
    ads: int = Field(default=4_000, ge=2, le=1_000_000)
    advertisers: int = Field(default=250, ge=1, le=100_000)
    words: int = Field(default=3_000, ge=2, le=1_000_000)
    topics: int = Field(default=20, ge=2, le=200)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_ads > self.max_ads:
            raise ValueError(f"min_ads {self.min_ads} is above max_ads {self.max_ads}")
        if min(self.ads, self.words) < self.topics:
            raise ValueError(f"each of the {self.topics} topics needs an ad and a word of its own")
        if self.start < date(1970, 1, 1):
            raise ValueError(f"start {self.start} is before 1970-01-01")
        return self

    @property
    def start_us(self) -> int:
        """The begin of the first day in microseconds since 1970, UTC."""
        return (
            int(datetime(self.start.year, self.start.month, self.start.day, tzinfo=UTC).timestamp())
            * 1_000_000
        )
