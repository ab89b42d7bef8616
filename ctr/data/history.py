"""Histories: of each row, the last values that earlier rows of its key had, such as the items a user clicked.

A row of a query at time t sees the values of rows whose queries were at s with ``s + after <= t``, and before t: what a
server could have known when it answered the query, if it learns of a row ``after`` later. So no row sees its own query,
nor the future, whatever later rows hold.
"""

from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from ctr.config import StrictModel
from ctr.data.times import Duration, duration_us, read_duration
from ctr.data.value_arrays import places_of


class History(StrictModel):
    """The last values that earlier rows with the same key had, as known at each query's time.

    Attributes:
        by: the feature whose value is the key, such as the user: a single-valued category whose ids grow.
        of: the feature whose values are listed, such as the item: a single-valued category.
        where: which rows count: those with label 1, or all.
        last: at most so many values, the latest ones; the latest is the last.
        after: how long after its query a row is known. ``0s``: at once, to later queries.
        within: rows that are older are forgotten, which bounds what is kept.
    """

    by: str
    of: str
    where: Literal["clicked", "all"] = "clicked"
    last: int = Field(default=50, ge=1, le=10_000)
    after: Duration | Literal["0s"]
    within: Duration = "30d"

    @model_validator(mode="after")
    def _sees_anything(self) -> Self:
        if self.after_us >= self.within_us:
            raise ValueError("within must be longer than after")
        return self

    @property
    def names(self) -> tuple[str, str]:
        return self.by, self.of

    @property
    def after_us(self) -> int:
        return read_duration("after", self.after)

    @property
    def within_us(self) -> int:
        return duration_us(self.within)

    @property
    def hidden_us(self) -> int:
        """Of this many microseconds before its query a row sees nothing; at least 1."""
        return max(self.after_us, 1)


class Known(NamedTuple):
    """Rows that count, in order of key, of one key in order of time: int64 [E] each."""

    keys: np.ndarray
    times: np.ndarray
    values: np.ndarray

    def at(self, places: np.ndarray) -> "Known":
        """Selects rows by place, or by a mask."""
        return Known(*(column[places] for column in self))


NOTHING = Known(*np.zeros((3, 0), np.int64))


def add_known(known: Known, later: Known) -> Known:
    """Adds rows, of each key in order of time; of equal times they come after the known ones."""
    both = Known(*map(np.concatenate, zip(known, later, strict=True)))
    return both.at(np.lexsort((both.times, both.keys)))


def split_known(known: Known, keys: np.ndarray) -> tuple[Known, Known]:
    """Splits off the rows of some keys, int64 [K], which are sorted and distinct: those, and the others."""
    begins, ends = (np.searchsorted(known.keys, keys, side) for side in ("left", "right"))
    chosen = np.zeros(len(known.keys), bool)
    chosen[places_of(begins, ends - begins)] = True
    return known.at(chosen), known.at(~chosen)


def join_known(first: Known, second: Known) -> Known:
    """Joins rows of different keys."""
    places = np.searchsorted(first.keys, second.keys)
    return Known(*(np.insert(own, places, other) for own, other in zip(first, second, strict=True)))


def look_up_history(
    history: History, known: Known, keys: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Looks up what queries see, of N keys, int64 [N], at their times: values int64 [V], and lengths int32 [N]."""
    ends, oldest = _ranks(known, keys, times - history.hidden_us, times - history.within_us - 1)
    begins = np.maximum(ends - history.last, oldest)
    lengths = (ends - begins).astype(np.int32)
    places = places_of(begins, lengths)
    return known.values[places], lengths


def _ranks(known: Known, keys: np.ndarray, *times: np.ndarray) -> np.ndarray:
    """Counts the known rows of smaller keys, and of the same key up to each of T times: int64 [T, N]."""
    total, count = len(known.keys), len(times)
    # Queries come after the rows of the same time.
    order = np.lexsort(
        (
            np.repeat([0, 1], [total, count * len(keys)]),
            np.concatenate([known.times, *times]),
            np.concatenate([known.keys, *[keys] * count]),
        )
    )
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(order < total)
    return ranks[total:].reshape(count, -1)


def forget(history: History, known: Known, now_us: int) -> Known:
    """Drops what no query from ``now_us`` on can see: rows too old, and those with enough later visible ones."""
    known = known.at(known.times >= now_us - history.within_us)
    ends = np.searchsorted(known.keys, known.keys, "right")
    # How many rows of the key will come after this one and are visible already.
    visible: np.ndarray = np.cumsum(known.times <= now_us - history.hidden_us)
    return known.at(visible[ends - 1] - visible < history.last)
