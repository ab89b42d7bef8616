"""Settings of the simulated world, and the directories of simulations; loads no TensorFlow."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ctr.config import StrictModel, load_model
from ctr.data.log import check_log_folder
from ctr.data.times import DAY_US, Duration
from ctr.io.errors import InputError
from ctr.io.files import check_output_folder

MAX_SLOTS = 32
WORLD_FILE = "world.yaml"  # in a simulated log: the settings of its world
EVENTS_FILE = "events.yaml"  # in a directory of raw events: the settings of the simulation


class InterestsConfig(StrictModel):
    """Moving interests of users. Every ad has a theme, which no feature but its id shows.

    Attributes:
        themes: the number of themes of ads.
        at_once: the number of interests that a user has at a time, each in a theme; two may be in the same one.
        lasting: the mean time until an interest moves to a theme that is drawn anew.
        strength: the amount added to the logit of a click where the ad's theme is among the user's interests.
    """

    themes: int = Field(default=20, ge=2, le=10_000)
    at_once: int = Field(default=3, ge=1, le=20)
    lasting: Duration = "1d"
    strength: float = Field(default=2.0, ge=0, le=10)


class WorldConfig(StrictModel):
    """The world, its traffic and its auction. A day's queries depend on nothing but these.

    Attributes:
        seed: the seed of the world and of its traffic.
        start: the first day (UTC).
        queries_per_day: queries on a working day; there are fewer on weekends. A day is one partition of the log
            and is held in memory.
        candidates: ads that are retrieved for a query and compete for its slots.
        slots: positions on a page. Only ads that reach the reserve are shown, so some pages show none.
        reserve: minimum expected value (bid times predicted click probability) of an ad that is shown.
        randomized_share: the share of the queries whose ads, order and number are drawn at random.
        randomized_in_log: whether the log contains the randomized queries; if not, only the separate log of
            ``--randomized`` has them.
        base_ctr: the mean click probability of the ads that the crude policy shows on the first day.
        intent: standard deviation of the hidden part of a query's logit: how interested the user is.
        drift: standard deviation of the daily step of the coefficients that drift; 0: all are constant.
        users: the number of users.
        ads: the number of ads at any time.
        ad_lifetime_days: the mean lifetime of an ad; new ads replace those that expire.
        advertisers: the number of advertisers.
        words: the number of words that queries and ads use.
        topics: the number of hidden topics of queries, words and ads.
        buckets: whether ids of users, ads, words and their combinations are hashed into buckets, of which some share
            one; if not, each value has a distinct id, as in logs of other sources without ``buckets``.
        interests: interests of users that move. Null: none.
    """

    seed: int = Field(default=0, ge=0, lt=2**63)
    start: date = Field(default=date(2026, 1, 5), strict=False)
    queries_per_day: int = Field(default=20_000, ge=10, le=900_000)
    candidates: int = Field(default=12, ge=1, le=48)
    slots: int = Field(default=6, ge=1, le=MAX_SLOTS)
    reserve: float = Field(default=0.04, ge=0)
    randomized_share: float = Field(default=0.02, ge=0, le=1)
    randomized_in_log: bool = True
    base_ctr: float = Field(default=0.08, ge=0.001, le=0.3)
    intent: float = Field(default=0.8, ge=0, le=5)
    drift: float = Field(default=0.03, ge=0, le=1)
    users: int = Field(default=20_000, ge=1, le=5_000_000)
    ads: int = Field(default=4_000, ge=2, le=1_000_000)
    ad_lifetime_days: float = Field(default=30, ge=1, le=10_000)
    advertisers: int = Field(default=250, ge=1, le=100_000)
    words: int = Field(default=3_000, ge=2, le=1_000_000)
    topics: int = Field(default=20, ge=2, le=200)
    buckets: bool = True
    interests: InterestsConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.words < self.topics:
            raise ValueError(f"each of the {self.topics} topics requires a separate word")
        if self.slots > self.candidates:
            raise ValueError(
                f"slots {self.slots} are more than candidates {self.candidates}: they cannot be filled"
            )
        if self.randomized_share == 1 and not self.randomized_in_log:
            raise ValueError("randomized_in_log false with randomized_share 1 leaves the log without a query")
        if self.start < date(1970, 1, 1):
            raise ValueError(f"start {self.start} is before 1970-01-01")
        return self

    @property
    def start_us(self) -> int:
        """Returns the start of the first day in microseconds since 1970, UTC."""
        start = datetime(self.start.year, self.start.month, self.start.day, tzinfo=UTC)
        return int(start.timestamp()) * 1_000_000

    def day_us(self, day: int) -> int:
        return self.start_us + day * DAY_US


EventsFormat = Literal["parquet", "jsonl", "csv"]
_Share = Annotated[float, Field(ge=0, le=1)]
_MeanSeconds = Annotated[float, Field(ge=0, le=30 * 24 * 3600)]


class EventsConfig(StrictModel):
    """Delivery of raw impressions and clicks. Delays are exponential, each with a share of longer ones.

    Attributes:
        format: the format of the files.
        delivery_seconds: the mean delay from an event to its arrival.
        straggler_share: the share of the deliveries that take longer.
        straggler_seconds: the mean delay of these deliveries.
        duplicate_share: the share of the events that are delivered a second time.
        click_seconds: the mean delay from an impression to its click.
        late_click_share: the share of the clicks that come later.
        late_click_seconds: the mean delay of these clicks.
        lost_share: the share of the impressions that never arrive, although their clicks do.
    """

    format: EventsFormat = "parquet"
    delivery_seconds: _MeanSeconds = 10
    straggler_share: _Share = 0.01
    straggler_seconds: _MeanSeconds = 3600
    duplicate_share: _Share = 0.01
    click_seconds: _MeanSeconds = 60
    late_click_share: _Share = 0.05
    late_click_seconds: _MeanSeconds = 8 * 3600
    lost_share: _Share = 0


class SimulatorConfig(WorldConfig):
    """The world, and the length of its log: a longer one begins with the same days.

    Attributes:
        events: how raw events arrive, if they are written.
        examples: impressions in the log; the last query may be cut to reach this number exactly. Null: whole days.
        days: days of the log. Null: as many as the examples require.
    """

    events: EventsConfig = EventsConfig()
    examples: int | None = Field(default=None, ge=1, le=10**12, examples=[300_000])
    days: int | None = Field(default=None, ge=1, le=100_000)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.examples is None) == (self.days is None):
            raise ValueError("exactly one of examples and days is required")
        return self

    @property
    def world(self) -> WorldConfig:
        return WorldConfig(**{name: getattr(self, name) for name in WorldConfig.model_fields})


def check_simulation(logs: Sequence[Path], events: Path | None) -> None:
    """Raises InputError if a directory for a log or for events holds anything that a simulation did not write."""
    for log in logs:
        check_log_folder(log)
    if events is not None:
        check_events_folder(events)


def check_events_folder(folder: Path) -> None:
    """Raises InputError if a directory is not empty and does not hold raw events of the simulator."""
    check_output_folder(folder, "events of ctr simulate", lambda path: (path / EVENTS_FILE).is_file())


def check_world(log: Path) -> Path:
    """Returns the file with a log's world. Raises InputError for a log that was not simulated."""
    path = log / WORLD_FILE
    if not path.is_file():
        raise InputError(f"{log}: no {WORLD_FILE}: not a simulated log; ctr simulate makes one")
    return path


def read_world(log: Path) -> WorldConfig:
    """Reads the settings of a simulated log's world. Raises InputError for a log that was not simulated."""
    return load_model(WorldConfig, check_world(log), "world")
