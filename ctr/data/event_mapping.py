"""The mapping file of events, which converts impressions and clicks to a log; docs/howto/events.md describes it."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from ctr.config import AnyPath, ShortModel, StrictModel, parse_model, read_yaml
from ctr.data.derived import Column, Derived
from ctr.data.features import Feature, LabelName, Number, Vector
from ctr.data.kept_values import check_keep_values
from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput, Time
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Schema, make_schema
from ctr.data.sidecar import name_fault
from ctr.data.times import Duration, duration_us

_MOST_PARTITIONS = 1000
# Names of labels whose counters and files would collide with others.
_TAKEN = re.compile(
    r"impressions|clicks|earlier|sampled_out|(matched|early|duplicate|conflicting|late|orphan)_.*"
)


class EventSource(ShortModel):
    """Source of the events of one kind.

    Attributes:
        input: how the files are read.
        topic: the topic of Kafka; its records are JSON objects with the same columns. Null: files.
        time: the time of the event: when the query was made, or when the click or conversion happened.
        arrival: when the collector received the event. Null: unknown; ``time`` is used.
        impression_id: the column that impressions, clicks and conversions have in common.
        where: columns and the value that the events of this kind have in each, where files or topics hold several
            kinds; other rows are skipped.
    """

    left_out = ("where",)
    input: Annotated[DelimitedInput | JsonlInput | ParquetInput, Field(discriminator="type")]
    topic: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,249}$")
    time: Time = Field(examples=[{"column": "time", "unit": "ms"}])
    arrival: Time | None = None
    impression_id: Column
    where: dict[Column, bool | int | str] = {}

    @model_validator(mode="after")
    def _times_are_columns(self) -> Self:
        for key, time in self.times.items():
            if time.column is None:
                raise ValueError(
                    f"{key}: events require a column: their order in a file carries no information"
                )
        return self

    @property
    def times(self) -> dict[str, Time]:
        return {"time": self.time} | ({} if self.arrival is None else {"arrival": self.arrival})

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (*(time.column or "" for time in self.times.values()), self.impression_id, *self.where)


class ImpressionSource(EventSource):
    """Source of impressions.

    Attributes:
        query_id: the column with the id of the query; the impressions of one query have the same value, and the same
            ``time``.
        timestamp: the time of the impression. Null: the query's time.
        weight: a column of weights. Null: every weight is 1.
        derive: new columns by name, as in the mapping of a table.
    """

    query_id: Column
    timestamp: Time | None = None
    weight: Column | None = None
    derive: dict[Column, Derived] = {}

    @property
    def times(self) -> dict[str, Time]:
        return super().times | ({} if self.timestamp is None else {"timestamp": self.timestamp})

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (*super().key_columns, self.query_id, *filter(None, [self.weight]))


class LabelSource(EventSource):
    """Source of the events of a further label, such as conversions.

    Attributes:
        window: the maximum time from an impression to its event.
    """

    window: Duration = Field(examples=["3d"])


class EventSampling(StrictModel):
    """Sampling of the published examples, as by ``ctr sample --out``. Null: all are published.

    Attributes:
        name: the name of the sampling.
        rule: the rule that selects examples.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    rule: SamplingConfig


