"""The configuration of growing ids: the capacity of a feature, admission and eviction."""

from typing import Annotated, Literal

from pydantic import Field

from ctr.config import StrictModel
from ctr.data.features import Name

Capacity = Annotated[int, Field(ge=1, le=2**30)]
Seconds = Annotated[float, Field(ge=1, le=100 * 365 * 24 * 3600)]


class AdmissionConfig(StrictModel):
    """Condition for an id to get an individual row. Until then it uses one of its feature's shared rows.

    Attributes:
        rule: ``always``: at once. ``count``: at its ``count``-th occurrence. ``probability``: each of its occurrences
            is drawn with this probability, by a hash of the example_id, and the first one that is drawn admits it;
            ids that wait need no memory.
        count: for the rule ``count``: occurrences, including the one that admits the id.
        exact_ids: for the rule ``count``: the number of waiting ids of a table that are counted exactly, about 50
            bytes for each. If there are more, their counts go into a count-min sketch of 32 to 64 bytes (twice that
            for a ``count`` above 255) for each of ``exact_ids``: a few ids are then admitted early, and one that comes
            again only after more than ``exact_ids`` other ids may have to begin again.
        probability: for the rule ``probability``.
        salt: for the rule ``probability``: names the draw; another salt is an independent draw.
    """

    rule: Literal["always", "count", "probability"] = "always"
    count: int = Field(default=3, ge=1, le=2**16 - 1)
    exact_ids: int = Field(default=2**20, ge=1, le=2**28)
    probability: float = Field(default=0.1, gt=0, le=1)
    salt: str = Field(default="1", min_length=1)


class EvictionConfig(StrictModel):
    """Which ids lose their row. All times are event time, the times of queries, never the clock.

    Attributes:
        policy: which ids go when a feature has as many as its capacity. ``none``: no id; new ones stay on shared
            rows, with a warning. ``least_recent``: those that were not seen for the longest time. ``least_frequent``:
            those of the lowest frequency, where an occurrence counts half after each ``half_life``. ``score``: those
            of the lowest frequency divided by the time since they were last seen.
        share: the share of a feature's capacity that is evicted at once, so that evictions are rare.
        half_life: seconds after which an occurrence counts half.
        max_idle: seconds after which an id that was not seen is evicted, even if its feature is not full. Null: never.
        every: seconds between two searches for such ids.
    """

    policy: Literal["none", "least_recent", "least_frequent", "score"] = "score"
    share: float = Field(default=1 / 16, gt=0, le=1)
    half_life: Seconds = 7 * 24 * 3600
    max_idle: Seconds | None = None
    every: Seconds = 24 * 3600


class IdsConfig(StrictModel):
    """Features without ``buckets``: each id has an individual row, as long as there is room.

    Attributes:
        capacity: maximum number of ids of a feature that have an individual row. Memory is only used for ids that
            occur: 60 to 95 bytes for each, beside its row and the state of its optimizer.
        capacities: by a feature's name, its capacity where it is not ``capacity``.
        shared_rows: rows that all ids of a feature without an individual row share, each id always the same one.
    """

    capacity: Capacity = 2**22
    capacities: dict[Name, Capacity] = {}
    shared_rows: int = Field(default=8, ge=1, le=2**20)
    admission: AdmissionConfig = AdmissionConfig()
    eviction: EvictionConfig = EvictionConfig()

    def capacity_of(self, feature: str) -> int:
        """Returns the capacity of a feature: its entry in ``capacities``, or ``capacity``."""
        return self.capacities.get(feature, self.capacity)
