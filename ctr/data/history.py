"""Histories: for each row, the last values of earlier rows with the same key, such as the items a user clicked.

A row of a query at time t sees the values of rows whose queries were at s with ``s + after <= t``, and before t: the
values that a server has when it answers the query, if rows arrive ``after`` later. So no row sees its own query,
nor the future, whatever later rows hold.
"""

from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from ctr.config import StrictModel
from ctr.data.times import Duration, duration_us, read_duration
from ctr.data.value_arrays import places_of


class History(StrictModel):
    """The last values of earlier rows with the same key, as available at each query's time.

    Attributes:
        by: the feature whose value is the key, such as the user: a single-valued category whose ids grow.
        of: the feature whose values are listed, such as the item: a single-valued category.
        where: which rows count: those with label 1, or all.
        last: the maximum number of values; the latest value is the last one.
        after: the delay from a row's query until later queries see the row. ``0s``: no delay.
        within: the maximum age of rows; older rows are dropped, which bounds the memory.
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
        """Returns how long, in microseconds, the history hides rows from later queries; at least 1."""
        return max(self.after_us, 1)


class HistoryRows(NamedTuple):
    """Rows of histories, sorted by key and, within a key, by time: int64 [E] each."""

    keys: np.ndarray
    times: np.ndarray
    values: np.ndarray

    def at(self, places: np.ndarray) -> "HistoryRows":
        """Selects rows by index or mask."""
        return HistoryRows(*(column[places] for column in self))


NOTHING = HistoryRows(*np.zeros((3, 0), np.int64))


def add_rows(rows: HistoryRows, later: HistoryRows) -> HistoryRows:
    """Merges rows by key and time; at equal times ``later`` comes after ``rows``."""
    both = HistoryRows(*map(np.concatenate, zip(rows, later, strict=True)))
    return both.at(np.lexsort((both.times, both.keys)))


def split_by_keys(rows: HistoryRows, keys: np.ndarray) -> tuple[HistoryRows, HistoryRows]:
    """Splits rows into the rows of some keys, int64 [K], sorted and distinct, and all others."""
    begins, ends = (np.searchsorted(rows.keys, keys, side) for side in ("left", "right"))
    chosen = np.zeros(len(rows.keys), bool)
    chosen[places_of(begins, ends - begins)] = True
    return rows.at(chosen), rows.at(~chosen)


def merge_rows(first: HistoryRows, second: HistoryRows) -> HistoryRows:
    """Merges two sets of rows that have no key in common."""
    places = np.searchsorted(first.keys, second.keys)
    return HistoryRows(*(np.insert(left, places, right) for left, right in zip(first, second, strict=True)))


def look_up_history(
    history: History, rows: HistoryRows, keys: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Looks up the histories of N keys, int64 [N], at their times: values int64 [V] and lengths int32 [N]."""
    ends, oldest = _ranks(rows, keys, times - history.hidden_us, times - history.within_us - 1)
    begins = np.maximum(ends - history.last, oldest)
    lengths = (ends - begins).astype(np.int32)
    places = places_of(begins, lengths)
    return rows.values[places], lengths


def _ranks(rows: HistoryRows, keys: np.ndarray, *times: np.ndarray) -> np.ndarray:
    """Counts the stored rows of smaller keys, and of the same key up to each of T times: int64 [T, N]."""
    total, count = len(rows.keys), len(times)
    # Queries come after the rows of the same time.
    order = np.lexsort(
        (
            np.repeat([0, 1], [total, count * len(keys)]),
            np.concatenate([rows.times, *times]),
            np.concatenate([rows.keys, *[keys] * count]),
        )
    )
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(order < total)
    return ranks[total:].reshape(count, -1)


def forget(history: History, rows: HistoryRows, now_us: int) -> HistoryRows:
    """Drops rows that no query from ``now_us`` on can see: too old, or followed by enough later visible rows."""
    rows = rows.at(rows.times >= now_us - history.within_us)
    ends = np.searchsorted(rows.keys, rows.keys, "right")
    # How many rows of the key will come after this one and are visible already.
    visible: np.ndarray = np.cumsum(rows.times <= now_us - history.hidden_us)
    return rows.at(visible[ends - 1] - visible < history.last)