class EventTeacher(StrictModel):
    """The model whose predictions are recorded beside the log. Null: none.

    Attributes:
        name: the name of the sidecar.
        model: the directory of an exported model, or of its versions; the newest one is used for the whole log.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    model: AnyPath

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if fault := name_fault(name):
            raise ValueError(fault)
        return name


class EventMapping(ShortModel):
    """The mapping file of events: converts raw impressions and clicks to a log.

    Attributes:
        impressions: how impressions are read.
        clicks: how clicks are read.
        labels: further labels, by name: each has a separate kind of events, joined as clicks are, within a separate
            window.
        partition: a duration of query time: the log is published in units of this length.
        click_window: the maximum time from an impression to its click.
        clock_skew: the maximum time by which a click may precede its impression, and an impression its query: the
            clocks of devices and servers differ. Null: not at all.
        show_window: the maximum time from a query to its impressions; only with ``impressions.timestamp``. Null:
            as long as the click window and the late window together.
        late_window: for how long after the click window an unmatched click is called late, and after the window of a
            label its event; after that, it is an orphan. Ids are remembered for both windows together. Null: as long
            as that window.
        delay: the maximum time from an event to its arrival. A partition closes when everything has arrived that
            happened before its end plus the show window plus the longest window of clicks and labels.
        overlap: where files are followed: how much earlier an arrival in a file may be than the arrivals in the files
            before it. Null: not at all.
        future: how far an event's time may lie after its arrival, and how far an arrival that closes partitions may lie
            after the 90th percentile of the arrivals read with it. Null: unlimited; no event is in the future.
        largest_value: maximum size of a value, in bytes.
        shard_rows: after this many rows of a partition, the next query begins a new file.
        features: the features, in the order in which they are stored.
        keep_values: features whose raw values are stored beside the log, as in the mapping of a table.
    """

    left_out = ("labels",)
    impressions: ImpressionSource
    clicks: EventSource
    labels: dict[LabelName, LabelSource] = {}
    partition: Duration
    click_window: Duration
    clock_skew: Duration | None = "1s"
    show_window: Duration | None = None
    late_window: Duration | None = None
    delay: Duration
    overlap: Duration | None = None
    future: Duration | None = "5m"
    largest_value: int = Field(default=65_536, ge=1, le=2**24)
    shard_rows: int = Field(default=1_000_000, ge=1)
    sampling: EventSampling | None = None
    teacher: EventTeacher | None = None
    features: tuple[Feature, ...] = Field(min_length=1)
    keep_values: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        make_schema(self.features, self.impressions.derive)
        impressions = self.impressions
        if self.show_window is not None and impressions.timestamp is None:
            raise ValueError("show_window: requires impressions.timestamp, when each impression was shown")
        reach = max(map(sum, self.windows_us.values())) + self.show_window_us + 2 * self.clock_skew_us
        if reach > _MOST_PARTITIONS * duration_us(self.partition):
            raise ValueError(
                f"partition: {self.partition} is less than a thousandth of the windows: "
                "an event would belong to more than a thousand partitions"
            )
        for name, derived in impressions.derive.items():
            if derived.source in impressions.derive:
                raise ValueError(f"impressions.derive.{name}: {derived.source} is itself derived")
            if name in impressions.key_columns:
                raise ValueError(f"impressions.derive.{name}: a column of this name is read as a key")
        for name in filter(_TAKEN.fullmatch, self.labels):
            raise ValueError(f"labels.{name}: other events or counters have this name; choose another one")
        for key in ("topic", "arrival"):
            if len({getattr(source, key) is None for source in self.sources.values()}) > 1:
                raise ValueError(f"{key}: set it for all of {', '.join(self.kinds)}, or for none")
        check_keep_values(self.keep_values, self.features)
        self._check_sampling()
        self._check_histories()
        return self

    def _check_sampling(self) -> None:
        if self.sampling is None:
            return
        rule = self.sampling.rule
        if rule.stratify_by is not None:
            raise ValueError(
                "sampling.rule.stratify_by: not allowed here, each example is decided by itself as it is joined; "
                "sample the log by ctr sample"
            )
        if rule.by_teacher is not None:
            key, recorded = rule.by_teacher
            if self.teacher is None or recorded.teacher != self.teacher.name:
                raise ValueError(
                    f"sampling.rule.{key}.teacher: {recorded.teacher} is not the teacher of this mapping"
                )
            if recorded.log is not None:
                raise ValueError(f"sampling.rule.{key}.log: not allowed here, the teacher scores this log")

    def _check_histories(self) -> None:
        for name, history in self.feature_schema.histories.items():
            if history.where == "clicked" and history.after_us < duration_us(self.click_window):
                raise ValueError(
                    f"feature {name}: history.after is {history.after}, but clicks come up to click_window, "
                    f"{self.click_window}, after their query; allowed: at least that"
                )
            if history.where == "all" and self.sampling is not None:
                raise ValueError(
                    f"feature {name}: history.where all would list only the rows that sampling keeps"
                )
            if self.teacher is not None:
                raise ValueError(
                    f"feature {name}: teacher is not allowed with a history, which rows get after they are scored; "
                    "score the log by ctr score"
                )

    @property
    def sources(self) -> dict[str, EventSource]:
        """Returns the sources of events by kind: ``impressions``, ``clicks``, and the name of each label."""
        return {"impressions": self.impressions, "clicks": self.clicks, **self.labels}

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.sources)

    @property
    def feature_schema(self) -> Schema:
        return make_schema(self.features, self.impressions.derive, labels=self.labels)

    @property
    def windows_us(self) -> dict[str, tuple[int, int]]:
        """Returns the window and the late window of clicks and of each label's events, in microseconds, by kind."""
        windows = {"clicks": self.click_window} | {name: label.window for name, label in self.labels.items()}
        return {
            kind: (duration_us(window), duration_us(self.late_window or window))
            for kind, window in windows.items()
        }

    @property
    def clock_skew_us(self) -> int:
        return 0 if self.clock_skew is None else duration_us(self.clock_skew)

    @property
    def show_window_us(self) -> int:
        """Returns the maximum time from a query to its impressions, in microseconds; 0 without ``timestamp``."""
        if self.impressions.timestamp is None:
            return 0
        return sum(self.windows_us["clicks"]) if self.show_window is None else duration_us(self.show_window)

    @property
    def raw_columns(self) -> tuple[str, ...]:
        derive = self.impressions.derive
        sources = (source for source in self.feature_schema.read_sources if source not in derive)
        derived_from = (derived.source for derived in derive.values() if not derived.of_time)
        return tuple(dict.fromkeys((*self.impressions.key_columns, *derived_from, *sources)))

    @property
    def number_sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.source for f in self.features if isinstance(f, Number)))

    @property
    def vector_sources(self) -> dict[str, Vector]:
        return {f.source: f for f in self.features if isinstance(f, Vector)}

    @property
    def list_sources(self) -> dict[str, str | None]:
        """Returns the columns that may hold lists, with the separator of their values."""
        return self.feature_schema.list_separators


def load_event_mapping(path: Path) -> EventMapping:
    """Reads and validates a mapping file. Raises InputError with one line that names every fault."""
    return parse_model(EventMapping, read_yaml(path, "mapping"), f"mapping {path}")
